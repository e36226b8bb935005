"""Which format a model writes calls in, by its chat template."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from potluck.errors import ParameterError
from potluck.text.reasoning import reasoning_format
from potluck.text.tool_formats.chat_format import ChatFormat
from potluck.text.tool_formats.hermes import HERMES
from potluck.text.tool_formats.syntax import ToolSyntax
from potluck.types.output import OutputFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sign:
    """Texts that the templates of a format contain: all of ``texts``."""

    texts: tuple[str, ...]
    syntax: ToolSyntax


_SIGNS = (_Sign(texts=("<tool_call>",), syntax=HERMES),)

_DEFAULT = HERMES

FORMATS: dict[str, ToolSyntax] = {syntax.name: syntax for syntax in (HERMES,)}
"""All formats by name."""


def choose_output_format(
    template_source: str, special_tokens: Collection[str], *, tool_format: str | None = None
) -> OutputFormat:
    """Return how a model with this chat template writes what it thinks and calls.

    ``template_source`` is that of the template for chats with tools. ``special_tokens`` are the
    texts of the model's control tokens. ``tool_format`` is the name of the format of tool calls,
    where the template is not to decide. Raises ``ParameterError`` if there is none of that name.
    """
    syntax = _syntax_of(template_source) if tool_format is None else syntax_named(tool_format)
    return ChatFormat(
        syntax=syntax,
        reasoning=reasoning_format(template_source),
        control_tokens=frozenset(special_tokens),
    )


def syntax_named(name: str) -> ToolSyntax:
    """Return the format ``name``. Raise ``ParameterError`` if there is none."""
    if name not in FORMATS:
        raise ParameterError(
            "tool_format",
            f"there is no format of tool calls named {name!r}",
            hint=f"formats are {', '.join(sorted(FORMATS))}",
        )
    return FORMATS[name]


def _syntax_of(template_source: str) -> ToolSyntax:
    for sign in _SIGNS:
        if all(text in template_source for text in sign.texts):
            return sign.syntax
    return _DEFAULT
