"""The machine as builds see it: what its files tell, and what the probe found out besides.

Which builds load where is told by ``potluck.portability`` from such descriptions. Files are read in
a child process: NumPy, which that needs, may be what does not load here, and a node that is asked
once should not hold it for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from potluck.portability.host import Host, HostGpu
from potluck.probe.child import ChildFailure, run_child
from potluck.probe.layers.nvidia_device import MAKE as NVIDIA
from potluck.types.hardware import Device, DeviceKind, ProbeReport

_MODULE = "potluck.probe.children.host"
_SECONDS = 20.0
"""A busy board reads the symbols of some dozen libraries, from a memory card."""
_MAX_RESIDENT_BYTES = 512 << 20
"""NumPy takes some tens of MB, the symbols of the largest library as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHost:
    """``document`` is of schema ``potluck.host/1``; ``problem`` says why there is none."""

    document: dict[str, object] | None
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What drivers told the probe, as ``portability.host.Host`` has it; None and empty for what is
    not known.
    """

    name: str
    cuda_driver: tuple[int, ...] | None
    cuda_version: tuple[int, int] | None
    gpus: tuple[HostGpu, ...]


def describe_node(report: ProbeReport) -> NodeHost:
    """The machine that this process runs on. Blocks for some tenths of a second, and more on a
    board; never raises because of the machine.
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
    """Of several NVIDIA GPUs the driver is one and the same. Pure."""
    gpus = [device for device in report.devices if _is_driven_gpu(device)]
    told = [dict(device.versions) for device in gpus if device.make == NVIDIA]
    drivers = [numbers for each in told if (numbers := _numbers(each.get("driver", "")))]
    cuda = [numbers for each in told if len(numbers := _numbers(each.get("CUDA", ""))) == 2]
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
    """``host`` with what drivers told. Pure.

    What they did not tell stays as the files told it: a probe that goes on may have found no GPU
    yet.
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
    """(535, 104, 5) of ``535.104.05``; empty for what is no such version."""
    parts = version.split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()
