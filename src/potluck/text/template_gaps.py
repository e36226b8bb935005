"""Adapt chats to templates without support for tools, calls, several calls, or several system
messages.

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
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache, partial

from potluck.errors import ChatTemplateError
from potluck.text.shield import parse_arguments
from potluck.text.template_data import messages_data, tool_data
from potluck.types.text import ChatMessage, Tool, ToolCall

_SYSTEM_ROLES = ("system", "developer")
_TOOLS = re.compile(r"\btools\b|\bfunctions\b")
_TOOL_ROLE = re.compile(r"""['"]tool['"]|\btool_response""")

_ONE_CALL = re.compile(r"only supports single tool-calls at once", re.IGNORECASE)
"""Error with which the templates of Llama 3.1 and later reject a message with several calls."""
_FORM = (
    "To call one, write its name and its arguments as JSON within tags, and end there:",
    "<tool_call>",
    '{"name": "the function\'s name", "arguments": {}}',
    "</tool_call>",
)


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
    knows_calls = "tool_calls" in source
    if not knows_calls:
        filled = [_with_calls(message) for message in filled]
    elif _ONE_CALL.search(source):
        filled = _one_by_one(filled)
    if not knows_calls and not supports_tools(source) and not _TOOL_ROLE.search(source):
        filled = _with_results(filled)
    if tools and not supports_tools(source):
        # A template that supports calls has its own format for them.
        form = () if knows_calls else _FORM
        filled = _with_system(filled, "\n".join((*_description_of(tools), *form)))
    takes = partial(_takes, source, tuple(sorted(special_tokens.items())))
    if _num_systems(filled) > 1 and not takes(num_systems=2):
        filled = _with_one_system(filled)
    if _num_systems(filled) > 0 and not takes(num_systems=1):
        filled = _without_system(filled)
    return filled


def _description_of(tools: Sequence[Tool]) -> Iterator[str]:
    yield "You can call functions. These are their descriptions, one on each line:"
    yield "<tools>"
    for tool in tools:
        yield json.dumps(tool_data(tool), ensure_ascii=False)
    yield "</tools>"


def _with_calls(message: ChatMessage) -> ChatMessage:
    if not message.tool_calls:
        return message
    calls = []
    for call in message.tool_calls:
        arguments = parse_arguments(call.arguments)
        value = {"name": call.name, "arguments": call.arguments if arguments is None else arguments}
        calls.append(f"<tool_call>\n{json.dumps(value, ensure_ascii=False)}\n</tool_call>")
    content = "\n".join((message.content, *calls) if message.content else calls)
    return replace(message, content=content, tool_calls=())


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


def _one_by_one(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Split a message with several calls into one message per call, each before its result."""
    changed: list[ChatMessage] = []
    pending = list(messages)
    while pending:
        message = pending.pop(0)
        if len(message.tool_calls) < 2:
            changed.append(message)
            continue
        num_results = next(
            (i for i, each in enumerate(pending) if each.role != "tool"), len(pending)
        )
        results, pending = pending[:num_results], pending[num_results:]
        for index, call in enumerate(message.tool_calls):
            base_message = message if index == 0 else ChatMessage(role=message.role, content="")
            changed.append(replace(base_message, tool_calls=(call,)))
            changed += [each for each in results if each.tool_call_id == call.call_id]
        ids = {call.call_id for call in message.tool_calls}
        changed += [each for each in results if each.tool_call_id not in ids]
    return changed


def _with_results(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Merge consecutive results into one message: many templates require alternating roles."""
    changed: list[ChatMessage] = []
    is_open = False
    for message in messages:
        if message.role != "tool":
            is_open = False
            changed.append(message)
            continue
        content = f"<tool_response>\n{message.content}\n</tool_response>"
        if is_open:
            last = changed.pop()
            content = f"{last.content}\n{content}"
        changed.append(ChatMessage(role="user", content=content))
        is_open = True
    return changed


def _with_system(messages: Sequence[ChatMessage], text: str) -> list[ChatMessage]:
    if _num_systems(messages) > 0:
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


def _num_systems(messages: Sequence[ChatMessage]) -> int:
    """Return the number of system messages at the start of a chat."""
    return next(
        (i for i, each in enumerate(messages) if each.role not in _SYSTEM_ROLES), len(messages)
    )


def _with_one_system(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Merge system messages: many templates write only the first, or reject several."""
    num_systems = _num_systems(messages)
    content = "\n\n".join(each.content for each in messages[:num_systems])
    return [replace(messages[0], content=content), *messages[num_systems:]]


@lru_cache(maxsize=16)
def _takes(source: str, special_tokens: tuple[tuple[str, str], ...], *, num_systems: int) -> bool:
    """Return whether a template writes leading system messages, by rendering a small chat."""
    from potluck.text.template_environment import run_template

    def shows(*messages: ChatMessage) -> bool:
        variables: dict[str, object] = {
            **dict(special_tokens),
            "messages": messages_data(messages, source),
            "tools": None,
            "add_generation_prompt": True,
        }
        try:
            text = run_template(source, variables, now=datetime.now(UTC))
        except ChatTemplateError:
            return False
        return all(message.content in text for message in messages)

    user = ChatMessage(role="user", content="Zebra")
    systems = [ChatMessage(role="system", content=each) for each in ("Giraffe", "Okapi")]
    return shows(*systems[:num_systems], user) or not shows(user)
