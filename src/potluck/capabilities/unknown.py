"""The result for a node whose probe failed. It imports no module that could be the cause."""

from __future__ import annotations

import platform
from dataclasses import replace

from potluck.types.backend import DeviceKind
from potluck.types.capabilities import DeviceCapabilities, Flops, Source, Sources, Support
from potluck.types.hardware import Origin
from potluck.types.unit import Role


def unnamed_machine() -> str:
    """Return the name of an unidentified machine: the output of ``uname -m``."""
    return f"{platform.machine() or 'unknown'} machine"


def unknown_node(reason: str) -> DeviceCapabilities:
    """Return a node with an unknown CPU, with the reason."""
    nothing = Source(origin=Origin.UNKNOWN, text=reason)
    no_support = Support(is_supported=False, reason=reason)
    cpu = DeviceCapabilities(
        model=unnamed_machine(),
        chip=platform.machine() or "unknown model",
        memory=None,
        total_memory=None,
        flops=Flops(),
        read_bytes_per_second=None,
        f16=no_support,
        int8=no_support,
        sources=Sources(
            memory=nothing,
            total_memory=nothing,
            fp32=nothing,
            fp16=nothing,
            int8=nothing,
            read_bytes_per_second=nothing,
        ),
        device_id="cpu",
        kind=DeviceKind.CPU,
        is_software=False,
        backend="",
        role=Role.OUT,
        reason=reason,
    )
    return replace(cpu, devices=(cpu,))
