"""Messages between gateways and coordinators about sequences: payloads of control calls."""

from __future__ import annotations

import msgspec

from potluck.errors import (
    EngineError,
    MovedError,
    OverloadedError,
    PotluckError,
    RefusedRequestError,
)
from potluck.types.cluster import DeploymentId
from potluck.types.sequence import (
    NOTHING_COMMITTED,
    CommittedToken,
    Continuation,
    FinishReason,
    SequenceRequest,
    SequenceUpdate,
)
from potluck.types.step import SequenceId, TokenLogprob


class Generate(msgspec.Struct, frozen=True, kw_only=True):
    """Compute a sequence, or what follows ``continuation``.

    The answer is ``Tokens`` …, or a ``GenerateFailure``.
    """

    deployment: DeploymentId
    request: SequenceRequest
    continuation: Continuation = NOTHING_COMMITTED


class SentToken(msgspec.Struct, frozen=True, array_like=True):
    """A ``CommittedToken`` in transit, without field names."""

    sequence_id: SequenceId
    token: int
    position: int
    finish_reason: FinishReason | None = None
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    vector: bytes | None = None
    num_drafted: int = 0
    num_accepted: int = 0

    @classmethod
    def of(cls, token: CommittedToken) -> SentToken:
        """Return ``token`` as it is sent."""
        return cls(
            token.sequence_id,
            token.token,
            token.position,
            token.finish_reason,
            token.logprob,
            tuple((each.token, each.logprob) for each in token.top) if token.top else (),
            token.vector,
            token.num_drafted,
            token.num_accepted,
        )

    def committed(self) -> CommittedToken:
        """Return the token that was sent."""
        return CommittedToken(
            sequence_id=self.sequence_id,
            token=self.token,
            position=self.position,
            logprob=self.logprob,
            top=tuple(TokenLogprob(token=token, logprob=logprob) for token, logprob in self.top),
            finish_reason=self.finish_reason,
            vector=self.vector,
            num_drafted=self.num_drafted,
            num_accepted=self.num_accepted,
        )


class Tokens(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A part of a ``SequenceUpdate``; at least one token."""

    tokens: tuple[SentToken, ...]
    num_cached_tokens: int = 0

    @classmethod
    def of(cls, update: SequenceUpdate) -> Tokens:
        """Return ``update`` as it is sent."""
        return cls(
            tokens=tuple(map(SentToken.of, update.tokens)),
            num_cached_tokens=update.num_cached_tokens,
        )

    def update(self) -> SequenceUpdate:
        """Return the update that was sent."""
        return SequenceUpdate(
            tokens=tuple(each.committed() for each in self.tokens),
            num_cached_tokens=self.num_cached_tokens,
        )


class GenerateFailure(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Replaces the rest of a sequence's tokens.

    ``is_final``: the request must not be sent again (``RefusedRequestError``). ``has_moved``:
    another node can continue the sequence (``MovedError``).
    """

    message: str
    hint: str
    retry_after_seconds: int | None = None
    is_final: bool = False
    has_moved: bool = False

    @classmethod
    def of(cls, error: PotluckError) -> GenerateFailure:
        """Return what the gateway needs to raise an error like ``error``."""
        retry_after = error.retry_after_seconds if isinstance(error, OverloadedError) else None
        return cls(
            message=error.message,
            hint=error.hint,
            retry_after_seconds=retry_after,
            is_final=isinstance(error, RefusedRequestError),
            has_moved=isinstance(error, MovedError),
        )

    def error(self) -> PotluckError:
        """Return the error, at the gateway."""
        if self.retry_after_seconds is not None:
            return OverloadedError(self.message, retry_after_seconds=self.retry_after_seconds)
        if self.is_final:
            return RefusedRequestError(self.message, hint=self.hint)
        if self.has_moved:
            return MovedError(self.message, hint=self.hint)
        return EngineError(self.message, hint=self.hint)


class OpenFeed(msgspec.Struct, frozen=True, kw_only=True):
    """Send the updates of a gateway's sequences here.

    The answer is ``Feed`` …, an empty one immediately. ``feed_id`` is chosen by the gateway, and
    unique.
    """

    feed_id: str


class StartSequence(msgspec.Struct, frozen=True, kw_only=True):
    """Compute a sequence, whose updates go to an open feed under ``number``.

    The answer is ``Started`` or a ``GenerateFailure``.
    """

    feed_id: str
    number: int
    generate: Generate


class Started(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A sequence is being computed, or waits for that."""


class StopSequence(msgspec.Struct, frozen=True, kw_only=True):
    """Stop computing a sequence; one that is not live is accepted."""

    feed_id: str
    number: int


class FeedUpdate(msgspec.Struct, frozen=True, array_like=True):
    """The update of one sequence of a feed."""

    number: int
    given: Tokens | GenerateFailure


class Feed(msgspec.Struct, frozen=True, array_like=True):
    """Updates of a gateway's sequences that belong together, normally those of one step."""

    fed: tuple[FeedUpdate, ...] = ()


GenerateAnswer = Tokens | GenerateFailure
StartAnswer = Started | GenerateFailure
