"""Check whether a result is one that the last stage can produce for a step.

With drafts, the number of entries depends on what was sampled, so counting them is not enough: a
stage must continue exactly as far as the drafts are right (``SequenceSlice``).
"""

from __future__ import annotations

from collections.abc import Sequence

from potluck.errors import DefectError
from potluck.types.step import SampledToken, SequenceId, SequenceSlice, Step


class ResultCheck:
    """Checks the results of a pipeline, in the order of its steps. For use by one thread."""

    def __init__(self) -> None:
        self._last: dict[SequenceId, tuple[int, int]] = {}  # position and token of the last result

    def take(self, step: Step, sampled: Sequence[SampledToken]) -> None:
        """Record the result of a step. Raise ``DefectError`` if the step cannot have produced
        it.
        """
        if any(part.num_drafts for part in step.slices):
            self._take_verified(step, sampled)
        else:
            answered = tuple((each.sequence_id, each.position) for each in sampled)
            if answered != step.results:
                raise _not_of_step("the number of entries is wrong")
        for each in sampled:
            self._last[each.sequence_id] = each.position, each.token
        self._forget(step)

    def failed(self, step: Step) -> None:
        """Record that a step failed: what it sampled before that is unknown."""
        for part in step.slices:
            self._last.pop(part.sequence_id, None)
        self._forget(step)

    def _forget(self, step: Step) -> None:
        for sequence_id in step.closed:
            self._last.pop(sequence_id, None)

    def _take_verified(self, step: Step, sampled: Sequence[SampledToken]) -> None:
        num_taken = 0
        for part in step.slices:
            if part.begins_with_draft and not self._is_reached(part, sampled[num_taken:]):
                continue
            for index in part.wanted:
                expected = (part.sequence_id, part.start_position + index + 1)
                if num_taken == len(sampled):
                    raise _not_of_step("entries are missing")
                entry = sampled[num_taken]
                if (entry.sequence_id, entry.position) != expected:
                    raise _not_of_step("the number of entries is wrong")
                num_taken += 1
                has_draft = part.num_drafts and index + 1 < len(part.tokens)
                if has_draft and part.tokens[index + 1] != entry.token:
                    break
        vectors = step.results[step.num_wanted :]
        if tuple((each.sequence_id, each.position) for each in sampled[num_taken:]) != vectors:
            raise _not_of_step("there are too many entries")

    def _is_reached(self, part: SequenceSlice, following: Sequence[SampledToken]) -> bool:
        """Return whether the first draft of a slice is what was sampled for the sequence before.

        If that is not known, the result decides.
        """
        last = self._last.get(part.sequence_id)
        if last is not None:
            return last == (part.start_position, part.tokens[0])
        first = (part.sequence_id, part.start_position + 1)
        return bool(following) and (following[0].sequence_id, following[0].position) == first


def _not_of_step(why: str) -> DefectError:
    return DefectError(f"the result does not match the step: {why}")
