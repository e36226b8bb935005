"""OpenCL devices: GPUs, most of which other detectors also find, and software-emulated GPUs.

Files show which drivers are installed (``probe.gpus.icds``). Each is queried in a separate process
without the others, so that a crash or hang affects only that driver.

When all detectors are done, ``match_opencl`` matches the devices with those that others found: by
PCI address if the driver reports it. Otherwise a driver's only device of a vendor matches the only
candidate of that vendor; if there are several, nothing is guessed. Unmatched devices are listed
separately, since the bus may not be visible in containers.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import msgspec

from potluck.host.child import ChildFailure, ChildOutcome
from potluck.host.child_output import one_line
from potluck.host.system import System, printable
from potluck.probe.children.documents import OpenclDevice, OpenclDocument
from potluck.probe.chips.lookup import table_figures
from potluck.probe.chips.names import normalize_name
from potluck.probe.detector import Detector, VendorQuery
from potluck.probe.detectors import other
from potluck.probe.gpus.icds import Icd, icd_file, installed_icds, library_identity
from potluck.probe.gpus.pci_gpu import plausible_bytes
from potluck.types.backend import DeviceKind
from potluck.types.hardware import DetectorReport, Device, DeviceMemory
from potluck.types.quantities import format_bytes
from potluck.types.unit import Interface

NAME = "opencl"

_PCI = "pci-"

_TYPE_CPU = 1 << 1
_TYPE_GPU = 1 << 2

_SOFTWARE = re.compile(r"llvmpipe|softpipe|swrast|lavapipe|swiftshader|emulation", re.IGNORECASE)
"""Mesa's rasterizers (through rusticl, clvk or Vulkan), Google's, and Intel's emulated FPGA."""

_MAKES = (
    ("Arm Mali", re.compile(r"\bmali\b|immortalis|\barm\b", re.IGNORECASE)),
    ("Qualcomm Adreno", re.compile(r"adreno|qualcomm|freedreno|\bfd\d{3}\b", re.IGNORECASE)),
    ("NVIDIA", re.compile(r"nvidia|nouveau|geforce|tesla", re.IGNORECASE)),
    ("AMD", re.compile(r"\bamd\b|advanced micro devices|radeon", re.IGNORECASE)),
    ("Intel", re.compile(r"\bintel\b", re.IGNORECASE)),
    ("Broadcom", re.compile(r"broadcom|videocore|\bv3d\b", re.IGNORECASE)),
    ("Imagination", re.compile(r"imagination|powervr", re.IGNORECASE)),
    ("Vivante", re.compile(r"vivante", re.IGNORECASE)),
)
"""Vendors as the other detectors name them, by patterns in drivers' strings; the first match
counts. Mesa's drivers often name a device after its driver (FD650, V3D 7.1).
"""

_MAX_UNITS = 1 << 16
_MAX_CLOCK_MHZ = 100_000
"""Far above the values of any device; larger values, and 0, are invalid."""

_PCI_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
_NOWHERE = "0000:00:00.0"
"""The root of the PCI bus, which drivers report for devices that are not on the bus."""


def _find(system: System) -> DetectorReport:
    return DetectorReport(detector=NAME, problems=installed_icds(system, os.environ).problems)


def _queries(system: System, report: DetectorReport) -> tuple[VendorQuery, ...]:
    return tuple(
        VendorQuery(
            module="potluck.probe.children.opencl",
            arguments=(icd.library,),
            environment=icd.environment,
            details=library_identity(system, icd),
            merge=partial(merge, icd),
        )
        for icd in installed_icds(system, os.environ).icds
    )


def merge(icd: Icd, report: DetectorReport, outcome: ChildOutcome) -> DetectorReport:
    """Return ``report`` with the devices of one driver, or a line that says why there are none."""
    if isinstance(outcome, ChildFailure):
        return _with_problems(report, f"{icd.file}: {outcome.reason}")
    try:
        document = msgspec.convert(outcome.document, OpenclDocument)
    except msgspec.ValidationError as error:
        return _with_problems(report, f"{icd.file}: the answer is invalid: {error}")
    if document.loader_problem:
        return _with_problems(report, document.loader_problem)
    devices = tuple(
        _device(icd, number, reported) for number, reported in enumerate(document.devices)
    )
    lines = (f"{icd.file}: {problem}" for problem in document.problems)
    return _with_problems(replace(report, devices=(*report.devices, *devices)), *lines)


def _with_problems(report: DetectorReport, *lines: str) -> DetectorReport:
    """Add lines without duplicates, so that a missing loader is reported only once."""
    problems = dict.fromkeys((*report.problems, *map(one_line, lines)))
    return replace(report, problems=tuple(problems))


