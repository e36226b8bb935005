"""ELF files at the paths where they are installed, prepared for repeated linking.

A tree holds the objects of a wheel and of the wheels that are installed with it. The symbols that
they require of each other and of a host are numbered once, so that linking for a host operates on
sets of numbers. What follows from a tree alone, independent of the host, is cached in it.
"""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from potluck.portability.elf.defined_symbols import DefinedSymbol
from potluck.portability.elf.file import ElfFile, UndefinedSymbol, VersionNeed
from potluck.portability.hosts.host import Definition, Host, HostLibrary
from potluck.portability.memory import Memory

_MAX_SCOPES = 256
"""Limit of cached sets of libraries: a few dozen systems with several each."""

_ORIGIN_TOKENS = ("${ORIGIN}", "$ORIGIN")


class ObjectTree:
    """``objects`` by path; ``links`` are symbolic links among these paths.

    Only its caches change after it is created. Not thread-safe.
    """

    def __init__(
        self, objects: Mapping[str, ElfFile], links: Mapping[str, str] | None = None
    ) -> None:
        self.symbols: list[UndefinedSymbol] = []
        self._numbers: dict[UndefinedSymbol, int] = {}
        self.looked_up: Memory[SymbolLookup] = Memory(_MAX_SCOPES)
        self._by_prefixes: dict[tuple[str, ...], frozenset[int]] = {}
        self._objects = {path: TreeObject(path, elf, self) for path, elf in objects.items()}
        self._links = dict(links or {})

    def __iter__(self) -> Iterator[TreeObject]:
        return iter(self._objects.values())

    def at(self, path: str) -> TreeObject | None:
        """Return the object at a normalized path, following a link."""
        return self._objects.get(self._links.get(path, path))

    def named(self, name: str, machine: str) -> TreeObject | None:
        """Return any object for ``machine`` that has this file name or SONAME, at any path."""
        return next((each for each in self._by_name.get(name, ()) if each.machine == machine), None)

    def definers(self, number: int, machine: str) -> Iterator[TreeObject]:
        """Return the objects that define the symbol with this number."""
        for each in self._objects.values():
            if each.machine == machine and number in each.provided:
                yield each

    def number(self, symbol: UndefinedSymbol) -> int:
        """Return the number of a symbol that an object of the tree requires; used while the tree is
        built.
        """
        number = self._numbers.setdefault(symbol, len(self.symbols))
        if number == len(self.symbols):
            self.symbols.append(symbol)
        return number

    def numbers_of(self, prefixes: tuple[str, ...]) -> frozenset[int]:
        """Return the numbers of the symbols without a version whose names begin with one of
        these.
        """
        if prefixes not in self._by_prefixes:
            self._by_prefixes[prefixes] = frozenset(
                number
                for number, symbol in enumerate(self.symbols)
                if not symbol.version and symbol.name.startswith(prefixes)
            )
        return self._by_prefixes[prefixes]

    @cached_property
    def wanted(self) -> Mapping[str, tuple[int, ...]]:
        """Return the numbers of the symbols that have a name."""
        numbers: dict[str, list[int]] = defaultdict(list)
        for symbol, number in self._numbers.items():
            numbers[symbol.name].append(number)
        return {name: tuple(each) for name, each in numbers.items()}

    @cached_property
    def _by_name(self) -> Mapping[str, list[TreeObject]]:
        found: dict[str, list[TreeObject]] = defaultdict(list)
        for each in self._objects.values():
            names = {posixpath.basename(each.path), each.soname}
            for name in names - {""}:
                found[name].append(each)
        for link, target in self._links.items():
            if target in self._objects:
                found[posixpath.basename(link)].append(self._objects[target])
        return found


@dataclass(slots=True)
class SymbolLookup:
    """Which of a tree's symbols were looked up in the libraries ``scope``, and which are absent.

    The libraries are referenced here so that no others can have the same id.
    """

    scope: Sequence[HostLibrary]
    looked_up: set[int]
    absent: set[int]


