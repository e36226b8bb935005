"""Run a chat template: Jinja's sandbox with limits, and the additions that templates rely on.

The additions are those of ``transformers`` (``raise_exception``, ``strftime_now``, a ``tojson``
that does not escape HTML, loop controls, ``generation`` blocks, ``trim_blocks`` and
``lstrip_blocks``), which templates rely on. Because of the limits, a template that loops forever or
builds a huge text fails within about a second. They protect against mistakes and simple attacks; a
template can still use memory in ways that are not counted (string filters), so a model's files have
to be trusted to that extent.
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

from potluck.errors import ChatTemplateError, TemplateLimitError

_MIN_STEPS = 200_000
_MAX_STEPS = 3_000_000
"""Loop iterations and calls allowed per rendering, which take up to 2 s. A long chat needs about
ten per message in most templates. Some iterate over all other messages for each (Gemma 4, Command
A), which is 0.9 per pair; so a chat is allowed ``_STEPS_PER_PAIR``, but within these bounds."""
_STEPS_PER_PAIR = 2
_MAX_CHARACTERS = 16 * 1024 * 1024
"""Maximum length of the output, and of any string that an operator builds: far beyond any context.
"""
_MAX_INTEGER_BITS = 4096
"""Maximum operand of operators on numbers, and maximum result of ``**``."""

_TO_ESCAPE = re.compile("[^\x00-\x7f\U00020000-\U0002a6d6]")
"""Non-ASCII characters except rare ideographs, which stand for others (``control_tokens``)."""

_DICT_NAMES = frozenset(dir(dict))

_REPEAT_HINT = "the template is part of the model's files; look for a corrected version"


class _LimitError(TemplateError):
    """A rendering exceeded its limits."""


class _RaisedError(TemplateError):
    """The template called ``raise_exception``."""


def run_template(source: str, variables: Mapping[str, object], *, now: datetime) -> str:
    """Render ``source``. Raises ``ChatTemplateError`` for any error in it."""
    messages = variables.get("messages")
    num_messages = len(messages) if isinstance(messages, list) else 0
    try:
        return _Environment(now, num_messages).render_limited(_compiled(source), variables)
    except TemplateSyntaxError as error:
        raise ChatTemplateError(
            f"the chat template has a syntax error at line {error.lineno}: "
            f"{_one_line(error.message)}",
            hint=_REPEAT_HINT,
        ) from error
    except _RaisedError as error:
        raise ChatTemplateError(
            f"the chat template rejects the messages: {_one_line(error.message)}",
            hint="change the roles or the order of the messages",
        ) from error
    except _LimitError as error:
        raise TemplateLimitError(
            f"the chat template failed: {_one_line(error.message)}", hint=_REPEAT_HINT
        ) from error
    except (
        TemplateError,
        ArithmeticError,
        AttributeError,
        LookupError,
        MemoryError,
        RuntimeError,
        SyntaxError,
        TypeError,
        ValueError,
    ) as error:
        raise ChatTemplateError(
            f"the chat template failed: {_one_line(str(error) or type(error).__name__)}",
            hint=_REPEAT_HINT,
        ) from error


@lru_cache(maxsize=8)
def free_variables(source: str) -> frozenset[str]:
    """Return the variables that a template reads without setting, or none if it is broken."""
    try:
        tree = _Environment(datetime.now().astimezone()).parse(source)
        return frozenset(meta.find_undeclared_variables(tree))
    except (TemplateError, RecursionError, ValueError):
        return frozenset()


def _one_line(message: str | None) -> str:
    return " ".join((message or "").split())[:300]


class _GenerationBlocks(Extension):
    """Supports ``{% generation %}…{% endgeneration %}``, which marks training data and has no
    effect.

    Variables set within such a block are undefined after it, as in ``transformers``.
    """

    tags = {"generation"}  # noqa: RUF012 (Jinja's interface)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _Namespace(jinja2.utils.Namespace):
    """A ``namespace`` that rejects names which reach into Python's objects."""

    def __init__(*args: Any, **names: Any) -> None:
        self, *rest = args  # so that an attribute can be named ``self``
        attributes = dict(*rest, **names)
        for name in attributes:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


class _Environment(ImmutableSandboxedEnvironment):
    """The environment of one rendering, because it counts steps."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

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
        del self.globals["lipsum"]  # one call writes texts of any length

    def compile_limited(self, source: str) -> CodeType:
        """Compile ``source`` with code that counts loop iterations and string concatenations."""
        tree = self.parse(source)
        for loop in tree.find_all(nodes.For):
            loop.iter = _call("_counted", [loop.iter])
        for joined in tree.find_all(nodes.Concat):
            joined.nodes = [_call("_joined", list(joined.nodes))]
        nodes.Node.set_environment(tree, self)
        return self.compile(tree)

    def render_limited(self, code: CodeType, variables: Mapping[str, object]) -> str:
        """Render the whole output; raise an error if it is too long."""
        template = self.template_class.from_code(self, code, self.globals)
        pieces = []
        num_characters = 0
        for piece in template.generate(variables):
            num_characters += len(piece)
            if num_characters > _MAX_CHARACTERS:
                raise _LimitError("its output is too long")
            pieces.append(piece)
        return "".join(pieces)

    # Positional, so that a template can name an argument ``context`` or ``function``.
    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        self._spend(1)
        return super().call(context, function, *args, **kwargs)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Allow ``list.append`` as well: it works in llama.cpp, and templates in GGUF files
        (Kimi K2) collect results with it.
        """
        is_append = attr == "append" and type(obj) is list
        return is_append or super().is_safe_attribute(obj, attr, value)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Like Jinja's, with a fast path for safe types: templates do little else."""
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
        _check_operands(operator, left, right)
        result = super().call_binop(context, operator, left, right)
        if hasattr(result, "__len__") and len(result) > _MAX_CHARACTERS:
            raise _LimitError("it builds a string that is too long")
        return result

    def _spend(self, steps: int) -> None:
        self._steps_left -= steps
        if self._steps_left < 0:
            raise _LimitError("it executes too many steps")

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
            raise _LimitError("it builds a string that is too long")
        return "".join(texts)


@lru_cache(maxsize=8)  # a large template takes 50 ms, and a gateway has only a few models
def _compiled(source: str) -> CodeType:
    return _Environment(datetime.now().astimezone()).compile_limited(source)


def _call(function: str, arguments: list[Any]) -> nodes.Expr:
    return nodes.Call(nodes.Name(function, "load"), arguments, [], None, None)


def _check_operands(operator: str, left: Any, right: Any) -> None:
    for repeated, times in ((left, right), (right, left)):
        if hasattr(repeated, "__len__") and isinstance(times, int):
            if operator == "*" and len(repeated) * times > _MAX_CHARACTERS:
                raise _LimitError("it builds a string that is too long")
            return
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * right if operator == "**" else left.bit_length()
        if max(bits, right.bit_length()) > _MAX_INTEGER_BITS:
            raise _LimitError("it computes a number that is too large")


def _raise_exception(message: str) -> NoReturn:
    raise _RaisedError(str(message))


def _make_dict(*items: Any, **names: Any) -> dict[Any, Any]:
    return dict(*items, **names)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot have the attribute {name}")


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
