"""The committed tokens of a sequence, from which any coordinator can continue it. Pure."""

from __future__ import annotations

from potluck.types.sequence import (
    NOTHING_COMMITTED,
    CommittedToken,
    Continuation,
    SequenceRequest,
)


class SequenceLog:
    """The committed tokens of one sequence, each accepted exactly once and in order. Mutable.

    Its coordinator keeps one for all stages that compute the sequence, and its gateway another one
    for all coordinators. ``output_tokens`` and ``num_scored`` are as in ``Continuation``; the
    request does not change.
    """

    __slots__ = ("_num_prompt_tokens", "is_finished", "num_scored", "output_tokens", "request")

    def __init__(
        self, request: SequenceRequest, continuation: Continuation = NOTHING_COMMITTED
    ) -> None:
        self.request = request
        self.output_tokens = list(continuation.output_tokens)
        self.num_scored = continuation.num_scored
        self.is_finished = False
        self._num_prompt_tokens = len(request.prompt_tokens)

    @property
    def continuation(self) -> Continuation:
        """Return what was committed so far, which is all that is needed to compute the rest."""
        if not self.output_tokens and not self.num_scored:
            return NOTHING_COMMITTED
        return Continuation(output_tokens=tuple(self.output_tokens), num_scored=self.num_scored)

    @property
    def next_position(self) -> int:
        """Return the position of the token that is committed next."""
        if self.request.pooling is not None:
            return self.request.last_pooled_position
        if self.num_scored < self.request.num_scores:
            return 1 + self.num_scored  # the first token has no predecessor, and so no score
        return self._num_prompt_tokens + len(self.output_tokens)

    def take(self, token: CommittedToken) -> bool:
        """Accept ``token`` and return True if it is the next one; return False for an earlier one.

        Raise ``GapError`` for a later one, and for any after the last.
        """
        expected = self.next_position
        if token.position < expected:
            return False
        if token.position > expected or self.is_finished:
            raise GapError(expected=expected, found=token.position)
        if token.vector is not None:
            pass  # the only result of the sequence
        elif token.position < self._num_prompt_tokens:
            self.num_scored += 1
        else:
            self.output_tokens.append(token.token)
        self.is_finished = token.finish_reason is not None
        return True


class GapError(Exception):
    """A token arrived before its predecessors: some were lost on the way."""

    def __init__(self, *, expected: int, found: int) -> None:
        super().__init__(f"the token at position {found} arrived before the one at {expected}")
