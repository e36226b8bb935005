"""The packages that roots are made of: ``package_sets.toml`` as values."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from tools.roots.made_once import digest

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageSet:
    """Packages of one suite (``bookworm``) of an archive, all of one architecture (``arm64``)."""

    name: str
    archive: str
    suite: str
    architecture: str
    packages: tuple[str, ...]

    @property
    def machine(self) -> str:
        """The architecture as ``uname -m`` says it."""
        return _MACHINES[self.architecture]

    @property
    def digest(self) -> str:
        """The digest of the set. Newer versions of its packages do not change it."""
        return digest(json.dumps(asdict(self)).encode())


def roots() -> Mapping[str, PackageSet]:
    """Return all roots in which builds are tried, by name."""
    return _sets("root")


def newcomers() -> Mapping[str, PackageSet]:
    """Return the roots of machines that know nothing of Potluck yet, by name."""
    return _sets("newcomer")


def interpreter_parts(machine: str) -> PackageSet:
    """Return the packages from which ``interpreter`` links a Python for a machine."""
    return next(each for each in _sets("interpreter").values() if each.machine == machine)


@cache
def _sets(kind: str) -> Mapping[str, PackageSet]:
    tables = tomllib.loads(Path(__file__).with_name("package_sets.toml").read_text("utf-8"))
    sets = [PackageSet(**{**each, "packages": tuple(each["packages"])}) for each in tables[kind]]
    return MappingProxyType({each.name: each for each in sets})
