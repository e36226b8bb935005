"""What GPUs on the PCI bus have in common, for the layers that find them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from potluck.probe.boards import problem
from potluck.probe.names import printable
from potluck.probe.system import PciDevice, RenderNode, System

_PASSES_ON = frozenset({"vfio-pci", "pci-stub"})
"""Drivers that keep a device for virtual machines (the kernel's ``driver-api/vfio.rst``)."""

_MAX_MEMORY_BYTES = 1 << 44
"""16 TiB. What claims to be more is no size of a GPU's memory; MI355X, the largest, has 288 GB."""


def render_nodes(system: System) -> Mapping[Path, RenderNode]:
    """The render node of each device that has one, by the device's real place in sysfs."""
    return {node.device: node for node in system.render_nodes()}


def why_unusable(system: System, driver: str, device_file: Path | None) -> str:
    """Why nothing can run on a GPU, in one line; empty if its render node may be used."""
    if driver in _PASSES_ON:
        return f"its driver {driver} keeps it for virtual machines"
    return problem(system, driver, device_file)


def memory_bytes(system: System, file: Path) -> int | None:
    """A file with a size of memory; None when it has no number, or an absurd one."""
    return plausible_bytes(system.number(file))


def plausible_bytes(size_bytes: int | None) -> int | None:
    """None for a size that no GPU's memory can have."""
    if size_bytes is None or not 0 <= size_bytes <= _MAX_MEMORY_BYTES:
        return None
    return size_bytes


def database_name(system: System, device: PciDevice) -> str:
    """What udev's hardware database calls a device; empty where it does not know it."""
    return printable(system.udev(device.path).get("ID_MODEL_FROM_DATABASE", ""))


def module_version(system: System, driver: str) -> str:
    """The version of a driver that was built apart from the kernel; empty for the kernel's own."""
    if not driver:
        return ""
    return printable(system.text(system.sys / "module" / driver / "version") or "")
