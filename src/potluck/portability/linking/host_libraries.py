"""A host's libraries, as its dynamic linker finds them and binds symbols in them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import cached_property

from potluck.portability.elf.file import UndefinedSymbol
from potluck.portability.hosts.host import Definition, Host, HostLibrary
from potluck.portability.memory import Memory

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

    A name refers to a described library, to one of which only the name is known (``is_present`` but
    no ``find``), or to nothing.
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
