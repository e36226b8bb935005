"""Remove lines of system messages that change with every request.

Claude Code, for example, starts its system prompt with a line that contains a checksum of the
request. The line is of no use to the model, and a prompt that differs in its first line shares
nothing with the prefix cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from potluck.types.text import ChatEncoder, ChatEnding, ChatMessage, ChatPrompt, Tool

KNOWN_CHANGING_LINES = ("x-anthropic-billing-header:",)
"""Known beginnings of such lines: Claude Code's."""

_ROLES = frozenset({"system", "developer"})


@dataclass(frozen=True, slots=True, kw_only=True)
class WithoutLines:
    """A ``ChatEncoder`` that removes lines of system messages with certain prefixes."""

    encoder: ChatEncoder
    prefixes: tuple[str, ...]

    def __call__(
        self,
        messages: Sequence[ChatMessage],
        *,
        ending: ChatEnding = ChatEnding.NEW_TURN,
        reasoning_effort: str | None = None,
        thinks: bool | None = None,
        tools: Sequence[Tool] = (),
        template_variables: Mapping[str, object] | None = None,
    ) -> ChatPrompt:
        """See ``ChatEncoder``."""
        return self.encoder(
            without_lines(messages, self.prefixes),
            ending=ending,
            reasoning_effort=reasoning_effort,
            thinks=thinks,
            tools=tools,
            template_variables=template_variables,
        )


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
