"""Find the native files of a wheel that are loaded when its packages are imported.

This reads the Python sources without running them: what modules import when they are executed,
starting with the top-level packages. Imports within functions, and imports whose failure is
tolerated, are ignored. An extension module is assumed to import those that it names in full, as
Cython does, and another library to be opened by ``ctypes`` if an imported module names it.

The result may include too much: all branches that depend on anything but the platform are followed.
"""

from __future__ import annotations

import ast
import functools
import mmap
import posixpath
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Set
from dataclasses import dataclass, field

from potluck.portability.wheels.tolerated_imports import is_attempt, is_suppression

_MAX_MODULES = 4_000
_MAX_NESTING = 60
"""Limit of nested statements; deeper ones are ignored."""

_OPENERS = frozenset({"ctypes", "cffi"})
_OTHER_PLATFORMS = frozenset({"win32", "darwin", "cygwin", "nt", "Windows", "Darwin"})
_DOTTED = re.compile(rb"\0([\w\x80-\xff]+\.[\w.\x80-\xff]+)(?=\0)")
_EXTENSION = re.compile(r"(?P<stem>[^./]+)(\.[\w-]+)*\.so")
_LIBRARY = re.compile(r"(lib)?(?P<stem>.+?)\.so(\.\d+)*")

ReadSource = Callable[[str], bytes]
"""Return the bytes of a Python file. May raise ``ValueError`` if it is too large."""

FindNames = Callable[[str, Set[bytes]], Set[bytes]]
"""Return ``named_strings`` of a native file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedFiles:
    """The native files that are loaded when packages are imported. Of each tuple one file is
    loaded: it has more than one if a module has several files.

    ``required`` are those without which importing fails; None if unknown. ``attempted`` are these
    and those whose failure to load is tolerated.
    """

    required: tuple[tuple[str, ...], ...] | None = None
    attempted: tuple[tuple[str, ...], ...] = ()


def imported_files(
    sources: Collection[str],
    natives: Collection[str],
    read: ReadSource,
    find: FindNames,
    *,
    with_attempts: bool = False,
) -> ImportedFiles:
    """Return which of the ``natives`` are loaded when the packages are imported.

    ``sources`` are the paths of the Python files, and all paths are relative to ``site-packages``.
    ``read`` and ``find`` are called only for files that are imported. If importing the top-level
    packages loads none, the result is what importing all modules loads. It is empty if they only
    attempt to load some, and unknown if no module loads any. What is ``attempted`` is returned only
    ``with_attempts``.
    """
    modules = _modules(sources)
    extensions = _extensions(natives)
    top_level = [name for name in (*modules, *extensions) if "." not in name]

    @functools.cache
    def read_module(name: str) -> _Module:
        return _read_module(name, modules[name], read)

    def module(name: str) -> _Module | None:
        return read_module(name) if name in modules else None

    @functools.cache
    def loaded(*, of_all: bool, attempts: bool) -> tuple[tuple[str, ...], ...]:
        closure = _Closure(module, extensions, find, attempts)
        roots = modules if of_all else top_level
        closure.follow(name for name in roots if not _is_for_tests(name))
        found = {extensions[name] for name in closure.seen if name in extensions}
        if closure.opens_libraries:
            found |= {(path,) for path in _named(natives, closure.constants)}
        return tuple(sorted(found))

    if not natives or not top_level:
        return ImportedFiles()
    required = loaded(of_all=False, attempts=False) or loaded(of_all=True, attempts=False)
    attempted: tuple[tuple[str, ...], ...] = ()
    if with_attempts:
        attempted = loaded(of_all=False, attempts=True) or loaded(of_all=True, attempts=True)
    is_known = required or loaded(of_all=True, attempts=True)
    return ImportedFiles(required=required if is_known else None, attempted=attempted)


def _modules(sources: Iterable[str]) -> dict[str, str]:
    """Return the paths of Python modules by full name; packages without ``__init__`` have none."""
    modules = {}
    for path in sources:
        if path.startswith("../") or not path.endswith(".py"):
            continue
        name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        if all(part.isidentifier() for part in name.split(".")):
            modules[name] = path
    return modules


def _extensions(natives: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the paths of the files of possible extension modules, by full name.

    A module has several files if they are for several versions of Python, or if the package itself
    selects one: mpi4py has ``MPI.mpich.cpython-311-x86_64-linux-gnu.so`` and
    ``MPI.openmpi.cpython-311-x86_64-linux-gnu.so``.
    """
    extensions: dict[str, tuple[str, ...]] = {}
    for path in natives:
        folder, base = posixpath.split(path)
        match = _EXTENSION.fullmatch(base)
        if match is None or path.startswith("../"):
            continue
        parts = [*folder.split("/"), match["stem"]] if folder else [match["stem"]]
        if all(part.isidentifier() for part in parts):
            name = ".".join(parts)
            extensions[name] = tuple(sorted({*extensions.get(name, ()), path}))
    return extensions


