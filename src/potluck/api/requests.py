"""Requests in a form that is independent of dialects.

A dialect converts request bodies to these values; ``potluck.api.jobs`` converts them to sequences.
Parameters that the client omitted are None, or missing from ``sampling``, so that the model's
recommended values apply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from potluck.api.errors import invalid
from potluck.types.output import ToolUse
from potluck.types.text import ChatEnding, ChatMessage

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """The parameters that every text request has.

    ``sampling`` maps names of fields of ``SamplingParams`` to values. ``seed`` is from -2^63 to
    2^64 - 1. If ``top_logprobs`` is None, no log-probabilities are returned. The answer must match
    ``grammar``, which the client set with the field ``grammar_param``. ``user`` is a label for the
    log.
    """

    sampling: Mapping[str, float | int] = field(default_factory=dict)
    logit_bias: Mapping[str, float] = field(default_factory=dict)
    seed: int | None = None
    stop: Sequence[str] = ()
    num_choices: int = 1
    max_new_tokens: int | None = None
    top_logprobs: int | None = None
    grammar: str | None = None
    grammar_param: str = "response_format"
    user: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest(GenerationRequest):
    """A request for the next message of a chat. ``messages`` is not empty.

    ``thinks`` turns reasoning on or off for models that support both. ``prediction`` is the answer
    that the client expects, or a similar text.
    """

    messages: Sequence[ChatMessage]
    ending: ChatEnding = ChatEnding.NEW_TURN
    tool_use: ToolUse = field(default_factory=ToolUse)
    reasoning_effort: str | None = None
    thinks: bool | None = None
    template_variables: Mapping[str, object] = field(default_factory=dict)
    prediction: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest(GenerationRequest):
    """A request to continue prompts, each a text or tokens; ``echo`` also returns the prompt.

    ``max_new_tokens`` is not None, and is 0 only with ``echo``. If ``parses_control_tokens`` is
    set, the texts of control tokens become those tokens. With a ``suffix``, prompts are texts, and
    the model fills the gap between the prompt and the suffix.
    """

    prompts: Sequence[str | Sequence[int]]
    echo: bool = False
    parses_control_tokens: bool = False
    suffix: str | None = None


def given(**values: _T | None) -> dict[str, _T]:
    """Return the values that the client set, by name."""
    return {name: value for name, value in values.items() if value is not None}


def num_top_logprobs(logprobs: bool | None, top_logprobs: int | None) -> int | None:
    """Return ``GenerationRequest.top_logprobs``. Raise ``ApiError`` if the two contradict each
    other.
    """
    if top_logprobs and not logprobs:
        raise invalid("top_logprobs", "top_logprobs requires logprobs: set logprobs")
    return (top_logprobs or 0) if logprobs else None
