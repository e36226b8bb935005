"""Devices on the platform bus, and shared system memory, for several detectors; names of machines.

GPUs and NPUs of boards are nodes of the device tree on that bus. Sources: the kernel's
``Documentation/ABI/testing/sysfs-class-devfreq``, ``proc_meminfo(5)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from potluck.host.memory import read_sizes
from potluck.host.system import Access, System, printable, resolve
from potluck.types.hardware import DeviceMemory

_MAX_CLOCK_HZ = 8_000_000_000
"""About four times the highest clock of any board's GPU: a higher value is a driver error."""

_NO_NAMES = frozenset(
    {
        "",
        "default string",
        "none",
        "not applicable",
        "not specified",
        "o.e.m.",
        "oem",
        "system manufacturer",
        "system product name",
        "to be filled by o.e.m.",
        "undefined",
        "unknown",
    }
)
"""Placeholders that mainboard vendors leave in fields that the machine's vendor should fill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformDevice:
    """A device on the platform bus; ``compatible`` are its device-tree names."""

    path: Path
    driver: str
    compatible: tuple[str, ...]


def platform_devices(system: System, *words: str) -> Iterator[PlatformDevice]:
    """Yield the platform devices with one of ``words`` in their name, such as ``fb000000.gpu``.

    A board has hundreds of platform devices. Their names come from the device tree, where nodes are
    named by their function, so the files of the others need not be read.
    """
    for entry in system.entries(system.sys / "bus/platform/devices"):
        if any(word in entry.name for word in words):
            path = resolve(entry)
            yield PlatformDevice(
                path=path, driver=system.driver(path), compatible=system.compatible(path)
            )


def board_model(system: System) -> str:
    """Return the machine's model from its device tree; empty if there is none."""
    for tree in device_trees(system):
        if model := system.text(tree / "model"):
            return " ".join(model.split())
    return ""


def device_trees(system: System) -> tuple[Path, ...]:
    """Return the two paths of the device tree; containers often lack one of them."""
    return system.proc / "device-tree", system.sys / "firmware/devicetree/base"


def device_id(system: System, device: Path) -> str:
    """Return the id of a device at a resolved path in sysfs, such as ``of-fb000000.gpu`` or
    ``pci-0000:01:00.0``.

    A device that is neither in the device tree nor on PCI is named after its bus:
    ``platform-rknn``.
    """
    if system.compatible(device):
        return f"of-{device.name}"
    return f"{resolve(device / 'subsystem').name}-{device.name}"


def problem(system: System, driver: str, device_file: Path | None) -> str:
    """Return why nothing can run on a device with this driver and device file; empty if it can be
    used.
    """
    if not driver:
        return "no kernel driver is bound to it"
    if device_file is None:
        return f"its driver {driver} has not created a device file"
    match system.access(device_file):
        case Access.USABLE:
            return ""
        case Access.FORBIDDEN:
            return f"no permission to use {device_file}"
        case Access.ABSENT:
            return f"its device file {device_file} is missing"


def max_clock_hz(system: System, device: Path) -> int | None:
    """Return the highest clock that the system allows a device; None if its frequency is not
    managed or the value is implausible.
    """
    for governed in system.entries(device / "devfreq"):
        clock_hz = system.number(governed / "max_freq")
        if clock_hz:
            return clock_hz if 0 < clock_hz <= _MAX_CLOCK_HZ else None
    return None


def shared_memory(system: System) -> DeviceMemory:
    """Return the memory of a device that uses the machine's memory."""
    sizes = read_sizes(system, system.proc / "meminfo")
    return DeviceMemory(
        total_bytes=sizes.get("MemTotal"),
        free_bytes=sizes.get("MemAvailable"),
        is_shared=True,
        source="shared system memory (/proc/meminfo)",
    )


def unknown_memory(reason: str, *, is_shared: bool = False) -> DeviceMemory:
    """Return the memory of a device whose size is not reported."""
    return DeviceMemory(total_bytes=None, free_bytes=None, is_shared=is_shared, source=reason)


def machine_name(system: System) -> str:
    """Return the name (``Radxa ROCK 5B``, ``Dell Inc. PowerEdge R740``); empty if unknown.

    The name is from the device tree or the firmware's DMI tables. Sources: the devicetree
    specification (``model`` of the root), the kernel's ``drivers/firmware/dmi-id.c`` and the DMTF's
    SMBIOS specification (system and baseboard).
    """
    if model := printable(board_model(system)):
        return model
    for maker, product in (("sys_vendor", "product_name"), ("board_vendor", "board_name")):
        if name := _dmi(system, product):
            vendor = _dmi(system, maker)
            is_named_twice = name.lower().startswith(vendor.lower())
            return name if is_named_twice else f"{vendor} {name}"
    return ""


def _dmi(system: System, field: str) -> str:
    text = printable(system.text(system.sys / "class/dmi/id" / field) or "")
    return "" if text.lower() in _NO_NAMES else text
