"""What a client asks for, in no dialect.

A dialect makes these values of a body; ``potluck.api.jobs`` makes sequences of them. What a client
left out is None, or missing from ``sampling``: the model's makers may recommend something there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from potluck.types.output import ToolUse
from potluck.types.text import ChatEnding, ChatMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What every request for text has.

    ``sampling`` has values of ``SamplingParams`` by their names. ``seed`` is from -2^63 to
    2^64 - 1. ``top_logprobs`` None: no log-probabilities. ``grammar`` is what the answer's text
    must match, as the field ``grammar_param`` says. ``user`` is a label for the log.
    """

    model_id: str
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
class ChatAsked(Asked):
    """The next message of a chat. ``messages`` are not empty.

    ``thinks`` says whether the model shall think before it answers, where it can do either.
    """

    messages: Sequence[ChatMessage]
    ending: ChatEnding = ChatEnding.NEW_TURN
    tool_use: ToolUse = field(default_factory=ToolUse)
    reasoning_effort: str | None = None
    thinks: bool | None = None
    template_variables: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextAsked(Asked):
    """What continues prompts, each a text or tokens; with ``echo`` after the prompt itself.

    ``max_new_tokens`` is not None, and 0 only with ``echo``. Texts of control tokens become those
    tokens where ``parses_control_tokens``. With a ``suffix``, prompts are texts,
    and the model fills in what is between a prompt and the suffix.
    """

    prompts: Sequence[str | Sequence[int]]
    echo: bool = False
    parses_control_tokens: bool = False
    suffix: str | None = None
