"""A gateway's state of a sequence, with which any coordinator can continue it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from potluck.types.sequence import (
    NOTHING_COMMITTED,
    CommittedToken,
    Continuation,
    SequenceRequest,
)


class SequenceProgress:
    """The committed tokens of one sequence, each of which is accepted exactly once and in order."""

    def __init__(self, request: SequenceRequest, committed: Iterable[CommittedToken] = ()) -> None:
        self._num_prompt_tokens = len(request.prompt_tokens)
        self._num_scores = request.num_scores
        self._pooled_position = None if request.pooling is None else request.last_pooled_position
        self._num_scored = 0
        self._output: list[int] = []
        self._is_finished = False
        for token in committed:
            if token.position >= self._num_prompt_tokens:
                self._num_scored = self._num_scores  # scores come before generated tokens
            self.take(token)

    @property
    def is_finished(self) -> bool:
        """Whether the last token was received."""
        return self._is_finished

    @property
    def continuation(self) -> Continuation:
        """Return what the next coordinator needs."""
        if not self._output and not self._num_scored:
            return NOTHING_COMMITTED
        return Continuation(output_tokens=tuple(self._output), num_scored=self._num_scored)

    @property
    def next_position(self) -> int:
        """Return the position of the next token."""
        if self._pooled_position is not None:
            return self._pooled_position
        if self._num_scored < self._num_scores:
            return 1 + self._num_scored  # the first token has no predecessor, and so no score
        return self._num_prompt_tokens + len(self._output)

    def take(self, token: CommittedToken) -> bool:
        """Accept ``token`` and return True if it is the next one; return False for an earlier one.

        Raise ``GapError`` for a later one, and for any after the last.
        """
        if token.position < self.next_position:
            return False
        if token.position > self.next_position or self._is_finished:
            raise GapError(expected=self.next_position, found=token.position)
        if token.vector is not None:
            pass  # the only result of the sequence
        elif token.position < self._num_prompt_tokens:
            self._num_scored += 1
        else:
            self._output.append(token.token)
        self._is_finished = token.finish_reason is not None
        return True


class GapError(Exception):
    """A token arrived before its predecessors: some were lost on the way."""

    def __init__(self, *, expected: int, found: int) -> None:
        super().__init__(f"the token at position {found} arrived before the one at {expected}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a sequence has waited for a coordinator to compute it, since its last token.

    Time during which a coordinator holds the sequence does not count: the coordinator limits that.
    """

    limit_seconds: float
    waited_seconds: float = 0.0

    def after(self, seconds: float) -> Patience:
        """Return the patience left after another wait of ``seconds``."""
        return Patience(
            limit_seconds=self.limit_seconds, waited_seconds=self.waited_seconds + seconds
        )

    def renewed(self) -> Patience:
        """Return the full patience, after a token."""
        return Patience(limit_seconds=self.limit_seconds)

    @property
    def left_seconds(self) -> float:
        """Return how much longer it waits; 0 if it does not."""
        return max(0.0, self.limit_seconds - self.waited_seconds)
