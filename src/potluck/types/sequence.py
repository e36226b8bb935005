"""Requests for sequences and their results, used by schedulers and gateways."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from potluck.types.step import Pooling, SamplingParams, SequenceId, TokenLogprob


class FinishReason(enum.Enum):
    """Why a sequence ended, in OpenAI's terms.

    ``LENGTH`` means that it was cut off because it reached its maximum number of tokens, or because
    its grammar became too complex to follow.
    """

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRequest:
    """A prompt and how to continue it.

    If ``max_new_tokens`` is None, the context size is the limit. A token of ``stop_tokens`` ends
    the sequence and is itself committed (its text is empty for the usual end-of-text tokens).
    With ``score_prompt``, every token of the prompt except the first is committed too, with its
    log-probability; then ``max_new_tokens`` may be 0.
    ``request_id`` identifies the client's request in logs; it has no other effect.
    ``grammar``, in the form of ``potluck.grammars``, is what the new tokens must match; None allows
    any tokens. With ``pooling`` the result is one vector, computed from the hidden states of the
    prompt, and no tokens: ``max_new_tokens`` is 0 and no scores are requested. ``prediction`` is
    text that the client expects in the answer, as tokens: it may be used for drafts, and has no
    other effect.
    """

    prompt_tokens: tuple[int, ...]
    sampling: SamplingParams
    max_new_tokens: int | None = None
    stop_tokens: frozenset[int] = frozenset()
    request_id: str = ""
    score_prompt: bool = False
    grammar: str | None = None
    pooling: Pooling | None = None
    prediction: tuple[int, ...] = ()

    @property
    def num_scores(self) -> int:
        """The number of tokens of the prompt that are committed."""
        return len(self.prompt_tokens) - 1 if self.score_prompt else 0

    @property
    def generates_nothing(self) -> bool:
        """Whether it requests no tokens, scores or vector, in which case schedulers refuse it."""
        return self.max_new_tokens == 0 and self.num_scores == 0 and self.pooling is None

    @property
    def may_be_drafted(self) -> bool:
        """Whether more than one token may be generated; drafts do not help with a single one."""
        return self.pooling is None and self.max_new_tokens not in (0, 1)

    @property
    def last_pooled_position(self) -> int:
        """The position of the last token that the vector depends on."""
        return 0 if self.pooling is Pooling.CLS else len(self.prompt_tokens) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """The results that a sequence has when it continues on other stages or with another
    coordinator.

    ``output_tokens`` were generated after the prompt, in order. The first ``num_scored`` scores of
    the prompt were committed. A continued sequence only commits later results.
    """

    output_tokens: tuple[int, ...] = ()
    num_scored: int = 0


NOTHING_COMMITTED = Continuation()


class CommittedToken(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A committed token of a sequence; it never changes. The last one has a finish reason.

    A token whose ``position`` is within the prompt was not generated: it has a score, or the
    ``vector`` of the whole sequence in little-endian float32. ``num_drafted`` drafts of the
    sequence were verified by the step that produced this token (and by cancelled steps before it),
    and ``num_accepted`` of them were right. Both are set in the first token of a step, and 0 in all
    others.
    """

    sequence_id: SequenceId
    token: int
    position: int
    finish_reason: FinishReason | None = None
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()
    vector: bytes | None = None
    num_drafted: int = 0
    num_accepted: int = 0


class SequenceUpdate(msgspec.Struct, frozen=True, kw_only=True, tag="Tokens"):
    """The tokens that a step produced for a sequence, in order.

    ``num_cached_tokens`` tokens of its prompt were not computed, because they were in a cache. It
    is set in the first update, and 0 in all others.
    """

    tokens: tuple[CommittedToken, ...]
    num_cached_tokens: int = 0


OnUpdate = Callable[[SequenceUpdate | Exception], None]
"""Called in the event loop with every update of a sequence. The last update has a token with a
finish reason, or is an exception, which ends the sequence. The callback must return quickly; an
exception that it raises also ends the sequence."""

Cancel = Callable[[], None]
"""Ends a sequence, which then gets no more updates; it has no effect if the sequence has ended. It
is called in the event loop and returns immediately."""