class TreeObject:
    """An ELF file at its path in a tree."""

    def __init__(self, path: str, elf: ElfFile, tree: ObjectTree) -> None:
        self.path = path
        self.elf = elf
        self.machine = elf.machine
        self.soname = elf.soname
        self.needed = elf.needed
        self.is_executable = bool(elf.interpreter) and not elf.soname
        self.search_folders = tuple(_folders(elf.search_path, posixpath.dirname(path)))
        self.required = frozenset(
            tree.number(symbol) for symbol in elf.undefined if not symbol.is_weak
        )
        self.strong_needs = frozenset(need for need in elf.version_needs if not need.is_weak)
        self._tree = tree

    @cached_property
    def provided(self) -> frozenset[int]:
        """Return the numbers of the tree's required symbols that this object defines."""
        wanted = self._tree.wanted
        definitions: dict[str, list[DefinedSymbol]] = defaultdict(list)
        for each in self.elf.defined.named(wanted):
            definitions[each.name].append(each)
        symbols = self._tree.symbols
        return frozenset(
            number
            for name, found in definitions.items()
            for number in wanted[name]
            if _binds(symbols[number].version, found, self.elf)
        )

    def symbols_of(self, need: VersionNeed) -> tuple[str, ...]:
        """Return the names of the symbols that it requires with a version of a library."""
        return self._by_version.get((need.library, need.version), ())

    @cached_property
    def _by_version(self) -> Mapping[tuple[str, str], tuple[str, ...]]:
        names: dict[tuple[str, str], list[str]] = defaultdict(list)
        for symbol in self.elf.undefined:
            names[symbol.library, symbol.version].append(symbol.name)
        return {version: tuple(each) for version, each in names.items()}

    def expanded(self, needed: str) -> str:
        """Return a needed name that contains a slash, as a path in the tree."""
        return _expanded(needed, posixpath.dirname(self.path)) or needed


def _binds(version: str, definitions: Iterable[DefinedSymbol], elf: ElfFile) -> bool:
    """Return whether a reference with or without a version binds to one of a symbol's definitions.

    This follows ``check_match`` in glibc's elf/dl-lookup.c: a reference without a version binds to
    an unversioned definition, to that of the first version even if it is hidden, or to the default;
    one with a version binds to that version, or to an unversioned definition. An object without
    versions satisfies any reference.
    """
    if not version:
        oldest = elf.version_definitions[:1]
        return any(
            each.is_default or not each.version or each.version in oldest for each in definitions
        )
    if not elf.version_definitions:
        return True
    return any(
        each.version == version or (not each.version and each.is_default) for each in definitions
    )


def _folders(search_path: Iterable[str], origin: str) -> Iterator[str]:
    for entry in search_path:
        folder = _expanded(entry, origin)
        if folder is not None:
            yield folder


def _expanded(entry: str, origin: str) -> str | None:
    """Return a path with ``$ORIGIN`` expanded, as it is written in the tree.

    None for paths that depend on the working directory, or on the host's ``$LIB`` and
    ``$PLATFORM``.
    """
    token, _, rest = entry.partition("/")
    if token in _ORIGIN_TOKENS:
        path = posixpath.normpath(f"{origin or '.'}/{rest}")
        return "" if path == "." else path
    return posixpath.normpath(entry) if entry.startswith("/") and "$" not in entry else None


_LOADER_PREFIXES = ("ld-linux", "ld64.so")
"""Names of glibc's dynamic linkers; each process contains its own."""

_MUSL_ITSELF = ("libc.", "libpthread.", "librt.", "libm.", "libdl.", "libutil.", "libxnet.")
"""Names that musl's dynamic linker resolves to itself (its ``load_library``)."""


_MAX_SYSTEMS = 256
"""Limit of different systems in the cache: a fleet has a few dozen."""


class System:
    """Libraries that many hosts share. Two hosts with the same libraries have the same object."""

    def __init__(self, libraries: tuple[HostLibrary, ...]) -> None:
        self.libraries = libraries


