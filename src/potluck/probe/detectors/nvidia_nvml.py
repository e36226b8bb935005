"""Merge NVML's answer, or its failure, into what the files showed.

GPUs are matched by PCI address. If NVML reports no address (Tegra), the one remaining GPU matches
the one remaining device. GPUs that are not known from files are added, because the bus is not
visible in WSL and in containers. A GPU that is divided into MIG instances is replaced by them.
"""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec

from potluck.host.boards import unknown_memory
from potluck.host.child import ChildFailure, ChildOutcome, Failure
from potluck.host.child_output import one_line
from potluck.host.system import printable
from potluck.probe.children.documents import (
    NvmlCard,
    NvmlDocument,
    NvmlInstance,
    NvmlMemory,
)
from potluck.probe.chips.derive import merge_figures, nvidia_figures
from potluck.probe.chips.lookup import table_figures
from potluck.probe.chips.names import normalize_name
from potluck.probe.detectors.nvidia_device import (
    DRIVER,
    TEGRA_DRIVERS,
    WSL_DRIVER,
    cuda,
    shares_memory,
)
from potluck.types.backend import DeviceKind
from potluck.types.hardware import NVIDIA, DetectorReport, Device, DeviceMemory, Figures
from potluck.types.unit import Interface

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.0")

_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,80}")
"""``GPU-8932f937-d72c-4106-c12f-20bd9faed9f6``, ``MIG-…``, and ``MIG-GPU-…/7/0`` from older drivers
(CUDA C++ Programming Guide, CUDA_VISIBLE_DEVICES; NVIDIA MIG User Guide)."""

_MAX_MEMORY_BYTES = 1 << 46
"""64 TiB: no device has as much; a larger value is a driver error, such as 2^64 - 1."""

_NVML_DRIVERS = frozenset({DRIVER, WSL_DRIVER})
"""Drivers without which NVML, and therefore CUDA, does not work; Tegra's do not need it."""

_NOT_LISTED = (
    "NVML does not list it: the driver could not start it, or it was not passed to this container"
)

_MAX_CORES = 1 << 20
_MAX_CLOCK_MHZ = 100_000
_MAX_BUS_BITS = 1 << 16
_MAX_MAJOR_CAPABILITY = 99
"""Each at least about four times the highest of any GPU; higher values, and 0, are invalid."""

_CORES_PER_MULTIPROCESSOR = {(8, 0): 64, (9, 0): 128, (10, 0): 128, (10, 3): 128, (12, 0): 128}
"""Cores per multiprocessor by compute capability, of GPUs that support MIG (CUDA C++ Programming
Guide, compute capabilities: FP32 cores)."""


def merge(report: DetectorReport, outcome: ChildOutcome) -> DetectorReport:
    """Return ``report`` with the outcome of querying NVML."""
    if isinstance(outcome, ChildFailure):
        return _with_failure(report, outcome)
    try:
        document = msgspec.convert(outcome.document, NvmlDocument)
    except msgspec.ValidationError as error:
        return report.with_problems(one_line(f"NVML's answer is invalid: {error}"))
    if document.cards is None:
        # Tegra works without NVML, which it did not have for years.
        is_missed = not all(_is_tegra(device) for device in report.devices)
        return report.with_problems(*map(one_line, document.problems if is_missed else ()))
    return _with_cards(report, document, _with_distinct_addresses(document.cards))


def _with_failure(report: DetectorReport, failure: ChildFailure) -> DetectorReport:
    """Return ``report`` with the reason why NVML did not answer.

    If the driver refuses NVML, it refuses CUDA as well; other failures do not prove that.
    """
    if failure.failure is not Failure.REFUSED:
        return report.with_problems(one_line(f"NVML: {failure.reason}"))
    devices = tuple(
        replace(device, problem=failure.reason)
        if device.driver in _NVML_DRIVERS and not device.problem
        else device
        for device in report.devices
    )
    return replace(report, devices=devices)


