"""Adapt chats to templates without support for tools, calls, or several system messages.

The templates of many models support only user and assistant messages. Parts of a chat that a
template does not support are rewritten as content of the messages it does support, in the format of
Hermes and Qwen, which models have seen most: the tools within the system message, a call as JSON
between ``<tool_call>`` tags, a result between ``<tool_response>`` tags in a user message. A
template that supports these parts gets them unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache

from potluck.errors import ChatTemplateError
from potluck.text.template_data import messages_data, tool_data
from potluck.text.template_rewrites import (
    calls_as_text,
    num_leading_systems,
    results_as_text,
)
from potluck.types.text import ChatMessage, Tool, ToolCall

_TOOLS = re.compile(r"\btools\b|\bfunctions\b")
_TOOL_ROLE = re.compile(r"""['"]tool['"]|\btool_response""")

_FORM = (
    "To call one, write its name and its arguments as JSON within tags, and end there:",
    "<tool_call>",
    '{"name": "the function\'s name", "arguments": {}}',
    "</tool_call>",
)

_LFM2_CONTENT = """{{- content + "<|im_end|>\\n" -}}"""

_LFM2_SIGNS = ("List of tools: ", "<|im_start|>")

_LFM2_CALLS = """\
{{- content -}}
{%- for call in message["tool_calls"] or [] -%}
{{- "<|tool_call_start|>[" if loop.first else ", " -}}
{{- call["function"]["name"] + "(" -}}
{%- for key, value in call["function"]["arguments"].items() -%}
{{- key + "=" -}}
{{- value | tojson if value is string or value is mapping else value | string -}}
{{- "" if loop.last else ", " -}}
{%- endfor -%}
{{- ")" -}}
{{- "]<|tool_call_end|>" if loop.last -}}
{%- endfor -%}
{{- "<|im_end|>\\n" -}}"""


def supports_tools(source: str) -> bool:
    """Return whether a template passes tools to the model."""
    return _TOOLS.search(source) is not None


def fill_gaps(
    messages: Sequence[ChatMessage],
    tools: Sequence[Tool],
    *,
    source: str,
    special_tokens: Mapping[str, str],
) -> list[ChatMessage]:
    """Return ``messages`` with everything that the template does not support as content."""
    filled = _with_answered_calls(messages)
    probe = _Probe(source, tuple(sorted(special_tokens.items())))
    knows_calls = "tool_calls" in source
    if not knows_calls:
        filled = calls_as_text(filled)
    if not knows_calls and not supports_tools(source) and not _TOOL_ROLE.search(source):
        filled = results_as_text(filled)
    if tools and not (supports_tools(source) and _writes_tools(probe)):
        # A template that supports calls has its own format for them.
        form = () if knows_calls else _FORM
        filled = _with_system(filled, "\n".join((*_description_of(tools), *form)))
    if num_leading_systems(filled) > 1 and not _writes_systems(probe, 2):
        filled = _with_one_system(filled)
    if num_leading_systems(filled) > 0 and not _writes_systems(probe, 1):
        filled = _without_system(filled)
    return filled


def _description_of(tools: Sequence[Tool]) -> Iterator[str]:
    yield "You can call functions. These are their descriptions, one on each line:"
    yield "<tools>"
    for tool in tools:
        yield json.dumps(tool_data(tool), ensure_ascii=False)
    yield "</tools>"


def _with_answered_calls(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Assign results without a call id, as Ollama's clients send them, to the calls in order."""
    changed: list[ChatMessage] = []
    waiting: list[ToolCall] = []
    for message in messages:
        if message.tool_calls:
            waiting = list(message.tool_calls)
        elif message.role == "tool":
            call = next((each for each in waiting if _may_answer(message, each)), None)
            if call is not None:
                waiting.remove(call)
                message = replace(message, tool_call_id=call.call_id)
        changed.append(message)
    return changed


def _may_answer(result: ChatMessage, call: ToolCall) -> bool:
    if result.tool_call_id:
        return result.tool_call_id == call.call_id
    return result.name in (None, call.name)


def _with_system(messages: Sequence[ChatMessage], text: str) -> list[ChatMessage]:
    if num_leading_systems(messages) > 0:
        first, *rest = messages
        return [replace(first, content=f"{first.content}\n\n{text}"), *rest]
    return [ChatMessage(role="system", content=text), *messages]


def _without_system(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Move the system message into the first user message."""
    system, *rest = messages
    if rest and rest[0].role == "user":
        first, *others = rest
        return [replace(first, content=f"{system.content}\n\n{first.content}"), *others]
    return [ChatMessage(role="user", content=system.content), *rest]


def _with_one_system(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Merge system messages: many templates write only the first, or reject several."""
    num_systems = num_leading_systems(messages)
    content = "\n\n".join(each.content for each in messages[:num_systems])
    return [replace(messages[0], content=content), *messages[num_systems:]]


@dataclass(frozen=True, slots=True)
class _Probe:
    """A template that renders small chats, to find out what it writes."""

    source: str
    special_tokens: tuple[tuple[str, str], ...]

    def writes(
        self, texts: Sequence[str], *messages: ChatMessage, tools: Sequence[Tool] = ()
    ) -> bool:
        """Return whether the prompt contains all ``texts``."""
        from potluck.text.template_environment import run_template

        variables: dict[str, object] = {
            **dict(self.special_tokens),
            "messages": messages_data(messages, self.source),
            "tools": [tool_data(tool) for tool in tools] or None,
            "add_generation_prompt": True,
        }
        try:
            prompt = run_template(self.source, variables, now=datetime.now(UTC))
        except ChatTemplateError:
            return False
        return all(text in prompt for text in texts)


_USER = ChatMessage(role="user", content="Zebra")
"""Templates that do not even write this are not judged."""


@lru_cache(maxsize=16)
def _writes_systems(probe: _Probe, num_systems: int) -> bool:
    """Return whether a template writes that many leading system messages."""
    texts = ("Giraffe", "Okapi")[:num_systems]
    systems = [ChatMessage(role="system", content=each) for each in texts]
    return probe.writes((*texts, "Zebra"), *systems, _USER) or not probe.writes(["Zebra"], _USER)


@lru_cache(maxsize=16)
def _writes_tools(probe: _Probe) -> bool:
    """Return whether a template writes the descriptions of tools."""
    tool = Tool(name="giraffe", description="Okapi")
    writes = probe.writes(["giraffe", "Okapi"], _USER, tools=[tool])
    return writes or not probe.writes(["Zebra"], _USER)


def with_calls(source: str) -> str:
    """Return the template ``source``, changed to write tool calls if it is one that omits them.

    The first templates of LFM2 and LFM2.5 write the content of a message and nothing else. Calls
    would have to be part of the content, with marks that are control tokens, which content cannot
    contain here (``potluck.text.control_tokens``). Later templates of these models write calls
    themselves; the code added here writes them the same way, except for strings, which are quoted
    as in JSON.
    """
    is_lfm2 = all(sign in source for sign in _LFM2_SIGNS)
    if not is_lfm2 or "tool_calls" in source:
        return source
    return source.replace(_LFM2_CONTENT, _LFM2_CALLS)
