"""Match OpenCL devices with devices that other detectors found. Pure.

They are matched by PCI address if the driver reports it. Otherwise a driver's only device of a
vendor matches the only candidate of that vendor; if there are several, nothing is guessed.
Unmatched devices are listed separately, since the bus may not be visible in containers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from potluck.probe.detectors import opencl, other
from potluck.probe.gpus.icds import icd_file
from potluck.types.backend import DeviceKind
from potluck.types.hardware import DetectorReport, Device

_PCI = "pci-"


def match_opencl(reports: Sequence[DetectorReport]) -> tuple[DetectorReport, ...]:
    """Return ``reports`` with OpenCL's devices assigned to those of other detectors.

    A device that is available through OpenCL gets the interfaces in the order of OpenCL's report.
    Unmatched devices stay in that report, with one id for several drivers of one device.
    """
    found = [
        device for report in reports if report.detector == opencl.NAME for device in report.devices
    ]
    others = [
        device for report in reports if report.detector != opencl.NAME for device in report.devices
    ]
    matches = _matches(found, others)
    of_device: dict[str, list[Device]] = defaultdict(list)
    left: dict[str, Device] = {}
    problems = []
    for number, device in enumerate(found):
        match matches[number]:
            case [target]:
                of_device[target].append(device)
            case []:
                known = left.get(device.device_id)
                left[device.device_id] = (
                    device if known is None else _with_interfaces(known, [device])
                )
            case several:
                where = device.device_id.removeprefix(_PCI)
                problems.append(
                    f"{icd_file(device.interfaces[0].address)}: {device.name} at {where} is one"
                    f" of {len(several)} devices there, and OpenCL does not report which"
                )
    return tuple(
        replace(report, devices=tuple(left.values()), problems=(*report.problems, *problems))
        if report.detector == opencl.NAME
        else replace(report, devices=tuple(_joined(each, of_device) for each in report.devices))
        for report in reports
    )


def _matches(found: Sequence[Device], others: Sequence[Device]) -> list[list[str]]:
    """Return the ids of the possible matches of each device: one, none, or several at one PCI
    address.
    """
    matches = [[each.device_id for each in _at(device, others)] for device in found]
    for icd in dict.fromkeys(icd_file(device.interfaces[0].address) for device in found):
        mine = [
            number
            for number, device in enumerate(found)
            if icd_file(device.interfaces[0].address) == icd
        ]
        taken = {target for number in mine for target in matches[number]}
        unmatched = [
            number for number in mine if not matches[number] and not found[number].is_software
        ]
        for make in dict.fromkeys(found[number].make for number in unmatched):
            alike = [number for number in unmatched if found[number].make == make]
            candidates = _candidates(found[alike[0]], make, others, taken)
            if len(alike) == len(candidates) == 1:
                matches[alike[0]] = [candidates[0].device_id]
    return matches


def _at(device: Device, others: Sequence[Device]) -> Iterator[Device]:
    """Return the devices at the same PCI address: one, or its partitions."""
    if device.device_id.startswith(_PCI):
        for other_device in others:
            whole = other_device.device_id == device.device_id
            if whole or other_device.device_id.startswith(f"{device.device_id}-"):
                yield other_device


def _candidates(
    device: Device, make: str, others: Sequence[Device], taken: set[str]
) -> list[Device]:
    """Return the devices of a vendor that this driver's other devices do not match already.

    A device with a known address on the bus does not match one at another address. A device that
    cannot be used is a candidate only if there is no other.
    """
    is_placed = device.device_id.startswith(_PCI)
    candidates = [
        each
        for each in others
        if each.kind is DeviceKind.GPU
        and each.make == make != ""
        and each.device_id not in taken
        and not (is_placed and each.device_id.startswith(_PCI))
    ]
    usable = [each for each in candidates if _problem(each) == ""]
    return usable or candidates


def _joined(device: Device, of_device: dict[str, list[Device]]) -> Device:
    shown = of_device.get(device.device_id)
    if not shown:
        return device
    is_memory_known = device.memory.total_bytes is not None
    return replace(
        _with_interfaces(device, shown),
        memory=device.memory if is_memory_known else shown[0].memory,
        problem=_problem(device),
    )


def _problem(device: Device) -> str:
    """Return the device's problem; the lack of a backend is not one if OpenCL is available."""
    return "" if device.problem == other.UNUSED else device.problem


def _with_interfaces(device: Device, shown: Sequence[Device]) -> Device:
    more = tuple(interface for each in shown for interface in each.interfaces)
    return replace(device, interfaces=(*device.interfaces, *more))