def _with_cards(
    report: DetectorReport, document: NvmlDocument, cards: tuple[NvmlCard, ...]
) -> DetectorReport:
    pairs = _pairs(report.devices, cards)
    joined = {card.index for card in pairs.values()}
    others = [card for card in cards if card.index not in joined]
    # A card without an address is one of the remaining devices, if there are any.
    is_any_left = any(_is_left(device, pairs) for device in report.devices)
    unseen = [card for card in others if card.address or not is_any_left]
    unidentified = [card for card in others if card not in unseen]
    devices: list[Device] = []
    for device in report.devices:
        if card := pairs.get(device.device_id):
            devices += _describe(device, card, document)
        elif _is_stand_in(device) and unseen:
            continue
        elif device.driver in _NVML_DRIVERS and not device.problem and not unidentified:
            devices.append(replace(device, problem=_NOT_LISTED))
        else:
            devices.append(device)
    for card in unseen:
        devices += _describe(_device(card, report), card, document)
    problems = [*document.problems]
    for card in cards:
        who = f"NVIDIA GPU {card.index}" + (f" ({card.address})" if card.address else "")
        lost = [card.problem or "it has no PCI address"] if card in unidentified else []
        problems += [f"{who}: {line}" for line in (*lost, *card.unanswered)]
    return replace(report, devices=tuple(devices)).with_problems(*map(one_line, problems))


def _with_distinct_addresses(cards: tuple[NvmlCard, ...]) -> tuple[NvmlCard, ...]:
    """Return ``cards`` without invalid addresses and addresses that another card already has."""
    seen: set[str | None] = set()
    distinct = []
    for card in cards:
        is_address = _ADDRESS.fullmatch(card.address or "") and card.address not in seen
        seen.add(card.address)
        distinct.append(card if is_address else msgspec.structs.replace(card, address=None))
    return tuple(distinct)


def _pairs(devices: tuple[Device, ...], cards: tuple[NvmlCard, ...]) -> dict[str, NvmlCard]:
    """Return the GPU of each device, by the device's id."""
    ids = {device.device_id for device in devices}
    pairs = {f"pci-{card.address}": card for card in cards if f"pci-{card.address}" in ids}
    left = [device for device in devices if _is_left(device, pairs)]
    others = [card for card in cards if f"pci-{card.address}" not in ids]
    if len(left) == len(others) == 1 and (others[0].address is None or _is_tegra(left[0])):
        pairs[left[0].device_id] = others[0]
    return pairs


def _is_left(device: Device, pairs: dict[str, NvmlCard]) -> bool:
    """Return whether NVML could have reported the device, and no card is matched with it."""
    is_reportable = device.driver == DRIVER or _is_tegra(device)
    return is_reportable and not _is_stand_in(device) and device.device_id not in pairs


def _is_stand_in(device: Device) -> bool:
    """Return whether the device is a placeholder for cards that are not visible in files."""
    return device.device_id.startswith("nvidia-")


def _is_tegra(device: Device) -> bool:
    return device.driver in TEGRA_DRIVERS


def _device(card: NvmlCard, report: DetectorReport) -> Device:
    """Return a GPU that only NVML reports; its files are known if it has its own placeholder."""
    stand_ins = [device for device in report.devices if _is_stand_in(device)]
    is_shared = shares_memory(card.chip or "")
    return Device(
        device_id=f"pci-{card.address}" if card.address else f"nvidia-{card.index}",
        kind=DeviceKind.GPU,
        make=NVIDIA,
        name="",
        reported_name="",
        chip=card.chip or "",
        driver=stand_ins[0].driver if stand_ins else DRIVER,
        device_files=stand_ins[0].device_files if len(stand_ins) == 1 else (),
        memory=unknown_memory("shared system memory", is_shared=is_shared),
    )


def _describe(device: Device, card: NvmlCard, document: NvmlDocument) -> tuple[Device, ...]:
    """Return a device with NVML's data, or its MIG instances."""
    reported_name = printable(card.name or "")
    if _is_tegra(device) or not reported_name:
        # "Orin (nvgpu)" is less specific than the board's model in the device tree.
        reported_name = device.reported_name
    versions = _versions(device, card, document)
    described = replace(
        device,
        name=normalize_name(reported_name) or device.name or f"NVIDIA GPU {card.index}",
        reported_name=reported_name,
        memory=device.memory if device.memory.is_shared else _memory(card.memory),
        figures=merge_figures(_figures(card), table_figures(reported_name, chip=device.chip)),
        versions=versions,
        # NVML creates missing device files, and reads the card through them.
        problem=card.problem or (device.problem if _is_tegra(device) else ""),
        interfaces=_interfaces(card.uuid or card.address, versions) or device.interfaces,
        compute_capability=_capability(card) or device.compute_capability,
    )
    if not card.is_mig or card.problem:
        return (described,)
    if not card.instances:
        return (replace(described, problem="MIG mode is enabled, but there is no MIG instance"),)
    return tuple(_instance(described, card, instance) for instance in card.instances)


