"""Describes the distributions of ``distributions.toml`` from their packages."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Annotated

import msgspec

from potluck.portability.described_libraries import GLIBC_LIBRARIES
from potluck.portability.host import Host
from potluck.portability.installed_host import describe_host
from tools.hosts.apt_tree import AptTree, Archive, unpack_packages

_PACKAGES = ("?essential", "libstdc++6", "libgomp1", "libatomic1", "zlib1g", "python3")
"""What every installation has, Python, and the runtimes that builds of C++ take from the system."""

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_CROSS_ROOT = "usr/{machine}-linux-gnu"

_Text = Annotated[str, msgspec.Meta(min_length=1)]


class Distribution(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A row of the file. ``cross`` has the packages for cross compilers, by architecture."""

    name: _Text
    title: _Text
    archive: _Text
    suite: _Text
    components: Annotated[tuple[_Text, ...], msgspec.Meta(min_length=1)]
    keyring: _Text
    architectures: Annotated[tuple[_Text, ...], msgspec.Meta(min_length=1)]
    cross: dict[_Text, tuple[_Text, ...]] = {}


class _Distributions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    distribution: tuple[Distribution, ...]


def distributions() -> tuple[Distribution, ...]:
    """All rows, in their order."""
    text = Path(__file__).with_name("distributions.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), _Distributions).distribution


def describe_distribution(
    distribution: Distribution, folder: Path, keyrings: Path
) -> Iterator[Host]:
    """A host for each architecture; ``folder`` is where packages are kept and unpacked."""
    archive = Archive(
        url=distribution.archive,
        suite=distribution.suite,
        components=distribution.components,
        keyring=keyrings / distribution.keyring,
    )
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
        origin=f"{distribution.title}, essential packages and python3: {_versions(tree)}",
    )


def _from_cross_packages(
    distribution: Distribution, architecture: str, tree: AptTree, *, like: Host
) -> Host:
    """The C and C++ libraries are those of the packages; what else there is is as in ``like``.

    Of that only names are known: the same packages exist for both architectures.
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


def _versions(tree: AptTree) -> str:
    """Of the packages that decide most: ``libc6 2.36-9+deb12u13, libstdc++6 12.2.0-14``."""
    names = ("libc6", "libstdc++6", "libc6-arm64-cross", "libstdc++6-arm64-cross")
    return ", ".join(f"{name} {tree.versions[name]}" for name in names if name in tree.versions)
