"""A node on which nothing could be found out. Needs no other module that could be at fault."""

from __future__ import annotations

import platform
from dataclasses import replace

from potluck.types.capabilities import DeviceCapabilities, Flops, Source, Sources, Support
from potluck.types.hardware import DeviceKind, Origin
from potluck.types.unit import Role


def unnamed_machine() -> str:
    """For a machine that nothing names: what ``uname -m`` says."""
    return f"{platform.machine() or 'unknown'} machine"


def unknown_node(reason: str) -> DeviceCapabilities:
    """A CPU of which nothing is known, and why."""
    nothing = Source(origin=Origin.UNKNOWN, text=reason)
    no_support = Support(is_supported=False, reason=reason)
    cpu = DeviceCapabilities(
        model=unnamed_machine(),
        chip=platform.machine() or "of unknown name",
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