def _instance(parent: Device, card: NvmlCard, instance: NvmlInstance) -> Device:
    name = printable(instance.name or "")
    if "MIG" not in name:
        slices = f" {instance.num_slices}g" if instance.num_slices else ""
        name = f"{parent.reported_name} MIG{slices}".strip()
    return replace(
        parent,
        device_id=(f"{parent.device_id}-mig-{instance.gpu_instance}-{instance.compute_instance}"),
        name=normalize_name(name),
        reported_name=name,
        memory=_memory(instance.memory),
        figures=_instance_figures(card, instance),
        interfaces=_interfaces(instance.uuid, parent.versions),
    )


def _interfaces(
    address: str | None, versions: tuple[tuple[str, str], ...]
) -> tuple[Interface, ...]:
    """Return CUDA's interface by a valid UUID or PCI address; an instance only has its own UUID."""
    if address is None or not (_UUID.fullmatch(address) or _ADDRESS.fullmatch(address)):
        return ()
    return (cuda(address, version=dict(versions).get("CUDA", "")),)


def _memory(described: NvmlMemory) -> DeviceMemory:
    total, free = described.total_bytes, described.free_bytes
    if total is None or free is None:
        return unknown_memory(f"NVML: {described.error}")
    if not 0 <= free <= total <= _MAX_MEMORY_BYTES or total == 0:
        return unknown_memory(f"NVML reports impossible sizes: {free} bytes free of {total}")
    return DeviceMemory(total_bytes=total, free_bytes=free, is_shared=False, source="NVML")


def _figures(card: NvmlCard) -> Figures:
    return nvidia_figures(
        num_cores=_plausible(card.num_cores, _MAX_CORES),
        max_sm_clock_hz=_hertz(card.max_sm_clock_mhz),
        bus_width_bits=_plausible(card.bus_width_bits, _MAX_BUS_BITS),
        max_memory_clock_hz=_hertz(card.max_memory_clock_mhz),
        compute_capability=card.compute_capability,
        name=printable(card.name or ""),
    )


def _instance_figures(card: NvmlCard, instance: NvmlInstance) -> Figures:
    """Return the figures of an instance: its multiprocessors, and its share of the memory's
    channels.

    A memory slice is an eighth of the card's memory and of its bandwidth (NVIDIA MIG User Guide,
    Concepts). The driver keeps some of it, so the reported share is a little less.
    """
    num_multiprocessors = _plausible(instance.num_multiprocessors, _MAX_CORES)
    per_multiprocessor = _CORES_PER_MULTIPROCESSOR.get(card.compute_capability or (0, 0))
    num_cores = None
    if num_multiprocessors and per_multiprocessor:
        num_cores = num_multiprocessors * per_multiprocessor
    part, whole = _memory(instance.memory).total_bytes, _memory(card.memory).total_bytes
    bus_width_bits = _plausible(card.bus_width_bits, _MAX_BUS_BITS)
    if bus_width_bits and part and whole:
        bus_width_bits = bus_width_bits * max(1, min(8, round(8 * part / whole))) // 8
    else:
        bus_width_bits = None
    return nvidia_figures(
        num_cores=num_cores,
        max_sm_clock_hz=_hertz(card.max_sm_clock_mhz),
        bus_width_bits=bus_width_bits,
        max_memory_clock_hz=_hertz(card.max_memory_clock_mhz),
        compute_capability=card.compute_capability,
    )


def _capability(card: NvmlCard) -> tuple[int, int] | None:
    """Return major and minor version; the minor version has a single digit, as in ``sm_89``."""
    major, minor = card.compute_capability or (0, 0)
    return (major, minor) if 0 < major <= _MAX_MAJOR_CAPABILITY and 0 <= minor <= 9 else None


def _plausible(value: int | None, most: int) -> int | None:
    return value if value is not None and 0 < value <= most else None


def _hertz(megahertz: int | None) -> int | None:
    plausible = _plausible(megahertz, _MAX_CLOCK_MHZ)
    return None if plausible is None else plausible * 1_000_000


def _versions(
    device: Device, card: NvmlCard, document: NvmlDocument
) -> tuple[tuple[str, str], ...]:
    """Return the versions from NVML, or from files if NVML has none.

    CUDA's is the latest that the driver supports; NVML reports 12020 for CUDA 12.2.
    """
    cuda = document.cuda_version or 0
    described = {
        "driver": printable(document.driver_version or ""),
        "vbios": printable(card.vbios_version or ""),
        "CUDA": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda > 0 else "",
    }
    versions = dict(device.versions) | {name: text for name, text in described.items() if text}
    return tuple(versions.items())
