"""The Linux distribution, which determines the commands to suggest (``os-release(5)``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from potluck.probe.machine.system import System

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
    """A distribution: ``name`` is its ID or the ID of the one that it derives from, and ``manager``
    its package manager.

    Both are empty if unknown.
    """

    name: str
    manager: str

    def install(self, packages: Mapping[str, str]) -> str:
        """Return the command that installs the package that ``packages`` has for this manager, or
        empty.

        A key that names the distribution takes precedence over that of its manager.
        """
        package = packages.get(self.name) or packages.get(self.manager)
        return f"{_INSTALL[self.manager]} {package}" if package and self.manager else ""


def read_distribution(system: System) -> Distribution:
    """Read ``/etc/os-release``, or if that is missing ``/usr/lib/os-release``."""
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
