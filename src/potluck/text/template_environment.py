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
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from types import CodeType
from typing import Any, NoReturn

import jinja2.utils
from jinja2 import TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from potluck.errors import ChatTemplateError

_MIN_STEPS = 200_000
_MAX_STEPS = 3_000_000
"""Loop rounds and calls of one rendering, which take up to 2 s. A long chat needs about ten per
message in most templates. Some look through all other messages for each (Gemma 4, Command A),
which is 0.9 per pair; so a chat may take ``_STEPS_PER_PAIR``, but within these bounds."""
_STEPS_PER_PAIR = 2
_MAX_CHARACTERS = 16 * 1024 * 1024
"""Of the output, and of any text that an operator makes: far beyond any context."""
_MAX_INTEGER_BITS = 4096
"""Of the operands of ``**`` and ``*`` on numbers."""

_TO_ESCAPE = re.compile("[^\x00-\x7f\U00020000-\U0002a6d6]")
"""What is not ASCII, but for rare ideographs, which stand for other characters (``shield``)."""

_DICT_NAMES = frozenset(dir(dict))

_REPEAT_HINT = "the template is part of the model's files; look for a corrected one"


class _LimitError(TemplateError):
    """A rendering went beyond its limits."""


class _RaisedError(TemplateError):
    """The template called ``raise_exception``."""


def run_template(source: str, variables: Mapping[str, object], *, now: datetime) -> str:
    """Render ``source``. Raises ``ChatTemplateError`` for whatever goes wrong in it."""
    messages = variables.get("messages")
    num_messages = len(messages) if isinstance(messages, list) else 0
    try:
        return _Environment(now, num_messages).render_limited(_compiled(source), variables)
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


@lru_cache(maxsize=8)
def free_variables(source: str) -> frozenset[str]:
    """Return the variables that a template reads and does not set, or none if it is broken."""
    try:
        tree = _Environment(datetime.now().astimezone()).parse(source)
        return frozenset(meta.find_undeclared_variables(tree))
    except (TemplateError, RecursionError):
        return frozenset()


def _one_line(message: str | None) -> str:
    return " ".join((message or "").split())[:300]


class _GenerationBlocks(Extension):
    """``{% generation %}…{% endgeneration %}`` marks what to train on: no matter here.

    Variables set within such a block are unknown after it, as in ``transformers``.
    """

    tags = {"generation"}  # noqa: RUF012 (Jinja's interface)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _Namespace(jinja2.utils.Namespace):
    """A ``namespace`` without names that reach into Python's objects."""

    def __init__(*args: Any, **names: Any) -> None:
        self, *rest = args  # so that ``self`` may be a name
        attributes = dict(*rest, **names)
        for name in attributes:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


class _Environment(ImmutableSandboxedEnvironment):
    """Serves one rendering, since it counts."""

    intercepted_binops = frozenset(("*", "**", "+"))

    def __init__(self, now: datetime, num_messages: int = 0) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[LoopControlExtension, _GenerationBlocks],
        )
        self._steps_left = min(max(_MIN_STEPS, _STEPS_PER_PAIR * num_messages**2), _MAX_STEPS)
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = now.strftime
        self.globals["range"] = self._range
        self.globals["namespace"] = _Namespace
        self.globals["dict"] = _make_dict
        self.globals["_counted"] = self._counted
        self.globals["_joined"] = self._joined

    def compile_limited(self, source: str) -> CodeType:
        """Compile ``source`` so that each round of a loop and each joined text is counted."""
        tree = self.parse(source)
        for loop in tree.find_all(nodes.For):
            loop.iter = _call("_counted", [loop.iter])
        for joined in tree.find_all(nodes.Concat):
            joined.nodes = [_call("_joined", list(joined.nodes))]
        nodes.Node.set_environment(tree, self)
        return self.compile(tree)

    def render_limited(self, code: CodeType, variables: Mapping[str, object]) -> str:
        """The whole output, if it is not too long."""
        template = self.template_class.from_code(self, code, self.globals)
        pieces = []
        num_characters = 0
        for piece in template.generate(variables):
            num_characters += len(piece)
            if num_characters > _MAX_CHARACTERS:
                raise _LimitError("it writes too much")
            pieces.append(piece)
        return "".join(pieces)

    def call(self, context: Context, function: Any, *args: Any, **kwargs: Any) -> Any:
        self._spend(1)
        return super().call(context, function, *args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """As Jinja's, and quickly where nothing is unsafe: templates do little else."""
        kind = type(obj)
        if kind is dict:
            if attribute in obj and attribute not in _DICT_NAMES:
                return obj[attribute]
        elif kind is _Namespace or kind is LoopContext:
            try:
                if not attribute.startswith("_"):
                    return getattr(obj, attribute)
            except AttributeError:
                pass
        return super().getattr(obj, attribute)

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


@lru_cache(maxsize=8)  # a large template takes 50 ms, and a gateway has a few models
def _compiled(source: str) -> CodeType:
    return _Environment(datetime.now().astimezone()).compile_limited(source)


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


def _make_dict(*items: Any, **names: Any) -> dict[Any, Any]:
    return dict(*items, **names)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace has no name like {name}")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    text = json.dumps(
        value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return _TO_ESCAPE.sub(_escape, text) if ensure_ascii else text


def _escape(character: re.Match[str]) -> str:
    return json.dumps(character[0])[1:-1]
