"""OpenCL devices: GPUs, most of which other detectors also find, and software-emulated GPUs.

Files show which drivers are installed (``probe.gpus.icds``). Each is queried in a separate process
without the others, so that a crash or hang affects only that driver. Devices are matched with those
of other detectors when all detectors are done (``probe.detectors.opencl_match``).
"""

from __future__ import annotations

import os
import re
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
from potluck.probe.gpus.icds import Icd, installed_icds, library_identity
from potluck.probe.gpus.pci_gpu import plausible_bytes
from potluck.types.backend import DeviceKind
from potluck.types.hardware import DetectorReport, Device, DeviceMemory
from potluck.types.quantities import format_bytes
from potluck.types.unit import Interface

NAME = "opencl"

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
        device_id=f"pci-{address}" if address else f"opencl-{icd.name}-{number}",
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


DETECTOR = Detector(name=NAME, find=_find, queries=_queries, is_joined=True)
