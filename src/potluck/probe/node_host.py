"""Describe this machine for checks of builds, from its files and from the probe's report.

``potluck.portability`` uses such descriptions to check which builds load on which host. The files
are read in a child process, because reading them requires NumPy, which may fail to load and should
not stay in a node's memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from potluck.host.child import ChildFailure, run_child
from potluck.portability.hosts.host import Host, HostGpu
from potluck.types.backend import DeviceKind
from potluck.types.hardware import NVIDIA, Device, ProbeReport

_MODULE = "potluck.probe.children.host"
_SECONDS = 20.0
"""A busy board may have to read the symbols of a dozen or more libraries from a memory card."""
_MAX_RESIDENT_BYTES = 512 << 20
"""NumPy uses tens of MB, and the symbols of the largest library about as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHost:
    """A host description (schema ``potluck.host/1``), or the ``problem`` that prevented it."""

    document: dict[str, object] | None
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Values that drivers reported to the probe, as in ``portability.hosts.host.Host``; None or
    empty if unknown.
    """

    name: str
    cuda_driver: tuple[int, ...] | None
    cuda_version: tuple[int, int] | None
    gpus: tuple[HostGpu, ...]


def describe_node(report: ProbeReport) -> NodeHost:
    """Describe this machine.

    Blocks for a few tenths of a second, longer on a board. Never raises because of the machine.
    """
    outcome = run_child(
        _MODULE,
        (msgspec.json.encode(hardware_of(report)).decode(),),
        deadline_seconds=_SECONDS,
        max_resident_bytes=_MAX_RESIDENT_BYTES,
    )
    if isinstance(outcome, ChildFailure):
        return NodeHost(document=None, problem=outcome.reason)
    return NodeHost(document=outcome.document, problem="")


def hardware_of(report: ProbeReport) -> Hardware:
    """Return the values that drivers reported; all NVIDIA GPUs have the same driver. Pure."""
    gpus = [device for device in report.devices if _is_driven_gpu(device)]
    versions = [dict(device.versions) for device in gpus if device.make == NVIDIA]
    drivers = [numbers for each in versions if (numbers := _numbers(each.get("driver", "")))]
    cuda = [numbers for each in versions if len(numbers := _numbers(each.get("CUDA", ""))) == 2]
    return Hardware(
        name=report.host_name,
        cuda_driver=drivers[0] if drivers else None,
        cuda_version=(cuda[0][0], cuda[0][1]) if cuda else None,
        gpus=tuple(
            HostGpu(name=device.name, compute_capability=device.compute_capability)
            for device in gpus
        ),
    )


def with_hardware(host: Host, hardware: Hardware) -> Host:
    """Return ``host`` with the values that drivers reported. Pure.

    Values that they did not report stay as read from files, since a running probe may not have
    found a GPU yet.
    """
    return replace(
        host,
        name=hardware.name,
        cuda_driver=hardware.cuda_driver or host.cuda_driver,
        cuda_version=hardware.cuda_version or host.cuda_version,
        gpus=hardware.gpus or host.gpus,
    )


def _is_driven_gpu(device: Device) -> bool:
    return device.kind is DeviceKind.GPU and not device.is_software and bool(device.driver)


def _numbers(version: str) -> tuple[int, ...]:
    """Return (535, 104, 5) for ``535.104.05``; empty if it is not a dotted version."""
    parts = version.split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()
