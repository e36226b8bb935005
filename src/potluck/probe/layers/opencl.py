"""What OpenCL shows: GPUs, which mostly are devices of other layers too, and CPUs that play GPUs.

Files tell which drivers are installed (``probe.icds``). Each is asked in a process of its own, in
which no other is loaded, so that one that crashes or hangs costs itself only. Whether a device is
one that another layer has found is decided when all layers are done (``probe.opencl_match``).
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from functools import partial

import msgspec

from potluck.probe.child import ChildFailure, ChildOutcome
from potluck.probe.child_output import one_line
from potluck.probe.children.opencl_document import OpenclDevice, OpenclDocument
from potluck.probe.chips import table_figures
from potluck.probe.icds import Icd, installed_icds, library_identity
from potluck.probe.layer import Layer, VendorQuery
from potluck.probe.names import normalize_name, printable
from potluck.probe.pci_gpu import plausible_bytes
from potluck.probe.system import System
from potluck.quantities import format_bytes
from potluck.types.hardware import Device, DeviceKind, DeviceMemory, Interface, LayerReport

NAME = "opencl"

_TYPE_CPU = 1 << 1
_TYPE_GPU = 1 << 2

_SOFTWARE = re.compile(r"llvmpipe|softpipe|swrast|lavapipe|swiftshader|emulation", re.IGNORECASE)
"""Mesa's rasterizers, shown through rusticl, clvk or Vulkan; Google's; Intel's emulated FPGA."""

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
"""Makes as the other layers call them, by what drivers say; the first that fits. Mesa's drivers
often name a device for its driver (FD650, V3D 7.1)."""

_MAX_UNITS = 1 << 16
_MAX_CLOCK_MHZ = 100_000
"""Far above any device; what is above, and 0, means nothing."""

_PCI_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
_NOWHERE = "0000:00:00.0"
"""The PCI bus's root: what drivers say of devices that are not on the bus."""


def _find(system: System) -> LayerReport:
    return LayerReport(layer=NAME, problems=installed_icds(system, os.environ).problems)


def _queries(system: System, report: LayerReport) -> tuple[VendorQuery, ...]:
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


def merge(icd: Icd, report: LayerReport, outcome: ChildOutcome) -> LayerReport:
    """``report`` with the devices of one driver, or the line that says why there are none."""
    if isinstance(outcome, ChildFailure):
        return _with_problems(report, f"{icd.file}: {outcome.reason}")
    try:
        document = msgspec.convert(outcome.document, OpenclDocument)
    except msgspec.ValidationError as error:
        return _with_problems(report, f"{icd.file}: the answer makes no sense: {error}")
    if document.loader_problem:
        return _with_problems(report, document.loader_problem)
    devices = tuple(_device(icd, number, told) for number, told in enumerate(document.devices))
    lines = (f"{icd.file}: {problem}" for problem in document.problems)
    return _with_problems(replace(report, devices=(*report.devices, *devices)), *lines)


def _with_problems(report: LayerReport, *lines: str) -> LayerReport:
    """Each line once: that there is no loader is not worth a line for every driver."""
    problems = dict.fromkeys((*report.problems, *map(one_line, lines)))
    return replace(report, problems=tuple(problems))


def _device(icd: Icd, number: int, told: OpenclDevice) -> Device:
    reported_name = printable(told.name or "")
    is_software = _is_software(told)
    address = "" if is_software else _address(told)
    name = normalize_name(reported_name) or f"OpenCL device of {icd.name}"
    versions = {"OpenCL driver": printable(told.driver_version or "")}
    return Device(
        device_id=f"pci-{address}" if address else f"opencl-{icd.name}-{number}",
        kind=_kind(told),
        make=make_of(told),
        name=name,
        reported_name=reported_name,
        chip="",
        driver="",
        device_files=(),
        memory=_memory(told, is_shared=is_software or bool(told.is_shared)),
        figures=table_figures(reported_name, chip=""),
        versions=tuple((what, version) for what, version in versions.items() if version),
        interfaces=(
            Interface(
                api="opencl",
                address=f"{icd.file}#{told.platform}:{told.device}",
                description=_description(told),
            ),
        ),
        is_software=is_software,
    )


def _kind(told: OpenclDevice) -> DeviceKind:
    """A CPU that OpenCL computes on is used as GPUs are; what is neither is an accelerator."""
    return DeviceKind.GPU if told.type & (_TYPE_GPU | _TYPE_CPU) else DeviceKind.NPU


def _is_software(told: OpenclDevice) -> bool:
    is_cpu = bool(told.type & _TYPE_CPU) and not told.type & _TYPE_GPU
    names = f"{told.platform_name} {told.name} {told.vendor}"
    return is_cpu or _SOFTWARE.search(names) is not None


def make_of(told: OpenclDevice) -> str:
    """The make, as the other layers call it; else what the driver says, cleaned."""
    for text in (f"{told.name} {told.vendor}", told.platform_name):
        for make, pattern in _MAKES:
            if pattern.search(text):
                return make
    return printable(told.vendor or "")


def _address(told: OpenclDevice) -> str:
    address = told.pci_address or ""
    return address if _PCI_ADDRESS.fullmatch(address) and address != _NOWHERE else ""


def _memory(told: OpenclDevice, *, is_shared: bool) -> DeviceMemory:
    total = plausible_bytes(told.memory_bytes)
    return DeviceMemory(
        total_bytes=total or None,
        free_bytes=None,
        is_shared=is_shared,
        source="OpenCL, which does not tell what is free" if total else "OpenCL tells no size",
    )


def _description(told: OpenclDevice) -> str:
    """What the driver says of the device: ``Mali-G610 r0p0, driver 3.0, 4 units at 1000 MHz, …``"""
    parts = [printable(told.name or ""), f"driver {printable(told.driver_version or '?')}"]
    if told.num_units is not None and 0 < told.num_units <= _MAX_UNITS:
        clock = told.clock_mhz
        is_known = clock is not None and 0 < clock <= _MAX_CLOCK_MHZ
        parts.append(f"{told.num_units} units" + (f" at {clock} MHz" if is_known else ""))
    if largest := plausible_bytes(told.largest_bytes):
        parts.append(f"buffers up to {format_bytes(largest)}")
    if told.has_f16:
        parts.append("float16")
    return ", ".join(part for part in parts if part)


LAYER = Layer(name=NAME, find=_find, queries=_queries, is_joined=True)
