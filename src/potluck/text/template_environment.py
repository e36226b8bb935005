"""Running a chat template: Jinja's sandbox with the additions that templates count on, and limits.

The additions are those of ``transformers`` (``raise_exception``, ``strftime_now``, a ``tojson``
that does not escape HTML, loop controls, ``generation`` blocks, ``trim_blocks`` and
``lstrip_blocks``); templates are written against them. The limits make a template that loops
without end, or builds a huge text, an error in a second or so. They stop mistakes and simple
attacks; a template can still spend memory in ways that are not counted (string filters), so a
model's files are to be trusted that far.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from potluck.errors import ChatTemplateError

_MAX_STEPS = 200_000
"""Loop rounds and calls of one rendering; a long chat needs about ten per message."""
_MAX_CHARACTERS = 16 * 1024 * 1024
"""Of the output, and of any text that an operator makes: far beyond any context."""
_MAX_INTEGER_BITS = 4096
"""Of the operands of ``**`` and ``*`` on numbers."""

_REPEAT_HINT = "the template is part of the model's files; look for a corrected one"


class _LimitError(TemplateError):
    """A rendering went beyond its limits."""


class _RaisedError(TemplateError):
    """The template called ``raise_exception``."""


def run_template(source: str, variables: Mapping[str, object], *, now: datetime) -> str:
    """Render ``source``. Raises ``ChatTemplateError`` for whatever goes wrong in it."""
    environment = _Environment(now)
    try:
        template = environment.compile_limited(source)
        return environment.render_limited(template, variables)
    except TemplateSyntaxError as error:
        raise ChatTemplateError(
            f"the chat template is broken at line {error.lineno}: {_one_line(error.message)}",
            hint=_REPEAT_HINT,
        ) from error
    except _RaisedError as error:
        raise ChatTemplateError(
            f"the chat template refuses the messages: {_one_line(error.message)}",
            hint="change the roles or the order of the messages",
        ) from error
    except (
        TemplateError,
        ArithmeticError,
        AttributeError,
        LookupError,
        MemoryError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise ChatTemplateError(
            f"the chat template failed: {_one_line(str(error) or type(error).__name__)}",
            hint=_REPEAT_HINT,
        ) from error


def _one_line(message: str | None) -> str:
    return " ".join((message or "").split())[:300]


class _GenerationBlocks(Extension):
    """``{% generation %}…{% endgeneration %}`` marks what to train on: no matter here."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's interface)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """Serves one rendering, since it counts."""

    intercepted_binops = frozenset(("*", "**", "+"))

    def __init__(self, now: datetime) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[LoopControlExtension, _GenerationBlocks],
        )
        self._steps_left = _MAX_STEPS
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = now.strftime
        self.globals["range"] = self._range
        self.globals["_counted"] = self._counted
        self.globals["_joined"] = self._joined

    def compile_limited(self, source: str) -> Callable[[Mapping[str, object]], Iterator[str]]:
        """Compile ``source`` so that each round of a loop and each joined text is counted."""
        tree = self.parse(source)
        for loop in tree.find_all(nodes.For):
            loop.iter = _call("_counted", [loop.iter])
        for joined in tree.find_all(nodes.Concat):
            joined.nodes = [_call("_joined", list(joined.nodes))]
        nodes.Node.set_environment(tree, self)
        template = self.template_class.from_code(self, self.compile(tree), self.globals)
        return template.generate

    def render_limited(
        self,
        generate: Callable[[Mapping[str, object]], Iterator[str]],
        variables: Mapping[str, object],
    ) -> str:
        """The whole output, if it is not too long."""
        pieces = []
        num_characters = 0
        for piece in generate(variables):
            num_characters += len(piece)
            if num_characters > _MAX_CHARACTERS:
                raise _LimitError("it writes too much")
            pieces.append(piece)
        return "".join(pieces)

    def call(self, context: Context, function: Any, *args: Any, **kwargs: Any) -> Any:
        self._spend(1)
        return super().call(context, function, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator in ("*", "**"):
            _check_product(operator, left, right)
        result = super().call_binop(context, operator, left, right)
        if hasattr(result, "__len__") and len(result) > _MAX_CHARACTERS:
            raise _LimitError("it builds too long a text")
        return result

    def _spend(self, steps: int) -> None:
        self._steps_left -= steps
        if self._steps_left < 0:
            raise _LimitError("it takes too many steps")

    def _range(self, *bounds: int) -> range:
        numbers = range(*bounds)
        self._spend(len(numbers))
        return numbers

    def _counted(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._spend(1)
            yield item

    def _joined(self, *parts: Any) -> str:
        texts = [str(part) for part in parts]
        if sum(map(len, texts)) > _MAX_CHARACTERS:
            raise _LimitError("it builds too long a text")
        return "".join(texts)


def _call(function: str, arguments: list[Any]) -> nodes.Expr:
    return nodes.Call(nodes.Name(function, "load"), arguments, [], None, None)


def _check_product(operator: str, left: Any, right: Any) -> None:
    for repeated, times in ((left, right), (right, left)):
        if hasattr(repeated, "__len__") and isinstance(times, int):
            if operator == "*" and len(repeated) * times > _MAX_CHARACTERS:
                raise _LimitError("it builds too long a text")
            return
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * right if operator == "**" else left.bit_length()
        if bits > _MAX_INTEGER_BITS:
            raise _LimitError("it computes too large a number")


def _raise_exception(message: str) -> NoReturn:
    raise _RaisedError(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
