"""Writes the descriptions of hosts that come with Potluck.

python -m tools.hosts [--keyrings FOLDER] WORK_FOLDER [policies] [DISTRIBUTION…]

Without names all of them are written. ``WORK_FOLDER`` takes some 150 MB for each distribution and
architecture; packages that are there are used again. The archives' keys are in Debian 13's packages
debian-archive-keyring and ubuntu-keyring.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

import potluck.portability
from potluck.portability.host import Host
from potluck.portability.host_document import host_document
from tools.hosts.distributions import describe_distribution, distributions
from tools.hosts.policies import describe_policies

_POLICIES = "policies"
_HOSTS = Path(potluck.portability.__file__).with_name("hosts")


def _described(names: Sequence[str], folder: Path, keyrings: Path) -> Iterator[Host]:
    if _POLICIES in names:
        yield from describe_policies()
    for each in distributions():
        if each.name in names:
            yield from describe_distribution(each, folder / each.name, keyrings)


def main() -> None:
    """Write what the command line names."""
    known = [_POLICIES, *(each.name for each in distributions())]
    parser = argparse.ArgumentParser(prog="python -m tools.hosts")
    parser.add_argument("--keyrings", type=Path, default=Path("/usr/share/keyrings"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", choices=[*known, []], help="what to describe")
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    for host in _described(arguments.names or known, folder, arguments.keyrings.absolute()):
        file = _HOSTS / f"{host.name}.json"
        file.write_bytes(
            msgspec.json.format(msgspec.json.encode(host_document(host)), indent=1) + b"\n"
        )
        print(f"{file.name}: {host.origin}")


if __name__ == "__main__":
    main()
