"""Drafts: guesses of the next tokens of a sequence, which the stages verify.

This is speculative decoding (Leviathan et al. 2023, "Fast Inference from Transformers via
Speculative Decoding"). A draft is accepted if and only if the token sampled at its position equals
it, so the text is the same as without drafts, sampled or greedy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from potluck.types.sequence import SequenceRequest
from potluck.types.step import SequenceId


class Drafter(Protocol):
    """Proposes the tokens of one sequence. Used under the lock of the scheduler's owner."""

    def chances(self, tokens: Sequence[int], most: int) -> Sequence[float] | None:
        """Return how likely each of the next ``most`` guesses is right if all before it are.

        There are fewer if there are fewer guesses. None means that the drafter cannot tell; then
        the outcomes of its earlier guesses count. ``tokens`` are as for :meth:`propose`.
        """
        ...

    def propose(self, tokens: Sequence[int], k: int) -> Sequence[int] | None:
        """Return up to ``k`` tokens that may follow ``tokens``, the prompt and all later tokens.

        The result is empty if there is no guess. None means that it is being computed elsewhere;
        the drafter's owner is notified when to call again, and the sequence is not scheduled until
        then. Between calls ``tokens`` only grows, unless ``truncate`` is called.
        """
        ...

    def truncate(self, num_tokens: int) -> None:
        """Discard the tokens of previous calls from index ``num_tokens`` on, which were wrong."""
        ...

    def close(self) -> None:
        """Release its resources. Idempotent."""
        ...


class DraftSource(Protocol):
    """Creates the drafters of a deployment's sequences."""

    def open(self, sequence_id: SequenceId, request: SequenceRequest) -> Drafter | None:
        """Return a drafter for a sequence; None if it gets no drafts."""
        ...

    def seconds(self, k: int) -> float:
        """Return how long a guess of ``k`` tokens takes, if measured."""
        ...


@dataclass(slots=True, kw_only=True)
class DraftTotals:
    """Totals since the first start of a scheduler, across restarts.

    Mutable: the scheduler counts in its own instance, and gives out copies.

    ``num_drafted`` tokens were sent for verification; ``num_accepted`` of them were right.
    ``num_samples`` tokens were sampled by the ``num_verifications`` slices that had drafts.
    ``num_cancelled`` steps were cancelled because an earlier draft was wrong.
    """

    num_drafted: int = 0
    num_accepted: int = 0
    num_verifications: int = 0
    num_samples: int = 0
    num_cancelled: int = 0
