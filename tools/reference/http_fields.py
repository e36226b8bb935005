"""Generate ``docs/reference/http-fields.md``: endpoints and fields, from the code."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, NoneType, UnionType

import msgspec

from potluck import api
from potluck.api import dialects
from potluck.api.bodies import OneOf, StrictObject, variants
from potluck.api.ignored_fields import InertFields

_HEAD = """\
# HTTP endpoints and fields

Generated from the code by `python -m tools.reference`. [The HTTP API](http-api.md) explains what
the fields do. *Supported* fields have their usual effect; *ignored* ones are checked and change
nothing; *restricted* ones are accepted only with the values listed. All others are refused.
"""


def page() -> str:
    """Return the text of the page."""
    lines = [_HEAD, "## Endpoints", "", "| method | path |", "|---|---|"]
    lines += [f"| `{method}` | `{path}` |" for path, method in sorted(set(_endpoints()))]
    for module in _modules():
        lines += _section(module)
    return "\n".join(lines) + "\n"


def _endpoints() -> Iterator[tuple[str, str]]:
    """Yield path and method of every ``Endpoint(…)`` in the code of the API."""
    for file in Path(api.__path__[0]).rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        names = {
            target.id: ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "Endpoint":
                given = {each.arg: each.value for each in node.keywords}
                method = _text(given["method"], names)
                yield _text(given["path"], names).replace(":path}", "}"), method


def _text(node: ast.expr, names: dict[str, str]) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            return names[name]
        case ast.JoinedStr(values=values):
            return "".join(_text(each, names) for each in values)
        case ast.FormattedValue(value=value):
            return _text(value, names)
    raise TypeError(f"the method or path of an endpoint is {ast.unparse(node)}")


def _modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(dialects.__path__, f"{dialects.__name__}."):
        yield importlib.import_module(found.name)


def _section(module: ModuleType) -> Iterator[str]:
    bodies = [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, StrictObject)
        and value.__module__ == module.__name__
        and value.__struct_fields__
    ]
    others = {name: each for name, each in vars(module).items() if isinstance(each, InertFields)}
    if module.__name__.endswith("bodies"):  # where the tables are used, not made
        others = {}
    if not bodies and not others:
        return
    if not module.__name__.endswith(("bodies", "ignored_fields")):
        return
    named = module.__name__.removeprefix(f"{dialects.__name__}.").replace(".", " / ")
    yield from ("", f"## {named}")
    for body in bodies:
        yield from ("", f"### {body.__name__}", "", _summary(body), "")
        yield from ("| field | type | required |", "|---|---|---|")
        for field in msgspec.structs.fields(body):
            required = "yes" if field.required else ""
            yield f"| `{field.name}` | {_shown(field.type)} | {required} |"
    for name, each in others.items():
        if each.harmless or each.neutral:
            yield from ("", f"### {name}", "", "| field | accepted values | |", "|---|---|---|")
            for key, harmless in each.harmless.items():
                yield f"| `{key}` | {harmless.expected} | ignored |"
            for key, values in each.neutral.items():
                shown = ", ".join(f"`{json.dumps(value)}`" for value in values)
                yield f"| `{key}` | {shown} | restricted |"


def _summary(body: type[StrictObject]) -> str:
    lines = inspect.cleandoc(body.__doc__ or "").partition("\n\n")[0]
    return lines.replace("``", "`")


def _shown(annotation: object) -> str:
    """Return a type in words."""
    origin, given = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return ", ".join(f"`{json.dumps(each)}`" for each in given)
    if origin in (typing.Union, UnionType):
        return " or ".join(dict.fromkeys(map(_shown, given)))
    if origin in (list, tuple):
        return f"list of {_shown(given[0])}" if given else "list"
    if annotation is NoneType:
        return "`null`"
    if inspect.isclass(annotation) and issubclass(annotation, StrictObject):
        return annotation.__name__
    if inspect.isclass(annotation) and issubclass(annotation, OneOf):
        return " or ".join(dict.fromkeys(map(_shown, variants(annotation).values())))
    words = {str: "text", int: "integer", float: "number", bool: "boolean", dict: "object"}
    kind = origin or annotation
    return words.get(kind, "any value") if inspect.isclass(kind) else "any value"
