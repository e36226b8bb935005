"""Common properties of GPUs on the PCI bus, for the detectors that find them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from potluck.host.boards import problem
from potluck.host.system import PciDevice, RenderNode, System, printable

RESERVING_DRIVERS = frozenset({"vfio-pci", "pci-stub"})
"""Drivers that reserve a device for virtual machines (the kernel's ``driver-api/vfio.rst``)."""

_MAX_MEMORY_BYTES = 1 << 44
"""16 TiB. A larger value is not the size of a GPU's memory; MI355X, the largest, has 288 GB."""


def render_nodes(system: System) -> Mapping[Path, RenderNode]:
    """Return the render node of each device that has one, by the device's resolved path in
    sysfs.
    """
    return {node.device: node for node in system.render_nodes()}


def why_unusable(system: System, driver: str, device_file: Path | None) -> str:
    """Return why nothing can run on a GPU, in one line; empty if its render node may be used."""
    if driver in RESERVING_DRIVERS:
        return f"its driver {driver} reserves it for virtual machines"
    return problem(system, driver, device_file)


def memory_bytes(system: System, file: Path) -> int | None:
    """Read a file with a memory size; None if it has no number or an implausible one."""
    return plausible_bytes(system.number(file))


def plausible_bytes(size_bytes: int | None) -> int | None:
    """Return the size, or None if it is implausible."""
    if size_bytes is None or not 0 <= size_bytes <= _MAX_MEMORY_BYTES:
        return None
    return size_bytes


def database_name(system: System, device: PciDevice) -> str:
    """Return the name of a device in udev's hardware database; empty if it has none."""
    return printable(system.udev(device.path).get("ID_MODEL_FROM_DATABASE", ""))


def module_version(system: System, driver: str) -> str:
    """Return the version of a driver that was built separately from the kernel; empty for the
    kernel's own.
    """
    if not driver:
        return ""
    return printable(system.text(system.sys / "module" / driver / "version") or "")
