"""Huawei's Ascend NPUs: functions on the PCI bus, or device files alone; no backend drives them.

Sources: Huawei's own script that collects logs of its driver, for the numbers on PCI; the files
that Huawei has one pass to containers (``--device /dev/davinci0``), one for each NPU.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from potluck.probe.boards import device_id, problem, shared_memory
from potluck.probe.system import PciDevice, System
from potluck.types.hardware import Device, DeviceKind, DeviceMemory

_VENDOR = 0x19E5
_PROCESSING_ACCELERATORS = 0x12
"""The base class on PCI; Huawei makes network cards as well."""

_NAMES = {
    "19e5:d100": "Ascend 310",
    "19e5:d500": "Ascend 310P",
    "19e5:d801": "Ascend 910",
    "19e5:d802": "Ascend 910B",
    "19e5:d803": "Ascend 910_93",
}

_FILE = re.compile(r"davinci([0-9]{1,4})")

_ITS_OWN_MEMORY = DeviceMemory(
    total_bytes=None, free_bytes=None, is_shared=False, source="no file of the kernel tells it"
)


def ascend_npus(
    system: System, *, known: Collection[Path], unused: str
) -> tuple[tuple[Device, ...], frozenset[Path]]:
    """Return Ascend NPUs that are not at one of the places ``known``, and their places in sysfs.

    ``unused`` says why nothing runs on them. Which device file belongs to which of several NPUs no
    file tells: they are taken to be in the same order, where there are as many of both.
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
    """An NPU that only its file tells of: one inside a board's chip, or in a container."""
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
