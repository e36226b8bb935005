"""Huawei's Ascend NPUs, found on the PCI bus or by device files alone; no backend supports them.

Sources: Huawei's script that collects its driver's logs, for the PCI ids; and the device files that
Huawei's documentation passes to containers (``--device /dev/davinci0``), one for each NPU.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from potluck.probe.machine.boards import device_id, problem, shared_memory
from potluck.probe.machine.system import PciDevice, System
from potluck.types.backend import DeviceKind
from potluck.types.hardware import Device, DeviceMemory

_VENDOR = 0x19E5
_PROCESSING_ACCELERATORS = 0x12
"""The PCI base class, which distinguishes NPUs from Huawei's network cards."""

_NAMES = {
    "19e5:d100": "Ascend 310",
    "19e5:d500": "Ascend 310P",
    "19e5:d801": "Ascend 910",
    "19e5:d802": "Ascend 910B",
    "19e5:d803": "Ascend 910_93",
}

_FILE = re.compile(r"davinci([0-9]{1,4})")

_ITS_OWN_MEMORY = DeviceMemory(
    total_bytes=None, free_bytes=None, is_shared=False, source="not reported by the kernel"
)


def ascend_npus(
    system: System, *, known: Collection[Path], unused: str
) -> tuple[tuple[Device, ...], frozenset[Path]]:
    """Return Ascend NPUs that are not at one of the paths ``known``, and their paths in sysfs.

    ``unused`` says why nothing runs on them. If there are as many device files as NPUs, they are
    assumed to be in the same order, since no file shows which belongs to which.
    """
    functions = [each for each in system.pci_devices() if _is_ascend(each)]
    found = [each for each in functions if each.path not in known]
    numbered = [
        (int(match[1]), path)
        for path in system.entries(system.dev)
        if (match := _FILE.fullmatch(path.name)) is not None
    ]
    files = [path for _, path in sorted(numbered)]
    if not functions:
        return tuple(_on_chip(system, file, unused) for file in files), frozenset()
    is_paired = len(files) == len(found)
    devices = tuple(
        _on_bus(
            system,
            function,
            files[index] if is_paired else None,
            unused,
            is_file_known=is_paired or not files,
        )
        for index, function in enumerate(found)
    )
    return devices, frozenset(each.path for each in found)


def _is_ascend(function: PciDevice) -> bool:
    is_accelerator = function.device_class >> 16 == _PROCESSING_ACCELERATORS
    return function.vendor == _VENDOR and (is_accelerator or function.ids in _NAMES)


def _on_bus(
    system: System, function: PciDevice, file: Path | None, unused: str, *, is_file_known: bool
) -> Device:
    trouble = problem(system, function.driver, file) if is_file_known else ""
    return Device(
        device_id=device_id(system, function.path),
        kind=DeviceKind.NPU,
        make="Huawei",
        name=_NAMES.get(function.ids, "Ascend NPU"),
        reported_name="",
        chip=function.ids,
        driver=function.driver,
        device_files=() if file is None else (str(file),),
        memory=_ITS_OWN_MEMORY,
        problem=f"{unused}; {trouble}" if trouble else unused,
    )


def _on_chip(system: System, file: Path, unused: str) -> Device:
    """Return an NPU that is known only from its device file: part of a board's chip, or in a
    container.
    """
    return Device(
        device_id=file.name,
        kind=DeviceKind.NPU,
        make="Huawei",
        name="Ascend NPU",
        reported_name="",
        chip="",
        driver="davinci",
        device_files=(str(file),),
        memory=shared_memory(system),
        problem=unused,
    )