def _named(natives: Iterable[str], constants: Collection[str]) -> Iterator[str]:
    """Return the libraries that a constant names: in full, up to ``.so``, or without ``lib`` too.

    A text with spaces is a message that mentions a library.
    """
    words = [each for each in constants if not re.search(r"\s", each)]
    joined = "\n".join(words)
    names = {posixpath.basename(each) for each in words}
    for path in natives:
        base = posixpath.basename(path)
        match = _LIBRARY.fullmatch(base)
        if match is not None and (
            base in joined or match["stem"] in words or base.partition(".so")[0] in names
        ):
            yield path


def _is_for_tests(name: str) -> bool:
    return any(part in {"tests", "test", "conftest", "testing"} for part in name.split("."))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Execution:
    """The imports of an executed module, and the texts that it may use. ``opens_libraries``: it
    imports a module that opens libraries.
    """

    imports: tuple[str, ...] = ()
    constants: frozenset[str] = frozenset()
    opens_libraries: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Module:
    """The execution of a module, without and with what may fail without an error."""

    required: _Execution = _Execution()
    attempted: _Execution = _Execution()


def _read_module(name: str, path: str, read: ReadSource) -> _Module:
    """Return a module; one that cannot be read imports nothing."""
    try:
        source = read(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in third-party strings
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _Module()
    package = name if path.endswith("/__init__.py") else name.rpartition(".")[0]
    required = list(_executed(tree.body, _MAX_NESTING, with_attempts=False))
    attempted = list(_executed(tree.body, _MAX_NESTING, with_attempts=True))
    tolerated = set(_tolerated(tree, required, attempted))
    texts = {
        node: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }

    def execution(nodes: Collection[ast.AST], constants: Iterable[str]) -> _Execution:
        return _Execution(
            imports=tuple(_targets(nodes, package)),
            constants=frozenset(constants),
            opens_libraries=any(_is_opener(each, package) for each in nodes),
        )

    return _Module(
        required=execution(
            required, (text for node, text in texts.items() if node not in tolerated)
        ),
        attempted=execution(attempted, texts.values()),
    )


@dataclass(slots=True)
class _Closure:
    """The modules that are imported when some modules are imported; ``with_attempts`` also those
    that may fail to import without an error.
    """

    module: Callable[[str], _Module | None]
    extensions: dict[str, tuple[str, ...]]
    find: FindNames
    with_attempts: bool
    seen: set[str] = field(default_factory=set)
    constants: set[str] = field(default_factory=set)
    opens_libraries: bool = False

    def follow(self, roots: Iterable[str]) -> None:
        waiting = list(roots)
        while waiting and len(self.seen) < _MAX_MODULES:
            name = waiting.pop()
            if name in self.seen:
                continue
            module = self.module(name)
            if module is None and name not in self.extensions:
                continue
            self.seen.add(name)
            parent = name.rpartition(".")[0]
            if parent:
                waiting.append(parent)
            waiting.extend(self._imports_of(module) if module else self._named_in(name))

    def _imports_of(self, module: _Module) -> tuple[str, ...]:
        execution = module.attempted if self.with_attempts else module.required
        self.constants |= execution.constants
        self.opens_libraries |= execution.opens_libraries
        return execution.imports

    def _named_in(self, name: str) -> Iterator[str]:
        """Return the other extension modules that one names."""
        others = {
            each.encode() for each in self.extensions if "." in each and each not in self.seen
        }
        if others:
            for path in self.extensions[name]:
                yield from map(bytes.decode, self.find(path, others))


def named_strings(data: bytes | mmap.mmap, names: Set[bytes]) -> Set[bytes]:
    """Return the dotted ``names`` that are whole C strings in ``data``, not parts of longer ones:
    docstrings name classes of modules that are not imported.
    """
    return {found[1] for found in _DOTTED.finditer(data) if found[1] in names}


def _targets(nodes: Iterable[ast.AST], package: str) -> Iterator[str]:
    """Yield the full names of what imports may import: modules, and names within them."""
    for node in nodes:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield alias.name
            case ast.ImportFrom(module=module, names=names, level=level):
                base = _absolute(module or "", level, package)
                yield base
                for alias in names:
                    yield f"{base}.{alias.name}"
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                level = len(name) - len(name.lstrip("."))
                yield _absolute(name.lstrip("."), level, package)


def _is_opener(node: ast.AST, package: str) -> bool:
    """Return whether a statement imports a module that opens libraries."""
    is_import = isinstance(node, ast.Import | ast.ImportFrom)
    return is_import and any(
        name.partition(".")[0] in _OPENERS for name in _targets([node], package)
    )


def _absolute(module: str, level: int, package: str) -> str:
    if not level:
        return module
    parts = package.split(".")
    base = ".".join(parts[: len(parts) - level + 1])
    return f"{base}.{module}" if module and base else module or base


def _executed(
    statements: Iterable[ast.stmt], depth: int, *, with_attempts: bool
) -> Iterator[ast.AST]:
    """Yield the statements that run when a module is executed, without the bodies of functions, and
    without imports whose failure is tolerated unless ``with_attempts``.
    """
    if depth == 0:
        return
    inner = functools.partial(_executed, depth=depth - 1, with_attempts=with_attempts)
    for statement in statements:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                continue
            case ast.If(test=test, body=body, orelse=orelse):
                if not _is_other_platform(test):
                    yield from inner(body)
                yield from inner(orelse)
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=finalbody):
                if with_attempts or not is_attempt(statement):
                    yield from inner(body)
                for handler in handlers:
                    yield from inner(handler.body)
                yield from inner((*orelse, *finalbody))
            case ast.With(items=items, body=body):
                if with_attempts or not any(is_suppression(each.context_expr) for each in items):
                    yield from inner(body)
            case ast.ClassDef(body=body):
                yield from inner(body)
            case ast.For(body=body, orelse=orelse) | ast.While(body=body, orelse=orelse):
                yield from inner((*body, *orelse))
            case ast.Import() | ast.ImportFrom():
                yield statement
            case _:
                yield from (each for each in ast.walk(statement) if isinstance(each, ast.Call))


