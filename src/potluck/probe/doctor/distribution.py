"""Which Linux this is, as far as commands differ (``os-release(5)``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from potluck.probe.system import System

_MANAGERS = {
    "debian": "apt",
    "ubuntu": "apt",
    "raspbian": "apt",
    "fedora": "dnf",
    "rhel": "dnf",
    "centos": "dnf",
    "arch": "pacman",
    "archarm": "pacman",
}
_INSTALL = {
    "apt": "sudo apt install",
    "dnf": "sudo dnf install",
    "pacman": "sudo pacman -S",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """``name`` is its ID or that of the one it is like; ``manager`` is its package manager.

    Both are empty where not known.
    """

    name: str
    manager: str

    def install(self, packages: Mapping[str, str]) -> str:
        """The command that installs the package that ``packages`` has for this manager, or empty.

        A name of a distribution among the keys goes before that of its manager.
        """
        package = packages.get(self.name) or packages.get(self.manager)
        return f"{_INSTALL[self.manager]} {package}" if package and self.manager else ""


def read_distribution(system: System) -> Distribution:
    """From ``/etc/os-release``, or where that is missing ``/usr/lib/os-release``."""
    for place in ("etc/os-release", "usr/lib/os-release"):
        text = system.text(system.files / PurePosixPath(place))
        if text is not None:
            break
    else:
        return Distribution(name="", manager="")
    pairs = (line.partition("=") for line in text.splitlines())
    values = {name.strip(): value.strip().strip("\"'") for name, _, value in pairs}
    names = [values.get("ID", ""), *values.get("ID_LIKE", "").split()]
    name = next((name for name in names if name in _MANAGERS), names[0])
    return Distribution(name=name, manager=_MANAGERS.get(name, ""))
