"""Libraries that a file expects elsewhere: those that it opens at run time, as far as its constants
name them, and those of the wheels that its wheel requires.

No table of an ELF file lists them. A file that opens libraries at all imports ``dlopen`` or a
similar function; the names are searched for among its strings. So these findings are only likely: a
name may never be opened, and another may be constructed at run time.
"""

from __future__ import annotations

import functools
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from packaging.utils import canonicalize_name

from potluck.portability.elf.file import ElfFile
from potluck.portability.elf.image import ElfImage
from potluck.portability.elf.sections import library_names
from potluck.portability.finding import Finding, Severity
from potluck.portability.hosts.host import GLIBC_LIBRARIES, OTHER_LIBRARIES, HostPython
from potluck.portability.hosts.installed import running_python
from potluck.portability.shipped_toml import read_rows
from potluck.portability.wheels.requirements import (
    applies,
    marker_environment,
    parsed_requirements,
)

_OPENERS = ("dlopen", "g_module_open", "SDL_LoadObject")
"""Parts of names: ``dlmopen`` aside, libuv's, libtool's and glibc's own contain ``dlopen``."""

_Text = Annotated[str, msgspec.Meta(min_length=1)]


class LibraryKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Libraries for one purpose; the fields are explained in ``opened_libraries.toml``."""

    name: _Text
    stems: Annotated[tuple[_Text, ...], msgspec.Meta(min_length=1)]
    what: _Text
    without: _Text
    fix: _Text
    jetson_fix: str = ""
    belongs_to: Literal["", "driver", "system"] = ""
    source: Annotated[str, msgspec.Meta(pattern="^https://")]

    def fix_on(self, *, is_tegra: bool) -> str:
        """Return how to install it, on a Jetson or elsewhere."""
        return self.jetson_fix if is_tegra and self.jetson_fix else self.fix


def opened_libraries(elf: ElfFile, image: ElfImage) -> tuple[str, ...]:
    """Return the names that ``elf``, read from ``image``, opens, without what it needs anyway."""
    names = [symbol.name for symbol in elf.undefined]
    if not any(name == "dlmopen" or any(part in name for part in _OPENERS) for name in names):
        return ()
    known = {elf.soname, *elf.needed}
    return tuple(name for name in library_names(image) if name not in known)


def opened_library_findings(
    opened: Iterable[str],
    is_found: Callable[[str], bool],
    *,
    file: str,
    is_tegra: bool = False,
) -> tuple[Finding, ...]:
    """Return what may be missing at run time; ``is_found`` says which names a host or a wheel has.

    Programs try a library under several names (``libcuda.so.1``, ``libcuda.so``): it is missing if
    none of those with the same stem is found.
    """
    by_stem: dict[str, list[str]] = {}
    for each in opened:
        by_stem.setdefault(_stem(each), []).append(each)
    return tuple(
        _finding(same, file, is_tegra) for same in by_stem.values() if not any(map(is_found, same))
    )


def kind_of(soname: str) -> LibraryKind | None:
    """Return the row of the table that has the stem of a library's name; None if there is none."""
    stem = _stem(soname)
    exact, alike = _kinds_by_stem()
    return exact.get(stem) or next(
        (kind for start, kind in alike.items() if stem.startswith(start)), None
    )


@functools.cache
def library_kinds() -> tuple[LibraryKind, ...]:
    """Return the table in this package; it is read at the first use."""
    return read_rows(__package__, "opened_libraries.toml", "kind", tuple[LibraryKind, ...])


@functools.cache
def _kinds_by_stem() -> tuple[dict[str, LibraryKind], dict[str, LibraryKind]]:
    """Return the rows by their whole stems, and by the starts of those that end in ``*``."""
    rows = [(stem, kind) for kind in library_kinds() for stem in kind.stems]
    alike = {stem[:-1]: kind for stem, kind in rows if stem.endswith("*")}
    return dict(rows), alike


def _finding(same: list[str], file: str, is_tegra: bool) -> Finding:
    names = " or ".join(same)
    kind = kind_of(same[0])
    if kind is None:
        return Finding(
            code="opened-library",
            severity=Severity.NOTE,
            message=f"it may open {names} at run time, which is missing",
            file=file,
            library=same[0],
        )
    return Finding(
        code="opened-library",
        severity=Severity.LIKELY,
        message=f"it opens {names} ({kind.what}) at run time, which is missing: {kind.without}",
        file=file,
        library=same[0],
        fix=kind.fix_on(is_tegra=is_tegra),
    )


def _stem(soname: str) -> str:
    return soname.partition(".so")[0]


_LEAST_NAME_LENGTH = 3
"""Shorter names match too many libraries by chance."""

_SHARED_PARTS = frozenset(
    {
        *("base", "bin", "client", "common", "core", "cpu", "cu11", "cu12", "cu13", "cuda", "data"),
        *("gpu", "headless", "intel", "lib", "libs", "nvidia", "plugin", "plugins", "python"),
        *("runtime", "toolkit", "tools", "utils"),
    }
)
"""Words in the names of many distributions: ``libpython3.11.so.1.0`` does not belong to
opencv-python.
"""

