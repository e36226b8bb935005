"""What layers share: devices on the platform bus, and memory that is the machine's own.

GPUs and NPUs of boards are nodes of the device tree on that bus. Sources: the kernel's
``Documentation/ABI/testing/sysfs-class-devfreq``, ``proc_meminfo(5)``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from potluck.probe.system import Access, System
from potluck.types.hardware import DeviceMemory

_MAX_CLOCK_HZ = 8_000_000_000
"""Some four times the highest of a GPU in a board: above it, a value is a driver's error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformDevice:
    """A device on the platform bus; ``compatible`` are its device-tree names."""

    path: Path
    driver: str
    compatible: tuple[str, ...]


def platform_devices(system: System, *words: str) -> Iterator[PlatformDevice]:
    """Those with one of ``words`` in their name, such as ``fb000000.gpu``.

    A board has hundreds, and their names come from the device tree, where nodes are named for what
    they are: so nothing is read of the others.
    """
    for entry in system.entries(system.sys / "bus/platform/devices"):
        if any(word in entry.name for word in words):
            path = resolve(entry)
            yield PlatformDevice(
                path=path, driver=system.driver(path), compatible=system.compatible(path)
            )


def board_model(system: System) -> str:
    """The model that the device tree gives the machine; empty on machines without one."""
    for path in (
        system.proc / "device-tree/model",
        system.sys / "firmware/devicetree/base/model",
    ):
        if model := system.text(path):
            return " ".join(model.split())
    return ""


def resolve(path: Path) -> Path:
    """What a link in sysfs leads to; the path itself if it leads in circles."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path


def device_id(system: System, device: Path) -> str:
    """The id of a device at its real place in sysfs: ``of-fb000000.gpu``, ``pci-0000:01:00.0``.

    What is neither in the device tree nor on PCI is named after its bus: ``platform-rknn``.
    """
    if system.compatible(device):
        return f"of-{device.name}"
    return f"{resolve(device / 'subsystem').name}-{device.name}"


def problem(system: System, driver: str, device_file: Path | None) -> str:
    """Why nothing can run on a device with this driver and device file; empty if all is there."""
    if not driver:
        return "no kernel driver is bound to it"
    if device_file is None:
        return f"its driver {driver} has made no device file"
    match system.access(device_file):
        case Access.USABLE:
            return ""
        case Access.FORBIDDEN:
            return f"no permission to use {device_file}"
        case Access.ABSENT:
            return f"its device file {device_file} is missing"


def max_clock_hz(system: System, device: Path) -> int | None:
    """The highest clock that the system allows a device, if its frequency is managed at all.

    None for a clock that no GPU can have.
    """
    for governed in system.entries(device / "devfreq"):
        clock_hz = system.number(governed / "max_freq")
        if clock_hz:
            return clock_hz if 0 < clock_hz <= _MAX_CLOCK_HZ else None
    return None


def shared_memory(system: System) -> DeviceMemory:
    """The memory of a device that has none of its own: the machine's."""
    kibibytes = dict(
        re.findall(
            r"^(MemTotal|MemAvailable): +(\d+) kB$",
            system.text(system.proc / "meminfo") or "",
            re.MULTILINE,
        )
    )

    def size_bytes(name: str) -> int | None:
        return int(kibibytes[name]) * 1024 if name in kibibytes else None

    return DeviceMemory(
        total_bytes=size_bytes("MemTotal"),
        free_bytes=size_bytes("MemAvailable"),
        is_shared=True,
        source="the machine's own memory (/proc/meminfo)",
    )
