"""Describes the distributions of ``distributions.toml`` from their packages."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Annotated

import msgspec

from potluck.portability.hosts.c_library import read_library
from potluck.portability.hosts.host import GLIBC_LIBRARIES, Host, HostPython
from potluck.portability.hosts.installed import describe_host
from potluck.portability.hosts.root_files import RootFiles
from potluck.portability.hosts.shipped import LibrarySymbols
from tools.hosts.apt_tree import AptTree, Archive, unpack_packages

_PACKAGES = ("?essential", "apt", "zlib1g", "python3")
"""A minimal installation with Python: apt and Python bring libstdc++6, libgcc and zlib1g. There is
no libgomp1 and no libatomic1 in it, which wheels need that do not bring their own.
"""

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_CROSS_ROOT = "usr/{machine}-linux-gnu"

_Text = Annotated[str, msgspec.Meta(min_length=1)]


class _Archived(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The name of a distribution's hosts, and the archive with the packages that describe them."""

    name: _Text
    archive: _Text
    suite: _Text
    components: Annotated[tuple[_Text, ...], msgspec.Meta(min_length=1)]
    keyring: _Text
    architectures: Annotated[tuple[_Text, ...], msgspec.Meta(min_length=1)]

    def packages(self, keyrings: Path) -> Archive:
        """Return the archive, whose keys are in the folder ``keyrings``."""
        return Archive(
            url=self.archive,
            suite=self.suite,
            components=self.components,
            keyring=keyrings / self.keyring,
        )


class Distribution(_Archived, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A row of the file. ``cross`` has the packages for cross compilers, by architecture."""

    title: _Text
    cross: dict[_Text, tuple[_Text, ...]] = {}


class Musl(_Archived, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A distribution with musl whose own archive cannot be reached: another build of the same
    release of musl stands for it. ``because`` has the source of what is said.
    """

    because: _Text
    python: Annotated[str, msgspec.Meta(pattern=r"^3\.\d+$")]


class _Rows(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    distribution: tuple[Distribution, ...]
    musl: tuple[Musl, ...]


def distributions() -> tuple[Distribution, ...]:
    """Return all distributions with glibc, in the order of the file."""
    return _rows().distribution


def musl_distributions() -> tuple[Musl, ...]:
    """Return the distributions with musl."""
    return _rows().musl


def _rows() -> _Rows:
    text = Path(__file__).with_name("distributions.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), _Rows)


def describe_distribution(
    distribution: Distribution, folder: Path, keyrings: Path
) -> Iterator[Host]:
    """Yield a host for each architecture; packages are stored and unpacked in ``folder``."""
    archive = distribution.packages(keyrings)
    hosts = [
        _from_packages(distribution, architecture, archive, folder / architecture)
        for architecture in distribution.architectures
    ]
    yield from hosts
    for architecture, packages in distribution.cross.items():
        tree = unpack_packages(
            archive, distribution.architectures[0], packages, folder / f"{architecture}-cross"
        )
        yield _from_cross_packages(distribution, architecture, tree, like=hosts[0])


def _from_packages(
    distribution: Distribution, architecture: str, archive: Archive, folder: Path
) -> Host:
    tree = unpack_packages(archive, architecture, _PACKAGES, folder)
    return describe_host(
        tree.root,
        name=f"{distribution.name}-{_MACHINES[architecture]}",
        origin=f"{distribution.title}, essential packages, apt and python3: {_versions(tree)}",
    )


def _from_cross_packages(
    distribution: Distribution, architecture: str, tree: AptTree, *, like: Host
) -> Host:
    """Describe a host with the packages' C and C++ libraries that is otherwise as ``like``.

    Only the names of the other libraries are known: the same packages exist for both architectures.
    """
    machine = _MACHINES[architecture]
    host = describe_host(
        tree.root / _CROSS_ROOT.format(machine=machine),
        name=f"{distribution.name}-{machine}",
        origin=(
            f"{distribution.title}, C and C++ libraries of the packages for cross compilers, names "
            f"of the others as for {like.machine}: {_versions(tree)}"
        ),
    )
    described = {each.soname for each in host.libraries}
    not_alike = {*GLIBC_LIBRARIES, PurePosixPath(like.libraries[0].path).name}
    names = like.other_libraries | {each.soname for each in like.libraries}
    return replace(host, other_libraries=names - described - not_alike, python=like.python)


def describe_musl(folder: Path, keyrings: Path) -> Iterator[Host]:
    """Yield a host for each row and machine: Debian's build of musl, and Python as the row says.
    Nothing else is known, so the hosts are not complete.
    """
    for row in musl_distributions():
        archive = row.packages(keyrings)
        for architecture in row.architectures:
            machine = _MACHINES[architecture]
            place = folder / row.name / architecture
            tree = unpack_packages(archive, architecture, ["musl"], place)
            if not (tree.root / "lib").exists():  # what base-files has
                (tree.root / "lib").symlink_to("usr/lib")
            host = describe_host(
                tree.root,
                name=f"{row.name}-{machine}",
                origin=f"{row.because}: musl {tree.versions['musl']} of {row.suite}",
            )
            major, _, minor = row.python.partition(".")
            yield replace(
                host,
                is_complete=False,
                python=HostPython(implementation="cpython", version=(int(major), int(minor))),
            )


def library_symbols(host: Host, roots: Iterable[Path]) -> dict[str, LibrarySymbols]:
    """Return the symbols of a host's described libraries, read from the roots of its packages."""
    found = {}
    for root in roots:
        files = RootFiles(root)
        for library in host.libraries:
            elf = read_library(files, library.path)
            if elf is not None and elf.defined is not None and elf.machine == host.machine:
                found[library.soname] = LibrarySymbols(
                    symbols=elf.defined, versions=elf.version_definitions
                )
    return found


def roots_of(host: str, folder: Path) -> tuple[Path, ...]:
    """Return the unpacked trees in ``folder`` that a host was described from."""
    name, _, machine = host.rpartition("-")
    architecture = next(key for key, value in _MACHINES.items() if value == machine)
    cross = folder / name / f"{architecture}-cross" / "root" / _CROSS_ROOT.format(machine=machine)
    return (cross,) if cross.is_dir() else (folder / name / architecture / "root",)


def _versions(tree: AptTree) -> str:
    """Return the versions of the main packages: ``libc6 2.36-9+deb12u13, libstdc++6 …``."""
    names = ("libc6", "libstdc++6", "libc6-arm64-cross", "libstdc++6-arm64-cross")
    return ", ".join(f"{name} {tree.versions[name]}" for name in names if name in tree.versions)
