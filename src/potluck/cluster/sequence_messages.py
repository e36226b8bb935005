"""What gateways and coordinators tell one another of sequences: payloads of control calls.

Methods of a coordinator: ``deployment.feed`` OpenFeed → Feed …. ``deployment.start`` StartSequence
→ Started or GenerateFailure. ``deployment.stop`` StopSequence → (). ``deployment.generate``
Generate → Tokens …, or GenerateFailure. Method of every node: ``deployment.relay`` as
``deployment.generate``, which it passes on to the coordinator.
"""

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
    """Compute a sequence, or what follows ``continuation``; the answer is ``Tokens`` …, or a
    ``GenerateFailure``.
    """

    deployment: DeploymentId
    request: SequenceRequest
    continuation: Continuation = NOTHING_COMMITTED


class SentToken(msgspec.Struct, frozen=True, array_like=True):
    """A ``CommittedToken`` on its way, without the names of its fields."""

    sequence_id: SequenceId
    token: int
    position: int
    finish_reason: FinishReason | None = None
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    vector: bytes | None = None

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
    """Takes the place of the rest of a sequence's tokens.

    ``is_final``: the request shall not be sent again (``RefusedRequestError``). ``has_moved``: it
    is another node that can continue the sequence (``MovedError``).
    """

    message: str
    hint: str
    retry_after_seconds: int | None = None
    is_final: bool = False
    has_moved: bool = False

    @classmethod
    def of(cls, error: PotluckError) -> GenerateFailure:
        """What the gateway needs to raise the like of ``error``."""
        retry_after = error.retry_after_seconds if isinstance(error, OverloadedError) else None
        return cls(
            message=error.message,
            hint=error.hint,
            retry_after_seconds=retry_after,
            is_final=isinstance(error, RefusedRequestError),
            has_moved=isinstance(error, MovedError),
        )

    def error(self) -> PotluckError:
        """The error, at the gateway."""
        if self.retry_after_seconds is not None:
            return OverloadedError(self.message, retry_after_seconds=self.retry_after_seconds)
        if self.is_final:
            return RefusedRequestError(self.message, hint=self.hint)
        if self.has_moved:
            return MovedError(self.message, hint=self.hint)
        return EngineError(self.message, hint=self.hint)


class OpenFeed(msgspec.Struct, frozen=True, kw_only=True):
    """Send what the sequences of a gateway are given here; the answer is ``Feed`` …, at once an
    empty one. ``feed_id`` is the gateway's choice, and unique.
    """

    feed_id: str


class StartSequence(msgspec.Struct, frozen=True, kw_only=True):
    """Compute a sequence, whose updates go to an open feed under ``number``; the answer is
    ``Started`` or a ``GenerateFailure``.
    """

    feed_id: str
    number: int
    asked: Generate


class Started(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A sequence is being computed, or waits for that."""


class StopSequence(msgspec.Struct, frozen=True, kw_only=True):
    """Compute a sequence no longer; one that is not live is accepted."""

    feed_id: str
    number: int


class Fed(msgspec.Struct, frozen=True, array_like=True):
    """What one sequence of a feed was given."""

    number: int
    given: Tokens | GenerateFailure


class Feed(msgspec.Struct, frozen=True, array_like=True):
    """What the sequences of a gateway were given together, as a rule by one step."""

    fed: tuple[Fed, ...] = ()


GenerateAnswer = Tokens | GenerateFailure
StartAnswer = Started | GenerateFailure