def _tolerated(
    tree: ast.Module, required: Iterable[ast.AST], attempted: Iterable[ast.AST]
) -> Iterator[ast.AST]:
    """Yield what runs only where a failure is tolerated: calls among ``attempted`` that are not
    ``required``, and the functions of the module that are used only in such calls.
    """
    known = set(required)
    waiting: list[ast.AST] = [
        each for each in attempted if isinstance(each, ast.Call) and each not in known
    ]
    within: set[ast.AST] = set()
    while waiting:
        node = waiting.pop()
        if node not in within:  # calls may be nested
            within.add(node)
            waiting.extend(ast.iter_child_nodes(node))
    used = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node not in within
    }
    tried = {node.id for node in within if isinstance(node, ast.Name)} - used
    yield from within
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef) and statement.name in tried:
            yield from ast.walk(statement)


def _is_other_platform(test: ast.expr) -> bool:
    """Return whether a branch is for type checkers, for scripts, or for another operating
    system.
    """
    match test:
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return True
        case ast.Compare(
            left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[ast.Constant()]
        ):
            return True
        case ast.Compare(ops=[ast.Eq()], comparators=[ast.Constant(value=str(value))]):
            return value in _OTHER_PLATFORMS
        case ast.Call(
            func=ast.Attribute(attr="startswith"), args=[ast.Constant(value=str(value)), *_]
        ):
            return value in _OTHER_PLATFORMS or value == "win"
    return False
