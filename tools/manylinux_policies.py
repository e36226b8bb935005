"""Prints src/potluck/portability/linking/policies.toml from the installed auditwheel's policies.

    python tools/manylinux_policies.py > src/potluck/portability/linking/policies.toml

auditwheel's list is what the builders of wheels go by; PEP 600 leaves it to "common practice". Each
version and library is listed with the oldest policy that allows it. A later policy that takes one
back (as happened to libncursesw) does not change that.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata, resources
from typing import Any

MACHINES = ("x86_64", "aarch64", "i686", "armv7l", "ppc64le", "s390x", "riscv64")

SYSTEMS = (
    ("Debian", "10", "2.28"),
    ("Debian", "11", "2.31"),
    ("Debian", "12", "2.36"),
    ("Debian", "13", "2.41"),
    ("Ubuntu", "18.04", "2.27"),
    ("Ubuntu", "20.04", "2.31"),
    ("Ubuntu", "22.04", "2.35"),
    ("Ubuntu", "24.04", "2.39"),
    ("RHEL", "8", "2.28"),
    ("RHEL", "9", "2.34"),
    ("RHEL", "10", "2.39"),
)
"""Maker, release, glibc: packages.debian.org, packages.ubuntu.com, and Red Hat's release notes."""


def main() -> None:
    """Print the file."""
    sys.stdout.write("\n".join(lines(_policies())) + "\n")


def _policies() -> Sequence[Mapping[str, Any]]:
    """Return the glibc policies in ascending order."""
    text = resources.files("auditwheel").joinpath("policy/manylinux-policy.json").read_text("utf-8")
    found = [each for each in json.loads(text) if each["name"].startswith("manylinux_")]
    return sorted(found, key=lambda each: _glibc(each["name"]))


def lines(policies: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of the file."""
    yield "# Made by tools/manylinux_policies.py: the facts of the manylinux policies, from"
    yield f"# https://github.com/pypa/auditwheel, release {metadata.version('auditwheel')}, and the"
    yield "# glibc of well-known systems. Versions and libraries stand with the oldest policy that"
    yield "# allows them, which is known by its glibc."
    for maker, release, glibc in SYSTEMS:
        yield ""
        yield "[[system]]"
        yield f'maker = "{maker}"'
        yield f'release = "{release}"'
        yield f'glibc = "{glibc}"'
    for machine in MACHINES:
        own = [each for each in policies if machine in each["symbol_versions"]]
        yield ""
        yield f"[machine.{machine}]"
        yield f"policies = [{', '.join(_quoted(_dotted(each)) for each in own)}]"
        yield from _table(
            f"machine.{machine}.versions",
            [(_dotted(each), list(_versions(each, machine))) for each in own],
        )
        yield from _table(
            f"machine.{machine}.libraries",
            [(_dotted(each), list(each["lib_whitelist"])) for each in own],
        )


def _table(name: str, allowed: Sequence[tuple[str, Sequence[str]]]) -> Iterator[str]:
    """Yield what each policy allows that no earlier one did."""
    yield ""
    yield f"[{name}]"
    seen: set[str] = set()
    for policy, names in allowed:
        added = sorted(set(names) - seen, key=_natural)
        seen.update(names)
        if added:
            yield f'"{policy}" = ['
            yield from _wrapped(added)
            yield "]"


def _wrapped(names: Sequence[str]) -> Iterator[str]:
    line = "   "
    for name in names:
        if len(line) + len(name) + 4 > 100:
            yield line
            line = "   "
        line += f" {_quoted(name)},"
    yield line


def _versions(policy: Mapping[str, Any], machine: str) -> Iterator[str]:
    for prefix, numbers in policy["symbol_versions"][machine].items():
        yield from (f"{prefix}_{number}" for number in numbers)


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """Return a key that sorts GLIBC_2.9 before GLIBC_2.10."""
    parts = name.replace("_", ".").split(".")
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in parts)


def _glibc(name: str) -> tuple[int, int]:
    _, major, minor = name.split("_")
    return int(major), int(minor)


def _dotted(policy: Mapping[str, Any]) -> str:
    return ".".join(map(str, _glibc(policy["name"])))


def _quoted(text: str) -> str:
    return f'"{text}"'


if __name__ == "__main__":
    main()
