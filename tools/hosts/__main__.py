"""Writes the descriptions of hosts that come with Potluck.

python -m tools.hosts [--keyrings FOLDER] WORK_FOLDER [policies] [DISTRIBUTION…] [musl]

Without names all of them are written; the file of the symbols that hosts share has those of the
distributions that are named, so that all of these have to be. ``WORK_FOLDER`` takes some 150 MB for
each distribution and architecture; packages that are there are used again. The archives' keys are
in Debian 13's packages debian-archive-keyring and ubuntu-keyring.
"""

from __future__ import annotations

import argparse
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

import potluck.portability
from potluck.portability.hosts.host import Host
from potluck.portability.hosts.shipped import LibrarySymbols, share
from potluck.portability.hosts.writing import host_document
from tools.hosts.distributions import (
    describe_distribution,
    describe_musl,
    distributions,
    library_symbols,
    roots_of,
)
from tools.hosts.policies import describe_policies

_POLICIES = "policies"
_MUSL = "musl"
_HOSTS = Path(potluck.portability.__file__).parent / "hosts" / "data"
_SHARED = _HOSTS / "shared" / "symbols.json"


def _described(names: Sequence[str], folder: Path, keyrings: Path) -> Iterator[Host]:
    if _POLICIES in names:
        yield from describe_policies()
    for each in distributions():
        if each.name in names:
            yield from describe_distribution(each, folder / each.name, keyrings)
    if _MUSL in names:
        yield from describe_musl(folder, keyrings)


def main() -> None:
    """Write what the command line names."""
    known = [_POLICIES, *(each.name for each in distributions()), _MUSL]
    parser = argparse.ArgumentParser(prog="python -m tools.hosts")
    parser.add_argument("--keyrings", type=Path, default=Path("/usr/share/keyrings"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", choices=[*known, []], help="what to describe")
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    symbols: dict[str, dict[str, LibrarySymbols]] = {}
    for host in _described(arguments.names or known, folder, arguments.keyrings.absolute()):
        is_policy = not host.is_complete and host.libc == "glibc"
        if not is_policy:
            symbols[host.name] = library_symbols(host, roots_of(host.name, folder))
            host = _without(host, symbols[host.name])
        file = _HOSTS / f"{host.name}.json"
        file.write_bytes(
            msgspec.json.format(msgspec.json.encode(host_document(host)), indent=1) + b"\n"
        )
        print(f"{file.name}: {host.origin}")
    if symbols:
        _SHARED.parent.mkdir(exist_ok=True)
        shared = msgspec.json.encode(share(symbols))
        _SHARED.write_bytes(msgspec.json.format(shared, indent=1) + b"\n")


def _without(host: Host, symbols: Container[str]) -> Host:
    """Return the host without the symbols of libraries whose symbols are in the shared file."""
    libraries = (
        replace(each, symbols=None) if each.soname in symbols else each for each in host.libraries
    )
    return replace(host, libraries=tuple(libraries))


if __name__ == "__main__":
    main()
