"""Rewrite the messages of a chat into others that more templates support.

Each function returns the same chat in another form, with as few messages changed as possible.
Calls and results become text in the format of Hermes and Qwen, which models have seen most: a call
as JSON between ``<tool_call>`` tags, a result between ``<tool_response>`` tags in a user message.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from potluck.text.control_tokens import parse_arguments
from potluck.types.text import ChatMessage

SYSTEM_ROLES = ("system", "developer")


def num_leading_systems(messages: Sequence[ChatMessage]) -> int:
    """Return the number of system messages at the start of a chat."""
    return next(
        (i for i, each in enumerate(messages) if each.role not in SYSTEM_ROLES), len(messages)
    )


def calls_as_text(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Write calls as content."""
    return [_call_as_text(message) for message in messages]


def _call_as_text(message: ChatMessage) -> ChatMessage:
    if not message.tool_calls:
        return message
    calls = []
    for call in message.tool_calls:
        arguments = parse_arguments(call.arguments)
        value = {"name": call.name, "arguments": call.arguments if arguments is None else arguments}
        calls.append(f"<tool_call>\n{json.dumps(value, ensure_ascii=False)}\n</tool_call>")
    content = "\n".join((message.content, *calls) if message.content else calls)
    return replace(message, content=content, tool_calls=())


def results_as_text(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Write consecutive results as one user message: many templates require alternating roles."""
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


def calls_one_by_one(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
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


def calls_without_text(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Move text beside calls into a message of its own before them, with the reasoning."""
    changed: list[ChatMessage] = []
    for message in messages:
        if message.tool_calls and message.content.strip():
            changed.append(replace(message, tool_calls=()))
            message = replace(message, content="", reasoning=None)
        changed.append(message)
    return changed


def later_systems_as_users(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Give system messages after the first turn to the user."""
    start = num_leading_systems(messages)
    return [
        replace(message, role="user") if at >= start and message.role in SYSTEM_ROLES else message
        for at, message in enumerate(messages)
    ]


def merged_roles(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Merge neighbouring user messages. Merge an assistant's message with the next one of the
    assistant, unless it has calls.
    """
    changed: list[ChatMessage] = []
    for message in messages:
        last = changed[-1] if changed else None
        if (
            last is not None
            and last.role == message.role
            and message.role in ("user", "assistant")
            and not last.tool_calls
        ):
            changed[-1] = replace(
                message,
                content=joined(last.content, message.content),
                reasoning=message.reasoning if last.reasoning is None else last.reasoning,
            )
        else:
            changed.append(message)
    return changed


def results_with_next_text(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Append what a user writes after a result to the result."""
    changed: list[ChatMessage] = []
    for message in messages:
        if message.role == "user" and changed and changed[-1].role == "tool":
            changed[-1] = replace(changed[-1], content=joined(changed[-1].content, message.content))
        else:
            changed.append(message)
    return changed


def joined(first: str, second: str) -> str:
    """Return two texts as paragraphs of one."""
    return f"{first}\n\n{second}" if first and second else first or second