_LIBRARY_FOLDERS = frozenset({"bin", "lib", "lib64", "libs"})
"""Subdirectories of a distribution's directory."""

_CUDA_SUFFIX = re.compile(r"-cu1\d(?=-|$)")

_OF_HOSTS = frozenset((*GLIBC_LIBRARIES, *OTHER_LIBRARIES))
"""Libraries that builds expect from the host."""


def required_names(
    requires: Iterable[str], machine: str, python: HostPython | None
) -> tuple[str, ...]:
    """Return the distributions in Requires-Dist lines that apply there, without extras, normalized.
    If the host's Python is unknown, the running one is assumed.

    Wheels do not declare this. Two clues indicate it: a library with the name of a distribution
    that is required (``libtorch_python.so`` and ``torch``), and a search path into the directory of
    one (``$ORIGIN/../../nvidia/cublas/lib`` and ``nvidia-cublas-cu12``). Libraries whose names do
    not indicate their origin (``libc10.so`` of ``torch``) are listed in ``providers.toml``.
    """
    micro = 0 if python else sys.version_info.micro
    environment = marker_environment(machine, python or running_python(), micro=micro)
    return tuple(
        canonicalize_name(each.name)
        for each in parsed_requirements(requires)
        if applies(each, environment)
    )


def provider_of(library: str, sought: Sequence[str], required: Iterable[str]) -> str:
    """Return the required distribution that provides a library; empty if unknown.

    It is determined by its name or a row of ``providers.toml``, or else by a search path into
    exactly one of them, unless the library belongs to the system. Drivers' libraries come with no
    wheel. ``sought`` are the directories that the linker searches, relative to ``site-packages``.
    """
    kind = kind_of(library)
    if kind is not None and kind.belongs_to == "driver":
        return ""
    names = list(required)
    of_folders = {name for folder in sought if (name := _of_folder(folder, names))}
    alike = [name for name in names if _named_part(library, name)]
    if alike:  # nvidia-cusparselt-cu12 before nvidia-cusparse-cu12
        return max(alike, key=lambda name: (len(_named_part(library, name)), name in of_folders))
    listed = [name for name in names if _is_listed(library, name)]
    if listed:
        return max(listed, key=lambda name: name in of_folders)
    is_of_system = (kind is not None and kind.belongs_to == "system") or library in _OF_HOSTS
    return of_folders.pop() if len(of_folders) == 1 and not is_of_system else ""


def known_providers(library: str) -> tuple[str, ...]:
    """Return the distributions on PyPI that ``providers.toml`` lists for a library."""
    return tuple(sorted(_listed_providers().get(_stem(library), ())))


def _of_folder(folder: str, names: Iterable[str]) -> str:
    """Return the distribution that a directory in ``site-packages`` belongs to: ``torch`` for
    ``torch/lib``, ``nvidia-cublas-cu12`` for ``nvidia/cublas/lib``, none for ``nvidia``, which many
    share.
    """
    parts = [canonicalize_name(part) for part in folder.split("/") if part]
    while parts and parts[-1] in _LIBRARY_FOLDERS:
        parts.pop()
    whole = "-".join(parts)
    heads = {"-".join(parts[:count]) for count in range(1, len(parts) + 1)}
    for name in names:
        is_own = len(parts) > 1 and _CUDA_SUFFIX.sub("", name) == whole
        if name in heads or is_own:
            return name
    return ""


def _named_part(library: str, name: str) -> str:
    """Return the part of a distribution's name that a library's name begins with, as a word:
    ``cublas`` for ``libcublasLt.so.12``, ``torch`` for ``libtorch_python.so``, none for
    ``libtorchaudio.so``. Empty if there is none.
    """
    stem = _stem(library).removeprefix("lib")
    parts = {name, *name.split("-")} - _SHARED_PARTS
    found = [each for part in parts if _begins_with(stem, each := part.removeprefix("lib"))]
    return max(found, key=len, default="")


def _begins_with(stem: str, part: str) -> bool:
    """Return whether ``part``, in lower case and with ``-`` between words, is the first word of a
    name.
    """
    following = stem[len(part) : len(part) + 1]
    begins = stem.lower().replace("_", "-").startswith(part)
    return len(part) >= _LEAST_NAME_LENGTH and begins and not following.islower()


def _is_listed(library: str, name: str) -> bool:
    stem = _stem(library)
    return _CUDA_SUFFIX.sub("", name) in _listed_providers().get(stem, ())


class _Provider(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A row of ``providers.toml``, where the fields are explained."""

    distributions: tuple[str, ...]
    libraries: tuple[str, ...]
    source: Annotated[str, msgspec.Meta(pattern="^https://")]


@functools.cache
def _listed_providers() -> Mapping[str, frozenset[str]]:
    """Return the distributions that provide a library, by its name before ``.so``."""
    found: dict[str, set[str]] = defaultdict(set)
    for row in read_rows(__package__, "providers.toml", "provider", tuple[_Provider, ...]):
        for library in row.libraries:
            found[library].update(row.distributions)
    return {library: frozenset(names) for library, names in found.items()}
