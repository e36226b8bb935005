"""Intel's GPUs, integrated ones and cards, with the driver i915 or xe.

**Integrated or a card.** A GPU that reports its own memory is a card. The kernel's drivers report
it only to programs that open the device, which a child process does (``children/intel_memory.py``).
From files alone, the address decides: an integrated GPU is device 2 of the first bus (QEMU's
``docs/igd-assign.txt``), ``0000:00:02.0``, and its virtual functions follow (``00:02.1`` …); a card
is behind a bridge. A device elsewhere on the first bus, such as a card passed through to a virtual
machine, counts as a card.

No file contains the number of execution units, so figures come from the table. Another detector
finds Intel's NPUs.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec

from potluck.host.boards import shared_memory, unknown_memory
from potluck.host.child import ChildFailure, ChildOutcome
from potluck.host.system import PciDevice, RenderNode, System, printable
from potluck.probe.children.documents import IntelCard, IntelDocument
from potluck.probe.chips.lookup import table_figures
from potluck.probe.chips.names import normalize_name
from potluck.probe.detector import Detector, VendorQuery
from potluck.probe.gpus.pci_gpu import (
    database_name,
    memory_bytes,
    module_version,
    plausible_bytes,
    render_nodes,
    why_unusable,
)
from potluck.types.backend import DeviceKind
from potluck.types.hardware import DetectorReport, Device, DeviceMemory

_VENDOR = 0x8086

_DISPLAY_CLASS = 0x03
"""The class of all GPUs, including data center cards; Intel's NPUs have class 0x12, processing
accelerators."""

_INTEGRATED = "0000:00:02."


def _find(system: System) -> DetectorReport:
    renders = render_nodes(system)
    return DetectorReport(
        detector=DETECTOR.name,
        devices=tuple(
            _device(system, pci, renders.get(pci.path))
            for pci in system.pci_devices()
            if pci.vendor == _VENDOR and pci.device_class >> 16 == _DISPLAY_CLASS
        ),
    )


def _device(system: System, pci: PciDevice, render: RenderNode | None) -> Device:
    reported_name = database_name(system, pci)
    file = None if render is None else render.device_file
    version = module_version(system, pci.driver)
    return Device(
        device_id=f"pci-{pci.address}",
        kind=DeviceKind.GPU,
        make="Intel",
        name=normalize_name(reported_name) or pci.ids,
        reported_name=reported_name,
        chip=pci.ids,
        driver=pci.driver,
        device_files=() if file is None else (str(file),),
        memory=_memory(system, pci),
        figures=table_figures(reported_name, chip=pci.ids),
        versions=(("driver", version),) if version else (),
        problem=why_unusable(system, pci.driver, file),
    )


def _memory(system: System, pci: PciDevice) -> DeviceMemory:
    files = _size_files(system, pci.path)
    sizes = [size for file in files if (size := memory_bytes(system, file))]
    if sizes:
        return DeviceMemory(
            total_bytes=sum(sizes),
            free_bytes=None,
            is_shared=False,
            source=f"{pci.driver} ({files[0].name}), which does not report free memory",
        )
    if pci.address.startswith(_INTEGRATED):
        return shared_memory(system)
    return unknown_memory(f"no size reported by {pci.driver or 'a device without a driver'}")


def _size_files(system: System, device: Path) -> list[Path]:
    """Return one file per tile (xe), or one for the card (i915), of Intel's builds of the drivers.

    Sources: igt-gpu-tools' ``tests/intel/xe_sysfs_tile.c``; Intel's i915 backports, which put the
    file into the directory of the DRM card.
    """
    tiles = [entry for entry in system.entries(device) if entry.name.startswith("tile")]
    cards = [entry for entry in system.entries(device / "drm") if entry.name.startswith("card")]
    files = [tile / "physical_vram_size_bytes" for tile in tiles]
    files += [card / "lmem_total_bytes" for card in cards]
    return [file for file in files if system.number(file) is not None]


def _queries(system: System, report: DetectorReport) -> tuple[VendorQuery, ...]:
    is_wanted = any(_needs_memory_query(device) for device in report.devices)
    return (_MEMORY,) if is_wanted else ()


def _needs_memory_query(device: Device) -> bool:
    return not device.memory.is_shared and not device.problem


def merge(report: DetectorReport, outcome: ChildOutcome) -> DetectorReport:
    """Merge the drivers' answers about the cards' memory into the report."""
    if isinstance(outcome, ChildFailure):
        return _with_problems(report, [outcome.reason])
    try:
        document = msgspec.convert(outcome.document, IntelDocument)
    except msgspec.ValidationError as error:
        return _with_problems(report, [f"the answer is invalid: {error}"])
    cards = {f"pci-{card.address}": card for card in document.cards}
    devices = tuple(
        dataclasses.replace(device, memory=_reported_memory(device, cards[device.device_id]))
        if _needs_memory_query(device) and device.device_id in cards
        else device
        for device in report.devices
    )
    updated = dataclasses.replace(report, devices=devices)
    return _with_problems(updated, [printable(problem) for problem in document.problems])


def _with_problems(report: DetectorReport, reasons: list[str]) -> DetectorReport:
    prefix = "the drivers do not report the memory size of the cards"
    return report.with_problems(*(f"{prefix}: {why}" for why in reasons))


def _reported_memory(device: Device, card: IntelCard) -> DeviceMemory:
    if card.total_bytes == 0:
        reason = f"{device.driver} reports that it has no memory of its own"
        return unknown_memory(reason, is_shared=True)
    total = plausible_bytes(card.total_bytes)
    free = card.free_bytes
    if total is None:
        return device.memory
    return DeviceMemory(
        total_bytes=total,
        free_bytes=free if free is not None and 0 <= free <= total else None,
        is_shared=False,
        source=f"{device.driver} (memory regions)"
        + ("" if free is not None else ", which reports free memory to administrators only"),
    )


_MEMORY = VendorQuery(module="potluck.probe.children.intel_memory", merge=merge)

DETECTOR = Detector(name="intel", find=_find, queries=_queries)
