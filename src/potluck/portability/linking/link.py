"""Simulate what the dynamic linker does when a file is opened on a host.

The model is glibc's ``dlopen(path, RTLD_NOW)``, with which Python opens extension modules and
``ctypes`` libraries (elf/dl-load.c, dl-deps.c, dl-version.c, dl-lookup.c): needed libraries are
mapped breadth first, versions are checked in everything that was mapped, then every symbol that is
not weak must be bound. This module knows nothing about wheels, tags or the meaning of findings.

Not simulated: LD_LIBRARY_PATH and LD_PRELOAD, filters (DT_FILTER), audit modules, and how host
libraries bind to each other, which is assumed to work.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from potluck.portability.elf.file import UndefinedSymbol, VersionNeed
from potluck.portability.hosts.host import Definition, Host, HostLibrary
from potluck.portability.linking.object_tree import (
    HostLibraries,
    ObjectTree,
    SymbolLookup,
    TreeObject,
)

_PYTHON_LIBRARIES = ("libm.so.6", "libdl.so.2", "libpthread.so.0", "libutil.so.1", "libc.so.6")
"""The libraries in the Python interpreter's global scope, as far as the host has them: those that
CPython links with on glibc (LIBS and LIBM of its configure.ac); distributions may add more.
"""

_PYTHON_PREFIXES: tuple[str, ...] = ("Py", "_Py")
"""The interpreter itself defines symbols without a version that begin with one of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingLibrary:
    """A needed library that is not found. ``path_in_tree`` is where the tree has a library with its
    name, outside the linker's search path; ``sought`` are the directories that were searched in
    addition to the host's.
    """

    library: str
    needed_by: str
    sought: tuple[str, ...]
    path_in_tree: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingVersion:
    """A version that a library does not define, and the symbols that require it.

    The library is the host's, unless ``path_in_tree`` says where it is. If it is not loaded at all,
    glibc aborts the process (``Assertion `needed != NULL' failed``).
    """

    library: str
    version: str
    needed_by: str
    is_loaded: bool
    path_in_tree: str
    symbols: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingSymbol:
    """A symbol that nothing in scope defines. ``path_in_tree`` is an object of the tree
    that does.
    """

    symbol: UndefinedSymbol
    needed_by: str
    path_in_tree: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The result of opening the object ``path``, including all objects that are loaded with it.

    ``presumed`` are libraries of which the host's description has only the names: they are assumed
    to provide what is required of them. ``mapped`` are the paths of the tree's objects that are
    loaded.
    """

    path: str
    mapped: tuple[str, ...]
    missing_libraries: tuple[MissingLibrary, ...]
    missing_versions: tuple[MissingVersion, ...]
    missing_symbols: tuple[MissingSymbol, ...]
    presumed: frozenset[str]

    @property
    def is_opened(self) -> bool:
        """Whether the linker can open it in a process that has opened nothing else before."""
        return not (self.missing_libraries or self.missing_versions or self.missing_symbols)


class Linker:
    """The dynamic linker of a host. One instance serves many trees; linking does not change it."""

    def __init__(self, host: Host) -> None:
        self.libraries = HostLibraries(host)
        self._before = self.libraries.loaded_with(_PYTHON_LIBRARIES)

    def link(self, tree: ObjectTree, roots: Iterable[TreeObject]) -> Iterator[Link]:
        """Open each of ``roots``, all for the host's machine, in a separate Python process.

        Programs are started instead: nothing is loaded before them. Beyond its arguments, the
        result depends on the host's ``system`` alone.
        """
        for root in roots:
            is_program = root.is_executable
            opening = _Opening(self.libraries, tree, root, () if is_program else self._before)
            opening.map_all()
            prefixes = () if is_program else _PYTHON_PREFIXES
            missing_versions = tuple(opening.missing_versions())
            yield Link(
                path=root.path,
                mapped=tuple(each.path for each in opening.objects),
                missing_libraries=tuple(opening.missing_libraries),
                missing_versions=missing_versions,
                missing_symbols=tuple(opening.missing_symbols(prefixes, missing_versions)),
                presumed=frozenset(opening.presumed),
            )


@dataclass(frozen=True, slots=True)
class _Mapped:
    """An object that was mapped because ``loader`` needs it; the root has no loader."""

    item: TreeObject | HostLibrary
    loader: _Mapped | None


class _Opening:
    """One opening: what is mapped, in order, and under which names."""

    def __init__(
        self,
        host: HostLibraries,
        tree: ObjectTree,
        root: TreeObject,
        before: tuple[HostLibrary, ...],
    ) -> None:
        self.objects = [root]
        self.presumed: set[str] = set()
        self.missing_libraries: list[MissingLibrary] = []
        self._root = root
        self._before = before
        self._libraries: list[HostLibrary] = []
        self._absent: set[str] = set()
        self._host = host
        self._tree = tree
        self._names: dict[str, TreeObject | HostLibrary] = {each.soname: each for each in before}
        if root.soname:
            self._names.setdefault(root.soname, root)
        self._seen = {id(root), *(id(each) for each in before)}

    def map_all(self) -> None:
        """Map what the root needs, recursively, breadth first."""
        queue = [_Mapped(self._root, None)]
        for mapped in queue:
            for name in mapped.item.needed:
                if name in self._names or name in self.presumed or name in self._absent:
                    continue
                found = self._search(name, mapped) or self._without(name, mapped)
                if found is None:
                    continue
                self._names[name] = found
                self._names.setdefault(found.soname or name, found)
                if id(found) in self._seen:
                    continue
                self._seen.add(id(found))
                queue.append(_Mapped(found, mapped))
                if isinstance(found, TreeObject):
                    self.objects.append(found)
                else:
                    self._libraries.append(found)

    def missing_versions(self) -> Iterator[MissingVersion]:
        """Return the required versions that the mapped libraries do not define."""
        needs = frozenset().union(*(each.strong_needs for each in self.objects))
        missing = {need for need in needs if not self._is_met(need)}
        if not missing:
            return
        for each in self.objects:
            for need in each.elf.version_needs:
                if need not in missing:
                    continue
                found = self._names.get(need.library)
                yield MissingVersion(
                    library=need.library,
                    version=need.version,
                    needed_by=each.path,
                    is_loaded=found is not None,
                    path_in_tree=found.path if isinstance(found, TreeObject) else "",
                    symbols=each.symbols_of(need),
                )

    def missing_symbols(
        self, own_prefixes: tuple[str, ...], versions: Iterable[MissingVersion]
    ) -> Iterator[MissingSymbol]:
        """Return the symbols that nothing defines, except those whose version is missing
        altogether. The process itself defines those that begin with ``own_prefixes``.

        If a library is missing, symbols that it may define are ignored.
        """
        required = frozenset().union(*(each.required for each in self.objects))
        provided = frozenset().union(*(each.provided for each in self.objects))
        left = required - provided - self._tree.numbers_of(own_prefixes)
        left = self._undefined(left, self._before)
        left = self._undefined(left, tuple(self._libraries))
        if not left:
            return
        without = {(each.library, each.version) for each in versions}
        unseen = self.presumed | self._absent
        for each in self.objects:
            for number in sorted(left & each.required):
                symbol = self._tree.symbols[number]
                may_be_unseen = unseen and (not symbol.version or symbol.library in unseen)
                if may_be_unseen or (symbol.library, symbol.version) in without:
                    continue
                definer = next(self._tree.definers(number, each.machine), None)
                yield MissingSymbol(
                    symbol=symbol,
                    needed_by=each.path,
                    path_in_tree="" if definer is None else definer.path,
                )

    def _undefined(self, numbers: frozenset[int], scope: tuple[HostLibrary, ...]) -> frozenset[int]:
        """Return those that no library of ``scope`` defines or may define.

        Results are cached with the tree: hosts that run the same system share its libraries.
        """
        if not numbers or not scope:
            return numbers
        memory = self._tree.looked_up.get(
            self._host.identity(scope), lambda: SymbolLookup(scope, set(), set())
        )
        for number in numbers - memory.looked_up:
            found = self._host.definition(self._tree.symbols[number], scope)
            if found is Definition.ABSENT:
                memory.absent.add(number)
        memory.looked_up |= numbers
        return numbers & memory.absent

    def _is_met(self, need: VersionNeed) -> bool:
        found = self._names.get(need.library)
        if found is None:
            # For a library that is not listed as needed, glibc's assertion fails.
            is_excused = need.library in self.presumed or need.library in self._absent
            return is_excused or self._host.is_loader(need.library)
        if isinstance(found, TreeObject):
            defined = found.elf.version_definitions
            return not defined or need.version in defined
        return self._host.has_version(found, need.version)

    def _search(self, name: str, mapped: _Mapped) -> TreeObject | HostLibrary | None:
        if "/" in name:
            item = mapped.item
            return self._at(item.expanded(name) if isinstance(item, TreeObject) else name)
        for folder in _folders(mapped):
            found = self._at(f"{folder}/{name}" if folder else name)
            if found is not None:
                return found
        return self._host.find(name)

    def _at(self, path: str) -> TreeObject | HostLibrary | None:
        """Return the object at a path; the linker ignores those for another machine."""
        if path.startswith("/"):
            return self._host.find_at(path)
        found = self._tree.at(path)
        return found if found is not None and found.machine == self._root.machine else None

    def _without(self, name: str, mapped: _Mapped) -> TreeObject | None:
        """Record a library that is not found. If it is elsewhere in the tree, linking continues
        with it: a package can open it first.
        """
        if self._host.is_present(name):
            self.presumed.add(name)
            return None
        if not isinstance(mapped.item, TreeObject):  # the host's description does not go further
            self.presumed.add(name)
            return None
        elsewhere = self._tree.named(posixpath.basename(name), self._root.machine)
        self.missing_libraries.append(
            MissingLibrary(
                library=name,
                needed_by=mapped.item.path,
                sought=tuple(_folders(mapped)),
                path_in_tree="" if elsewhere is None else elsewhere.path,
            )
        )
        if elsewhere is None:
            self._absent.add(name)
        return elsewhere


def _folders(mapped: _Mapped) -> Iterator[str]:
    """Return where the linker looks before the host's own directories: in an object's RUNPATH, or
    if it has none in its RPATH and those of all objects that led to it.
    """
    item = mapped.item
    if isinstance(item, TreeObject) and item.elf.search_path and not item.elf.is_rpath:
        yield from item.search_folders
        return
    each: _Mapped | None = mapped
    while each is not None:
        if isinstance(each.item, TreeObject) and each.item.elf.is_rpath:
            yield from each.item.search_folders
        each = each.loader
