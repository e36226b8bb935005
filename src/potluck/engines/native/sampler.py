"""The core's sampler for engines that compute logits elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from potluck.engines.native.engine import choose_isa
from potluck.engines.native.program import core_errors, core_masks, core_opening, sampled_token
from potluck.engines.step_checks import check_masks, check_openings, check_sampled
from potluck.kernels import runner
from potluck.types.engine import NO_MASKS
from potluck.types.sampling import validate_sampling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from potluck.engines.native.pool import ThreadPool
    from potluck.types.engine import TokenMasks
    from potluck.types.program import Program
    from potluck.types.step import SampledToken, SequenceId, SequenceOpening, SequenceSlice, Step


class StepSampler:
    """The sampling state of the sequences of a stage with the head.

    It chooses as the native engine does from the same logits (``cpp/program/sampler.h``).
    """

    def __init__(self, program: Program, pool: ThreadPool) -> None:
        self._program = program
        self._open: set[SequenceId] = set()
        with core_errors():
            self._sampler = runner.Sampler(
                vocab_size=program.vocab_size, isa=choose_isa(None), pool=pool
            )

    def check(self, step: Step, masks: TokenMasks = NO_MASKS, *, samples: bool) -> None:
        """Raise the error that ``open`` or ``sample`` would raise for the step, before it is
        computed:

        ``ParameterError`` for invalid sampling parameters, else ``EngineError``. Without
        ``samples`` only logits are requested, and sequences need not be open.
        """
        for opening in step.opened:
            validate_sampling(opening.sampling, self._program.vocab_size)
        check_openings(self._program, step, self._open)
        if samples:
            check_sampled(step, self._open)
            check_masks(self._program, step, masks)

    def open(self, openings: Sequence[SequenceOpening]) -> None:
        """Start sampling for sequences."""
        with core_errors():
            self._sampler.open([core_opening(opening) for opening in openings])
        self._open.update(opening.sequence_id for opening in openings)

    def sample(
        self,
        wanted: Sequence[tuple[SequenceSlice, int]],
        logits: NDArray[np.float32],
        masks: TokenMasks = NO_MASKS,
    ) -> tuple[SampledToken, ...]:
        """Return the tokens that follow those of slices, by index; ``logits`` has finite rows in
        order.

        There are no results for rejected drafts and anything after them. ``masks`` may have more
        sequences than ``wanted``.
        """
        if not wanted:
            return ()
        positions = [
            (int(part.sequence_id), part.start_position + index + 1) for part, index in wanted
        ]
        known = [part.known_after(index) for part, index in wanted]
        drafts = [_draft_at(part, index) for part, index in wanted]
        mask_rows = [_mask_row(part, index) for part, index in wanted]
        with core_errors():
            sampled = self._sampler.sample(
                positions, logits, known, core_masks(masks), drafts, mask_rows
            )
        return tuple(map(sampled_token, sampled))

    def close(self, closed: Sequence[SequenceId]) -> None:
        """Remove sequences, including those that were never opened here."""
        for sequence_id in closed:
            self._sampler.close(sequence_id)
        self._open.difference_update(closed)

    def reset(self) -> None:
        """Remove all sequences."""
        self.close(sorted(self._open))


def _draft_at(part: SequenceSlice, index: int) -> int | None:
    """Return the token at ``index`` of ``part`` if it is a draft."""
    return part.tokens[index] if index >= len(part.tokens) - part.num_drafts else None


def _mask_row(part: SequenceSlice, index: int) -> int:
    """Return the row of ``part``'s masks for the token that follows the one at ``index``."""
    first_sampled = max(0, len(part.tokens) - 1 - part.num_drafts)
    return max(0, index - first_sampled)
