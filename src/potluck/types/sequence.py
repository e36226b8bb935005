"""What is asked of a sequence and what it is given, as schedulers and gateways see it."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from potluck.types.step import Pooling, SamplingParams, SequenceId, TokenLogprob


class FinishReason(enum.Enum):
    """Why a sequence ended, in OpenAI's words.

    ``LENGTH``: it was cut off, by the number of its tokens or because its grammar became too
    complex to be followed.
    """

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRequest:
    """A prompt and how to continue it.

    ``max_new_tokens`` None means: as many as the context holds. A token of ``stop_tokens`` ends the
    sequence and is itself committed (its text is empty for the usual end-of-text tokens).
    With ``score_prompt`` every token of the prompt but the first, which nothing comes before, is
    committed too, with its log-probability; then ``max_new_tokens`` may be 0.
    ``request_id`` is what the client's request is called in logs; it changes nothing.
    ``grammar`` is what the new tokens must match, in the form of ``potluck.grammars``; None: they
    are free. With ``pooling`` the sequence gives one vector, made of the hidden states of its
    prompt, and no tokens: ``max_new_tokens`` is 0 and no scores are asked for.
    """

    prompt_tokens: tuple[int, ...]
    sampling: SamplingParams
    max_new_tokens: int | None = None
    stop_tokens: frozenset[int] = frozenset()
    request_id: str = ""
    score_prompt: bool = False
    grammar: str | None = None
    pooling: Pooling | None = None

    @property
    def num_scores(self) -> int:
        """Tokens of the prompt that are committed."""
        return len(self.prompt_tokens) - 1 if self.score_prompt else 0

    @property
    def asks_for_nothing(self) -> bool:
        """No new token, no score and no vector: a scheduler does not take it."""
        return self.max_new_tokens == 0 and self.num_scores == 0 and self.pooling is None

    @property
    def last_pooled_position(self) -> int:
        """The position of the last token that the vector depends on."""
        return 0 if self.pooling is Pooling.CLS else len(self.prompt_tokens) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """What a sequence was given before it goes on over other stages, or with another coordinator.

    ``output_tokens`` were generated after the prompt, in order. The first ``num_scored`` scores of
    the prompt were committed. A sequence that continues commits only what follows these.
    """

    output_tokens: tuple[int, ...] = ()
    num_scored: int = 0


NOTHING_COMMITTED = Continuation()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedToken:
    """A token that a sequence was given; it will never change. The last one has a reason.

    One whose ``position`` is within the prompt was not generated: it is there for its score, or for
    the ``vector`` of the whole sequence, little-endian float32.
    """

    sequence_id: SequenceId
    token: int
    position: int
    logprob: float | None
    top: tuple[TokenLogprob, ...]
    finish_reason: FinishReason | None
    vector: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceUpdate:
    """What a step gave a sequence: its next tokens, in order.

    ``num_cached_tokens`` of its prompt were not computed, because a cache had them; that comes with
    the first tokens, and is 0 with all others.
    """

    tokens: tuple[CommittedToken, ...]
    num_cached_tokens: int = 0


OnUpdate = Callable[[SequenceUpdate | Exception], None]
"""Called in the event loop with every update of a sequence. The last one has a token with a finish
reason, or is an exception, which ends the sequence. It must return soon; what it raises ends the
sequence too."""

Cancel = Callable[[], None]
"""Ends a sequence, of which nothing more is told; one that has ended is accepted. It is for the
event loop, and returns at once."""
