"""The machines of ``tests/fixtures/machines`` as trees in a directory, without umockdev.

For tests that spoil what is in them. What libudev would add is missing: uevent files are all.
"""

from __future__ import annotations

import os
from pathlib import Path

from support.machines.sysfs_trees import make_system, write_files
from support.machines.umockdev import MACHINES

from potluck.host.system import System

_BUSES = frozenset({"pci", "platform", "virtio", "usb"})
"""Subsystems that are buses; the others are classes."""


def machine_names() -> list[str]:
    return sorted(path.stem for path in MACHINES.glob("*.umockdev"))


def lay_out_machine(machine: str, root: Path) -> System:
    """Write a machine's devices and files below ``root``."""
    device = root
    for line in (MACHINES / f"{machine}.umockdev").read_text().splitlines():
        kind, _, text = line.partition(": ")
        name, _, value = text.partition("=")
        match kind:
            case "P":
                device = root / "sys" / text.lstrip("/")
                device.mkdir(parents=True, exist_ok=True)
            case "E":
                with (device / "uevent").open("a") as uevent:
                    uevent.write(f"{text}\n")
                if name == "SUBSYSTEM":
                    entries = f"bus/{value}/devices" if value in _BUSES else f"class/{value}"
                    _link(root / "sys" / entries / device.name, device)
                    _link(device / "subsystem", root / "sys" / entries.removesuffix("/devices"))
            case "A":
                write_files(device, {name: _unescape(value)})
            case "L":
                (device / name).symlink_to(value)
            case "N":
                write_files(root / "dev", {name: ""})
            case "F":
                top, _, rest = name.lstrip("/").partition("/")
                place = f"{top}/{rest}" if top in ("proc", "sys") else f"files/{top}/{rest}"
                write_files(root, {place: _unescape(value)})
    return make_system(root)


def _unescape(text: str) -> str:
    return text.encode("latin-1", "backslashreplace").decode("unicode_escape")


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(target, link.parent))
