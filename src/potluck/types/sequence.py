"""What is asked of a sequence and what it is given, as schedulers and gateways see it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from potluck.types.step import SamplingParams, SequenceId, TokenLogprob


class FinishReason(enum.Enum):
    """Why a sequence ended, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRequest:
    """A prompt and how to continue it.

    ``max_new_tokens`` None means: as many as the context holds. A token of ``stop_tokens`` ends the
    sequence and is itself committed (its text is empty for the usual end-of-text tokens).
    """

    prompt_tokens: tuple[int, ...]
    sampling: SamplingParams
    max_new_tokens: int | None = None
    stop_tokens: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedToken:
    """A token that a sequence was given; it will never change. The last one has a reason."""

    sequence_id: SequenceId
    token: int
    position: int
    logprob: float | None
    top: tuple[TokenLogprob, ...]
    finish_reason: FinishReason | None
