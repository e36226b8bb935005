"""Remove lines of system messages that change with every request.

Claude Code, for example, starts its system prompt with a line that contains a checksum of the
request. The line is of no use to the model, and a prompt that differs in its first line shares
nothing with the prefix cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from potluck.types.text import ChatEncoder, ChatMessage, ChatPrompt

KNOWN_CHANGING_LINES = ("x-anthropic-billing-header:",)
"""Known beginnings of such lines: Claude Code's."""

_ROLES = frozenset({"system", "developer"})


def encoder_without_lines(encoder: ChatEncoder, prefixes: tuple[str, ...]) -> ChatEncoder:
    """Return an encoder that removes lines with these prefixes from system messages, and then calls
    ``encoder``.
    """

    def encode(messages: Sequence[ChatMessage], **options: Any) -> ChatPrompt:
        return encoder(without_lines(messages, prefixes), **options)

    return encode


def without_lines(
    messages: Sequence[ChatMessage], prefixes: tuple[str, ...]
) -> Sequence[ChatMessage]:
    """Return ``messages`` without the lines of system messages that start with a prefix.

    Empty lines after such a line are removed with it. A system message that contains nothing else
    is removed entirely, unless it is the only message.
    """
    kept: list[ChatMessage] = []
    for message in messages:
        if message.role not in _ROLES or not any(each in message.content for each in prefixes):
            kept.append(message)
            continue
        content = _without_lines(message.content, prefixes)
        if content or len(messages) == 1:
            kept.append(replace(message, content=content))
    return kept


def _without_lines(text: str, prefixes: tuple[str, ...]) -> str:
    lines: list[str] = []
    is_after_dropped = False
    for line in text.split("\n"):
        if line.startswith(prefixes):
            is_after_dropped = True
        elif not is_after_dropped or line.strip():
            is_after_dropped = False
            lines.append(line)
    return "\n".join(lines)
