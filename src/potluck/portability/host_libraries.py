"""A host's libraries, as its dynamic linker finds them and binds symbols to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from potluck.portability.elf_file import UndefinedSymbol
from potluck.portability.host import Definition, Host, HostLibrary

_LOADER_PREFIXES = ("ld-linux", "ld64.so")
"""How glibc's dynamic linkers are called; each process has its own in it."""

_MUSL_ITSELF = ("libc.", "libpthread.", "librt.", "libm.", "libdl.", "libutil.", "libxnet.")
"""What musl's dynamic linker takes for itself (its ``load_library``)."""


class HostLibraries:
    """The libraries of a host by the names that they are needed by. Made once for many checks.

    A name stands for a described library, for one of which no more than the name is known
    (``is_present`` and no ``find``), or for nothing.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self._by_soname = {each.soname: each for each in host.libraries}
        self._by_path = {each.path: each for each in host.libraries}

    def find(self, soname: str) -> HostLibrary | None:
        """The described library that the loader finds by a bare name."""
        found = self._by_soname.get(soname)
        if found is None and self.host.libc == "musl" and soname.startswith(_MUSL_ITSELF):
            return next((each for each in self.host.libraries if _is_musl(each)), None)
        return found

    def find_at(self, path: str) -> HostLibrary | None:
        """The described library at an absolute path."""
        return self._by_path.get(path)

    def is_present(self, soname: str) -> bool:
        """Whether the loader finds a library by this name, described or not."""
        return (
            soname in self._by_soname
            or soname in self.host.other_libraries
            or self.find(soname) is not None
            or self.is_loader(soname)
        )

    def is_loader(self, soname: str) -> bool:
        """Whether it is the dynamic linker itself, which is there whoever needs it."""
        return self.host.libc == "glibc" and is_glibc_loader(soname)

    def loaded_with(self, sonames: Iterable[str]) -> tuple[HostLibrary, ...]:
        """Libraries, and what they need in turn, in the order in which they are searched."""
        found: dict[str, HostLibrary] = {}
        queue = list(sonames)
        for soname in queue:
            library = self.find(soname)
            if library is not None and library.soname not in found:
                found[library.soname] = library
                queue.extend(library.needed)
        return tuple(found.values())

    def has_version(self, library: HostLibrary, version: str) -> bool:
        """Whether a version need of a library is met: one that defines no versions meets all, and
        musl does not look.
        """
        is_met = version in library.versions or not library.versions
        return is_met or self.host.libc == "musl"

    def definition(self, symbol: UndefinedSymbol, scope: Sequence[HostLibrary]) -> Definition:
        """Whether any library of ``scope`` defines a symbol.

        Where a library's symbols were not read, its versions say whether it has those that are
        asked for with one; of others, nothing is known.
        """
        version = "" if self.host.libc == "musl" else symbol.version
        is_unknown = False
        for library in scope:
            if library.symbols is None:
                if version and version in library.versions:
                    return Definition.PRESENT
                is_unknown = is_unknown or not version
                continue
            asked = version if library.versions else ""
            found = library.symbols.defines(symbol.name, asked)
            if found is Definition.PRESENT:
                return found
            is_unknown = is_unknown or found is Definition.UNKNOWN
        return Definition.UNKNOWN if is_unknown else Definition.ABSENT


def is_glibc_loader(soname: str) -> bool:
    """Whether it is the name of a dynamic linker of glibc."""
    return soname.startswith(_LOADER_PREFIXES)


def _is_musl(library: HostLibrary) -> bool:
    return library.soname.startswith(("libc.musl", "libc.so", "ld-musl"))
