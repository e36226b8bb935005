"""Decide whether a Python module tolerates that its imports fail.

A handler tolerates a failed import if the module is still imported after it: it ignores the error,
logs it, or uses a replacement. Only what the handler itself does is considered, not the functions
that it calls.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

_CATCH_ALL = frozenset({"Exception", "BaseException"})
_FAILURES = ("ImportError", "OSError")
"""The exceptions of importing an extension module, and of opening a library with ``ctypes``, if the
dynamic linker refuses it. A ``ModuleNotFoundError`` is raised only if there is no file.
"""

_COLLECTING = frozenset({"append", "add", "extend", "setdefault", "update"})
"""Methods that keep their arguments."""

_MAX_PARTS = 60
"""Only so many of the last parts of a module's name are compared; names have fewer than ten."""

_EXITS = frozenset({"exit", "_exit", "quit", "abort"})


def is_suppression(context: ast.expr) -> bool:
    """Return whether the expression of a ``with`` statement is ``contextlib.suppress``, for failed
    imports.
    """
    match context:
        case ast.Call(func=ast.Name(id="suppress") | ast.Attribute(attr="suppress"), args=caught):
            return any(_is_caught(failure, caught) for failure in _FAILURES)
    return False


def is_attempt(statement: ast.Try) -> bool:
    """Return whether imports in the body may fail.

    The handler that catches the failure decides. It tolerates it unless it raises, keeps the error
    for later, or imports the same module by another name.
    """
    for failure in _FAILURES:
        for handler in statement.handlers:
            if _catches(handler, failure):
                return not (
                    _raises(handler)
                    or _keeps_error(handler)
                    or _imports_same(statement.body, handler.body)
                )
    return False


def _catches(handler: ast.ExceptHandler, failure: str) -> bool:
    match handler.type:
        case None:
            return True
        case ast.Tuple(elts=caught):
            return _is_caught(failure, caught)
        case caught:
            return _is_caught(failure, [caught])


def _is_caught(failure: str, caught: Iterable[ast.expr]) -> bool:
    return not _names(caught).isdisjoint({failure} | _CATCH_ALL)


def _raises(handler: ast.ExceptHandler) -> bool:
    """Return whether a handler may raise or exit.

    What its own handlers raise does not count, since they run only if a replacement fails too.
    """
    return any(
        isinstance(each, ast.Raise) or (isinstance(each, ast.Call) and _called(each) in _EXITS)
        for each in _executed_nodes(handler.body, with_handlers=False)
    )


def _keeps_error(handler: ast.ExceptHandler) -> bool:
    """Return whether a handler adds the error to a collection, or assigns it to a variable that it
    does not read itself, as it would to log a message.
    """
    if handler.name is None:
        return False
    nodes = list(_executed_nodes(handler.body))
    read = {
        each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
    }
    for node in nodes:
        match node:
            case ast.Assign(targets=targets, value=value):
                if _reads(value, handler.name) and not _names(targets) & read:
                    return True
            case (
                ast.AnnAssign(target=target, value=ast.expr() as value)
                | ast.AugAssign(target=target, value=value)
            ):
                if _reads(value, handler.name) and not _names([target]) & read:
                    return True
            case ast.Call(args=arguments) if _called(node) in _COLLECTING:
                if any(_reads(each, handler.name) for each in arguments):
                    return True
    return False


def _imports_same(body: Iterable[ast.stmt], replacement: Iterable[ast.stmt]) -> bool:
    """Return whether both import one module: ``from . import _core``, or else ``import _core``."""
    first, second = _imported_names(body), _imported_names(replacement)
    return not (_ends(first).isdisjoint(second) and _ends(second).isdisjoint(first))


def _ends(names: Iterable[str]) -> set[str]:
    """Return the suffixes of dotted names: ``a.b.c``, ``b.c`` and ``c`` for ``a.b.c``."""
    named = (name.split(".")[-_MAX_PARTS:] for name in names)
    return {".".join(parts[start:]) for parts in named for start in range(len(parts))}


def _imported_names(statements: Iterable[ast.stmt]) -> set[str]:
    """Return the names of imported modules, without the dots of relative ones."""
    names: set[str] = set()
    for node in _executed_nodes(statements):
        match node:
            case ast.ImportFrom(module=str(module)):
                names.add(module)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names |= {alias.name for alias in aliases}
    return names


def _executed_nodes(
    statements: Iterable[ast.AST], *, with_handlers: bool = True
) -> Iterator[ast.AST]:
    """Yield statements and all that is in them, without functions and, unless ``with_handlers``,
    exception handlers.
    """
    waiting = list(statements)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.ExceptHandler) and not with_handlers:
            continue
        yield node
        waiting.extend(ast.iter_child_nodes(node))


def _names(expressions: Iterable[ast.expr]) -> set[str]:
    return {each.id for each in expressions if isinstance(each, ast.Name)}


def _called(call: ast.Call) -> str:
    """Return the name of a function or a method."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _reads(expression: ast.expr, name: str) -> bool:
    return any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(expression))
