"""Trees of sysfs in a directory, for detectors that take the view of a machine as an argument."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from potluck.host.system import System


def make_system(root: Path) -> System:
    """The view of a machine that is laid out below ``root``."""
    return System(sys=root / "sys", proc=root / "proc", dev=root / "dev", files=root / "files")


def write_files(root: Path, files: Mapping[str, str]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def add_gpu(
    root: Path,
    address: str,
    ids: str,
    driver: str = "",
    *,
    device_class: str = "0x030000",
    render: str = "",
    files: Mapping[str, str] | None = None,
) -> Path:
    """A function on the PCI bus with what every one has, and ``files`` besides.

    ``render`` is the name of its render node, whose device file is made too. Returns its directory.
    """
    device = root / "sys/devices/pci0000:00" / address
    vendor, _, number = ids.partition(":")
    always = {"vendor": f"0x{vendor}\n", "device": f"0x{number}\n", "class": f"{device_class}\n"}
    write_files(device, {**always, **(files or {})})
    _link(root / "sys/bus/pci/devices" / address, device)
    if driver:
        module = root / "sys/bus/pci/drivers" / driver
        module.mkdir(parents=True, exist_ok=True)
        _link(device / "driver", module)
    if render:
        node = device / "drm" / render
        node.mkdir(parents=True)
        _link(node / "device", device)
        _link(root / "sys/class/drm" / render, node)
        write_files(root, {f"dev/dri/{render}": ""})
    return device


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(target, link.parent))
