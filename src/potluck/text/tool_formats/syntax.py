"""The interface of a wire format for tool calls, and the grammar of a model's outputs."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from potluck.errors import ParameterError
from potluck.grammars.build import combined, control_token, json_object, json_schema, literal
from potluck.grammars.limits import MAX_GRAMMAR_BYTES
from potluck.text.tool_formats.stream import CallStream, Steps
from potluck.types.output import ToolMode, ToolUse
from potluck.types.text import Tool

TEXT = "TEXT"
"""The terminal that matches any text. It does not match control tokens."""

SPACE = "SPACE"
"""The terminal that matches the white space that models write between parts."""

_MAX_CHARACTERS = 64 * MAX_GRAMMAR_BYTES
"""Limit on the texts and parts of a grammar, including equal ones, which are built all the same.
Schemas may refer to a client's definitions any number of times: the grammar of one body could take
gigabytes."""

_TERMINALS = f"{TEXT}: /(?s:.*)/\n{SPACE}: /[ \\n]{{0,6}}/\n"


class LarkSource:
    """Collects rules, and the grammars that they reference.

    ``control_tokens`` are the texts of the model's control tokens: if a text of the format contains
    one, the grammar requires the token, because its text as ordinary tokens is not the same.

    Raises ``ParameterError`` if texts, terminals and parts are far too large for a grammar.
    """

    def __init__(self, control_tokens: Collection[str]) -> None:
        longest_first = sorted(filter(None, control_tokens), key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._rules: list[str] = []
        self._parts: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._num_characters = 0

    def text(self, text: str) -> str:
        """Return the expression that matches exactly ``text``, which is not empty."""
        self._count(text)
        pieces = []
        position = 0
        for match in self._control.finditer(text):
            if match.start() > position:
                pieces.append(literal(text[position : match.start()]))
            pieces.append(control_token(match[0]))
            position = match.end()
        if position < len(text):
            pieces.append(literal(text[position:]))
        return " ".join(pieces)

    def until(self, mark: str, *, text: str = TEXT) -> str:
        """Return the expression of any text up to ``mark``, followed by the mark.

        ``text`` is the terminal of the text. A control token in the mark ends the text.
        """
        match = self._control.search(mark)
        if match is not None:
            return f"{text} {self.text(mark[match.start() :])}"
        return self.rule(f"{text} {literal(mark)}", options="[lazy]")

    def terminal(self, expression: str) -> str:
        """Add a terminal and return its name."""
        self._count(expression)
        key = f"terminal {expression}"
        if key not in self._names:
            self._names[key] = f"TERMINAL_{len(self._rules)}"
            self._rules.append(f"{self._names[key]}: {expression}\n")
        return self._names[key]

    def rule(self, expression: str, *, options: str = "") -> str:
        """Add a rule and return its name."""
        key = f"{options}: {expression}"
        if key not in self._names:
            self._names[key] = f"rule_{len(self._rules)}"
            self._rules.append(f"{self._names[key]}{options}: {expression}\n")
        return self._names[key]

    def named_rule(self, name: str, expression: str) -> None:
        """Add the rule ``name`` unless it exists; for recursive rules."""
        if name not in self._names:
            self._names[name] = name
            self._rules.append(f"{name}: {expression}\n")

    @property
    def num_rules(self) -> int:
        """Number of rules and terminals."""
        return len(self._rules)

    def reserved_rule(self, key: str) -> tuple[str, bool]:
        """Return the name of the rule for ``key``, and whether it is new and has to be defined."""
        if is_new := key not in self._names:
            self._names[key] = f"rule_{len(self._rules)}"
            self._rules.append("")
        return self._names[key], is_new

    def define(self, name: str, expression: str) -> None:
        """Define a rule that was reserved."""
        self._rules[int(name.removeprefix("rule_"))] = f"{name}: {expression}\n"

    def part(self, grammar: str) -> str:
        """Add a grammar built by ``potluck.grammars.build``, and return the reference to it."""
        self._count(grammar)
        key = f"@{grammar}"
        if key not in self._names:
            name = f"part_{len(self._parts)}"
            self._names[key] = f"@{name}"
            self._parts[name] = grammar
        return self._names[key]

    def grammar(self, start: str) -> str:
        """Return the grammar that starts with the expression ``start``."""
        source = f"start: {start}\n{''.join(self._rules)}{_TERMINALS}"
        return combined(source, self._parts)

    def _count(self, source: str) -> None:
        self._num_characters += len(source)
        if self._num_characters > _MAX_CHARACTERS:
            raise ParameterError("tools", "the schemas of the tools make up too large a grammar")


def either(expressions: Iterable[str]) -> str:
    """Return the expression that matches any of ``expressions``."""
    return "(" + " | ".join(f"({each})" for each in expressions) + ")"


def repeated(expression: str, *, separator: str = "", is_parallel: bool) -> str:
    """Return the expression of one ``expression``, or of one or more if ``is_parallel``."""
    if not is_parallel:
        return expression
    return f"{expression} ({separator} {expression})*"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSyntax(ABC):
    """The format of calls: parses them from an output, and provides their grammar.

    A *section* is one or more calls with the marks around them. It begins with one of ``openings``
    anywhere in an answer, or with one of ``bare_openings`` at the beginning of an answer, and
    ``closes`` may follow it. With ``repeats``, each of several calls is a section. In the grammar,
    a section begins with the first of ``openings``, or with nothing if ``writes_bare`` is set: then
    calls are the whole answer. ``name`` is that of ``--tool-format``, and ``control_texts`` are
    texts of the format that are control tokens in some models. Immutable.
    """

    name: str
    openings: tuple[str, ...] = ()
    bare_openings: tuple[str, ...] = ()
    closes: tuple[str, ...] = ()
    control_texts: tuple[str, ...] = ()
    repeats: bool = False
    writes_bare: bool = False

    @abstractmethod
    def read(self, stream: CallStream, opening: str, tools: Sequence[Tool]) -> Steps[bool]:
        """Read a section whose opening is held; return whether it is well-formed.

        If it is not, what is held becomes text.
        """

    @abstractmethod
    def section(self, lark: LarkSource, tools: Sequence[CallableTool], *, is_parallel: bool) -> str:
        """Return the expression of a section, without the first of ``openings`` before it.

        It contains one call, or several if ``is_parallel`` is set and the format allows several in
        a section.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class CallableTool:
    """A tool that a grammar allows. ``is_free``: the arguments may be any object.

    ``schema`` is the schema of the arguments, an object.
    """

    name: str
    is_free: bool
    schema: Mapping[str, object]

    def arguments(self, lark: LarkSource) -> str:
        """Return the expression of the arguments as JSON."""
        return lark.part(json_object() if self.is_free else json_schema(self.schema))


def callable_tools(tool_use: ToolUse) -> tuple[CallableTool, ...]:
    """Return the tools that may be called; strict ones have guaranteed arguments."""
    is_required = tool_use.mode is ToolMode.REQUIRED
    return tuple(
        CallableTool(
            name=tool.name,
            is_free=not (is_required or tool.is_strict),
            schema={"type": "object", **tool.parameters},
        )
        for tool in tool_use.tools
        if tool_use.name in (None, tool.name)
    )


def is_constrained(tool_use: ToolUse) -> bool:
    """Return whether a grammar determines how calls are written, rather than the model alone."""
    if tool_use.mode is ToolMode.NONE or not tool_use.tools:
        return False
    return not tool_use.is_parallel or not all(tool.is_free for tool in callable_tools(tool_use))