def _device(icd: Icd, number: int, reported: OpenclDevice) -> Device:
    reported_name = printable(reported.name or "")
    is_software = _is_software(reported)
    address = "" if is_software else _address(reported)
    name = normalize_name(reported_name) or f"OpenCL device of {icd.name}"
    versions = {"OpenCL driver": printable(reported.driver_version or "")}
    return Device(
        device_id=f"{_PCI}{address}" if address else f"opencl-{icd.name}-{number}",
        kind=_kind(reported),
        make=make_of(reported),
        name=name,
        reported_name=reported_name,
        chip="",
        driver="",
        device_files=(),
        memory=_memory(reported, is_shared=is_software or bool(reported.is_shared)),
        figures=table_figures(reported_name, chip=""),
        versions=tuple((what, version) for what, version in versions.items() if version),
        interfaces=(
            Interface(
                api="opencl",
                address=f"{icd.file}#{reported.platform}:{reported.device}",
                description=_description(reported),
            ),
        ),
        is_software=is_software,
    )


def _kind(reported: OpenclDevice) -> DeviceKind:
    """Return ``GPU`` for GPUs and for CPUs with OpenCL, and ``NPU`` for other devices."""
    return DeviceKind.GPU if reported.type & (_TYPE_GPU | _TYPE_CPU) else DeviceKind.NPU


def _is_software(reported: OpenclDevice) -> bool:
    is_cpu = bool(reported.type & _TYPE_CPU) and not reported.type & _TYPE_GPU
    names = f"{reported.platform_name} {reported.name} {reported.vendor}"
    return is_cpu or _SOFTWARE.search(names) is not None


def make_of(reported: OpenclDevice) -> str:
    """Return the vendor as the other detectors name it, or else the driver's string, sanitized."""
    for text in (f"{reported.name} {reported.vendor}", reported.platform_name):
        for make, pattern in _MAKES:
            if pattern.search(text):
                return make
    return printable(reported.vendor or "")


def _address(reported: OpenclDevice) -> str:
    address = reported.pci_address or ""
    return address if _PCI_ADDRESS.fullmatch(address) and address != _NOWHERE else ""


def _memory(reported: OpenclDevice, *, is_shared: bool) -> DeviceMemory:
    total = plausible_bytes(reported.memory_bytes)
    return DeviceMemory(
        total_bytes=total or None,
        free_bytes=None,
        is_shared=is_shared,
        source="OpenCL, which does not report free memory" if total else "OpenCL reports no size",
    )


def _description(reported: OpenclDevice) -> str:
    """Return the driver's description of the device: ``Mali-G610 r0p0, driver 3.0, 4 units at 1000
    MHz, …``
    """
    parts = [printable(reported.name or ""), f"driver {printable(reported.driver_version or '?')}"]
    if reported.num_units is not None and 0 < reported.num_units <= _MAX_UNITS:
        clock = reported.clock_mhz
        is_known = clock is not None and 0 < clock <= _MAX_CLOCK_MHZ
        parts.append(f"{reported.num_units} units" + (f" at {clock} MHz" if is_known else ""))
    if largest := plausible_bytes(reported.largest_bytes):
        parts.append(f"buffers up to {format_bytes(largest)}")
    if reported.has_f16:
        parts.append("float16")
    return ", ".join(part for part in parts if part)


def match_opencl(reports: Sequence[DetectorReport]) -> tuple[DetectorReport, ...]:
    """Return ``reports`` with OpenCL's devices assigned to those of other detectors.

    A device that is available through OpenCL gets the interfaces in the order of OpenCL's report.
    Unmatched devices stay in that report, with one id for several drivers of one device.
    """
    found = [device for report in reports if report.detector == NAME for device in report.devices]
    others = [device for report in reports if report.detector != NAME for device in report.devices]
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
        if report.detector == NAME
        else replace(report, devices=tuple(_joined(each, of_device) for each in report.devices))
        for report in reports
    )


def _matches(found: Sequence[Device], others: Sequence[Device]) -> list[list[str]]:
    """Return the ids of the possible matches of each device: one, none, or several at one PCI
    address.
    """
    matches = [[each.device_id for each in _at(device, others)] for device in found]
    of_driver: dict[str, list[int]] = defaultdict(list)
    for number, device in enumerate(found):
        of_driver[icd_file(device.interfaces[0].address)].append(number)
    for mine in of_driver.values():
        taken = {target for number in mine for target in matches[number]}
        unmatched = [
            number for number in mine if not matches[number] and not found[number].is_software
        ]
        for make in dict.fromkeys(found[number].make for number in unmatched):
            alike = [number for number in unmatched if found[number].make == make]
            candidates = _candidates(found[alike[0]], others, taken)
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


def _candidates(device: Device, others: Sequence[Device], taken: set[str]) -> list[Device]:
    """Return the devices of the same vendor that this driver's other devices do not match already.

    A device with a known address on the bus does not match one at another address. A device that
    cannot be used is a candidate only if there is no other.
    """
    is_placed = device.device_id.startswith(_PCI)
    candidates = [
        each
        for each in others
        if each.kind is DeviceKind.GPU
        and each.make == device.make != ""
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


DETECTOR = Detector(name=NAME, find=_find, queries=_queries)
