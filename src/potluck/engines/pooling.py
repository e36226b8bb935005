"""Pooling in NumPy, for engines that compute hidden states elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from potluck.engines.step_checks import inconsistent
from potluck.errors import EngineError
from potluck.types.step import Pooling, SampledToken

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from potluck.types.step import SequenceId, SequenceSlice, Step

    Floats = NDArray[np.float32]


@dataclass(slots=True)
class _Sum:
    values: Floats
    num_rows: int = 0


@dataclass(frozen=True, slots=True)
class StepPooler:
    """The running sums of a stage's sequences whose means are incomplete. See ``Pooling``."""

    _sums: dict[SequenceId, _Sum] = field(default_factory=dict)

    def check(self, step: Step) -> None:
        """Raise ``EngineError`` if the slices of a mean are not consecutive from 0 on."""
        for part in step.slices:
            if part.pooling is not Pooling.MEAN or part.start_position == 0:
                continue
            known = self._sums.get(part.sequence_id)
            expected = 0 if known is None else known.num_rows
            if part.start_position != expected:
                raise inconsistent(
                    f"the mean of sequence {part.sequence_id} includes the tokens before"
                    f" {expected}, but the slice begins at {part.start_position}"
                )

    def pool(self, step: Step, rows: Floats) -> tuple[SampledToken, ...]:
        """Process the rows ``[num_tokens, width]`` of ``step``; return the vectors that it
        completes.

        Raises ``EngineError`` for a vector that is not finite.
        """
        results: list[SampledToken] = []
        first = 0
        for part in step.slices:
            of_part = rows[first : first + len(part.tokens)]
            first += len(part.tokens)
            vector = self._take(part, of_part)
            if vector is None:
                continue
            if not np.isfinite(vector).all():
                raise EngineError(
                    f"sequence {part.sequence_id}: its hidden states are not finite",
                    hint="the weights are damaged or overflow: download or convert the model again",
                )
            results.append(
                SampledToken(
                    sequence_id=part.sequence_id,
                    position=part.start_position + len(part.tokens) - 1,
                    token=part.tokens[-1],
                    vector=vector.astype("<f4").tobytes(),
                )
            )
        return tuple(results)

    def close(self, closed: Iterable[SequenceId]) -> None:
        """Remove sequences, including unknown ones."""
        for sequence_id in closed:
            self._sums.pop(sequence_id, None)

    def reset(self) -> None:
        """Remove all sequences."""
        self._sums.clear()

    def _take(self, part: SequenceSlice, rows: Floats) -> Floats | None:
        """Return the vector if ``part`` completes the pooling."""
        if part.pooling is Pooling.MEAN:
            total = self._sums.get(part.sequence_id)
            if total is None or part.start_position == 0:
                total = self._sums[part.sequence_id] = _Sum(np.zeros(rows.shape[1], np.float32))
            for row in rows:  # in order, because NumPy's sum adds pairwise
                total.values += row
            total.num_rows += len(rows)
            if not part.ends_pooling:
                return None
            del self._sums[part.sequence_id]
            total.values /= np.float32(total.num_rows)
            return total.values
        if not part.ends_pooling:
            return None
        index = -1 if part.pooling is Pooling.LAST else 0
        return np.array(rows[index])


def is_pooled(step: Step) -> bool:
    """Return whether a sequence of ``step`` ends with a vector."""
    return any(part.pooling is not None for part in step.slices)