_SYSTEMS: Memory[System] = Memory(_MAX_SYSTEMS)


class HostLibraries:
    """The libraries of a host, by the names under which they are needed; created once for many
    checks.

    A name refers to a described library, to one known only by its name (``is_present`` but no
    ``find``), or to nothing.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self._by_soname = {each.soname: each for each in host.libraries}
        self._by_path = {each.path: each for each in host.libraries}

    def find(self, soname: str) -> HostLibrary | None:
        """Return the described library that the loader finds by a bare name."""
        found = self._by_soname.get(soname)
        if found is None and self.host.libc == "musl" and soname.startswith(_MUSL_ITSELF):
            return next((each for each in self.host.libraries if _is_musl(each)), None)
        return found

    def find_at(self, path: str) -> HostLibrary | None:
        """Return the described library at an absolute path."""
        return self._by_path.get(path)

    def is_present(self, soname: str) -> bool:
        """Return whether the loader finds a library by this name, described or not."""
        return (
            soname in self._by_soname
            or soname in self.host.other_libraries
            or self.find(soname) is not None
            or self.is_loader(soname)
        )

    def is_loader(self, soname: str) -> bool:
        """Return whether it is the dynamic linker itself, which is always loaded."""
        return self.host.libc == "glibc" and is_glibc_loader(soname)

    def loaded_with(self, sonames: Iterable[str]) -> tuple[HostLibrary, ...]:
        """Return libraries, and what they need in turn, in search order."""
        found: dict[str, HostLibrary] = {}
        queue = list(sonames)
        for soname in queue:
            library = self.find(soname)
            if library is not None and library.soname not in found:
                found[library.soname] = library
                queue.extend(library.needed)
        return tuple(found.values())

    def has_version(self, library: HostLibrary, version: str) -> bool:
        """Return whether a library satisfies a version requirement: one that defines no versions
        satisfies all, and musl does not check versions.
        """
        is_met = version in library.versions or not library.versions
        return is_met or self.host.libc == "musl"

    @cached_property
    def system(self) -> System:
        """Return everything that identifies these libraries among those of other systems."""
        key = (
            self.identity(self.host.libraries),
            tuple((each.path, each.versions, each.needed) for each in self.host.libraries),
            self.host.other_libraries,
        )
        return _SYSTEMS.get(key, lambda: System(self.host.libraries))

    def identity(self, scope: Sequence[HostLibrary]) -> Hashable:
        """Return what ``definition`` depends on, as long as the libraries of ``scope`` are
        present.
        """
        return self.host.libc, tuple(
            (each.soname, bool(each.versions), id(each.symbols))
            if each.symbols is not None
            else (each.soname, each.versions)
            for each in scope
        )

    def definition(self, symbol: UndefinedSymbol, scope: Sequence[HostLibrary]) -> Definition:
        """Return whether any library of ``scope`` defines a symbol.

        If a library's symbols were not read, its versions decide for references with a version; for
        others the result is unknown.
        """
        version = "" if self.host.libc == "musl" else symbol.version
        is_unknown = False
        # Usually the named library has it, and the order does not change whether any has.
        for library in sorted(scope, key=lambda each: each.soname != symbol.library):
            if library.symbols is None:
                if version and version in library.versions:
                    return Definition.PRESENT
                is_unknown = is_unknown or not version
                continue
            wanted = version if library.versions else ""
            found = library.symbols.defines(symbol.name, wanted)
            if found is Definition.PRESENT:
                return found
            is_unknown = is_unknown or found is Definition.UNKNOWN
        return Definition.UNKNOWN if is_unknown else Definition.ABSENT


def is_glibc_loader(soname: str) -> bool:
    """Return whether it is the name of a dynamic linker of glibc."""
    return soname.startswith(_LOADER_PREFIXES)


def _is_musl(library: HostLibrary) -> bool:
    return library.soname.startswith(("libc.musl", "libc.so", "ld-musl"))
