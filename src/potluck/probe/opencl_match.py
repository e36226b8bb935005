"""Which devices of OpenCL are devices that other layers found. Pure.

By their place on the PCI bus where the driver tells it. Else a driver's only device of a make is
the only device of that make that it could be; a guess between several is not made. What belongs to
no other is listed by itself: in containers there may be no bus to see.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from potluck.probe.icds import icd_file
from potluck.probe.layers import opencl, other
from potluck.types.hardware import Device, DeviceKind, LayerReport

_PCI = "pci-"


def match_opencl(reports: Sequence[LayerReport]) -> tuple[LayerReport, ...]:
    """``reports`` with what OpenCL found put where it belongs.

    A device that OpenCL reaches gets the interfaces in the order in which OpenCL's layer has them;
    the rest stays in that layer, under one id for several drivers of one device.
    """
    found = [
        device for report in reports if report.layer == opencl.NAME for device in report.devices
    ]
    others = [
        device for report in reports if report.layer != opencl.NAME for device in report.devices
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
                    f"{icd_file(device.interfaces[0].address)}: {device.name} at {where} is one of"
                    f" {len(several)} devices there, and OpenCL does not tell which"
                )
    return tuple(
        replace(report, devices=tuple(left.values()), problems=(*report.problems, *problems))
        if report.layer == opencl.NAME
        else replace(report, devices=tuple(_joined(each, of_device) for each in report.devices))
        for report in reports
    )


def _matches(found: Sequence[Device], others: Sequence[Device]) -> list[list[str]]:
    """The ids of the devices that each found one may be: one, none, or several at one address."""
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
    """The devices at the same place on the PCI bus: one, or the parts that it is cut into."""
    if device.device_id.startswith(_PCI):
        for other_device in others:
            whole = other_device.device_id == device.device_id
            if whole or other_device.device_id.startswith(f"{device.device_id}-"):
                yield other_device


def _candidates(
    device: Device, make: str, others: Sequence[Device], taken: set[str]
) -> list[Device]:
    """Devices of a make that a driver has shown nothing else of.

    One with a known place on the bus is not one at another place. One that cannot be used is none
    that OpenCL shows, unless there is no other.
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
    is_told = device.memory.total_bytes is not None
    return replace(
        _with_interfaces(device, shown),
        memory=device.memory if is_told else shown[0].memory,
        problem=_problem(device),
    )


def _problem(device: Device) -> str:
    """Its problem; that nothing is there to use it is none once OpenCL is."""
    return "" if device.problem == other.UNUSED else device.problem


def _with_interfaces(device: Device, shown: Sequence[Device]) -> Device:
    more = tuple(interface for each in shown for interface in each.interfaces)
    return replace(device, interfaces=(*device.interfaces, *more))
