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
    Continuation,
    SequenceRequest,
    SequenceUpdate,
)


class Generate(msgspec.Struct, frozen=True, kw_only=True):
    """A sequence to compute, or what follows ``continuation``.

    It is answered with ``SequenceUpdate`` …, each with at least one token, or a
    ``GenerateFailure``.
    """

    deployment: DeploymentId
    request: SequenceRequest
    continuation: Continuation = NOTHING_COMMITTED


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


GenerateAnswer = SequenceUpdate | GenerateFailure


class OpenFeed(msgspec.Struct, frozen=True, kw_only=True):
    """Send the updates of a gateway's sequences here.

    The answer is ``TokenBatch`` …, an empty one immediately. ``feed_id`` is chosen by the gateway,
    and unique.
    """

    feed_id: str


class StartSequence(msgspec.Struct, frozen=True, kw_only=True):
    """Compute a sequence, whose updates go to an open feed under ``number``.

    The answer is ``Started`` or a ``GenerateFailure``. A node that does not coordinate the
    deployment lets the coordinator compute the sequence if it ``may_relay``: the gateway cannot
    reach the coordinator itself.
    """

    feed_id: str
    number: int
    generate: Generate
    may_relay: bool = False


class Started(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A sequence is being computed, or waits for that."""


class StopSequence(msgspec.Struct, frozen=True, kw_only=True):
    """Stop computing a sequence; one that is not live is accepted."""

    feed_id: str
    number: int


class FeedUpdate(msgspec.Struct, frozen=True, array_like=True):
    """The update of one sequence of a feed."""

    number: int
    given: GenerateAnswer


class TokenBatch(msgspec.Struct, frozen=True, array_like=True):
    """Updates of a gateway's sequences that belong together, normally those of one step."""

    fed: tuple[FeedUpdate, ...] = ()


StartAnswer = Started | GenerateFailure
