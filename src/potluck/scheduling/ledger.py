"""Every live sequence of a deployment, whichever stages compute it.

An entry has the log of a sequence, with which the rest can be computed on other stages, by another
scheduler or with another coordinator. It also has the subscriber, for whom nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from potluck.errors import PotluckError
from potluck.types.sequence import (
    NOTHING_COMMITTED,
    CommittedToken,
    Continuation,
    SequenceRequest,
    SequenceUpdate,
)
from potluck.types.step import SequenceId


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


Update = SequenceUpdate | PotluckError
"""One token at a time, the last with a finish reason, or one error that ends the sequence."""

Subscriber = Callable[[Update], None]
"""Called under the dispatcher's lock, on any thread: it must be quick and not call back."""


@dataclass(slots=True, kw_only=True)
class LedgerEntry:
    """A live sequence. Mutable, and changed by its ledger only.

    It is computed in steps of its own if ``is_alone``. ``num_cached_tokens`` are not yet delivered
    (see ``SequenceUpdate``); it is None before the first step.
    """

    sequence_id: SequenceId
    log: SequenceLog
    subscriber: Subscriber
    is_alone: bool = False
    num_cached_tokens: int | None = None

    def take_cached_tokens(self) -> int:
        """Return ``num_cached_tokens``, which are delivered once; 0 after that."""
        num_cached_tokens, self.num_cached_tokens = self.num_cached_tokens or 0, 0
        return num_cached_tokens


class Ledger:
    """Live sequences in the order of their arrival. Not thread-safe."""

    def __init__(self) -> None:
        self._entries: dict[SequenceId, LedgerEntry] = {}

    def __iter__(self) -> Iterator[LedgerEntry]:
        """Iterate over a copy: entries may be removed meanwhile."""
        return iter(tuple(self._entries.values()))

    def get(self, sequence_id: SequenceId) -> LedgerEntry | None:
        """Return a live sequence, or None if it is not live."""
        return self._entries.get(sequence_id)

    def add(
        self,
        sequence_id: SequenceId,
        request: SequenceRequest,
        continuation: Continuation,
        subscriber: Subscriber,
        *,
        is_alone: bool = False,
    ) -> None:
        """Add a sequence that continues after ``continuation``."""
        if sequence_id in self._entries:
            raise ValueError(f"sequence {sequence_id} is live already")
        self._entries[sequence_id] = LedgerEntry(
            sequence_id=sequence_id,
            log=SequenceLog(request, continuation),
            subscriber=subscriber,
            is_alone=is_alone,
        )

    def commit(self, token: CommittedToken) -> LedgerEntry:
        """Record a token, and return its sequence, which is removed if this is its last one.

        Raise ``ValueError`` if the sequence is not live or has the token already, and ``GapError``
        if earlier ones are missing: nothing is committed twice or left out.
        """
        entry = self._entries.get(token.sequence_id)
        if entry is None:
            raise ValueError(f"sequence {token.sequence_id} is not live")
        if not entry.log.take(token):
            raise ValueError(
                f"sequence {token.sequence_id} was given the token at {token.position} twice"
            )
        if entry.log.is_finished:
            del self._entries[token.sequence_id]
        return entry

    def remove(self, sequence_id: SequenceId) -> LedgerEntry | None:
        """Remove a sequence and return it; None if it is not live."""
        return self._entries.pop(sequence_id, None)
