"""The CPU, which every machine has: it is reported even if nothing else can be read."""

from __future__ import annotations

import platform

from potluck.host.boards import board_model
from potluck.host.cores import present_cores, usable_cores
from potluck.host.cpuinfo import CpuDescription, describe_cpu
from potluck.host.memory import memory_facts
from potluck.host.system import System
from potluck.probe.detector import Detector
from potluck.types.backend import DeviceKind
from potluck.types.hardware import CpuFacts, DetectorReport, Device, DeviceMemory

_FAMILIES = {"aarch64": "arm", "riscv": "riscv", "s390": "s390", "arm": "arm", "x86": "x86"}
"""The layout of ``/proc/cpuinfo`` by prefix of the architecture's name (``uname -m``)."""


def cpu_facts(
    system: System, *, num_affine_cores: int, architecture: str | None = None
) -> CpuFacts:
    """Return the CPU and its usable part; never fails.

    ``num_affine_cores`` is the number of cores that ``sched_getaffinity(2)`` allows this process,
    and ``architecture`` the output of ``uname -m`` (default: that of this process). The name ends
    with the board's if a device tree has it: ``4× Cortex-A76 (Raspberry Pi 5 Model B Rev 1.0)``.
    """
    architecture = architecture or platform.machine()
    name = _name(describe_cpu(system), architecture)
    board = board_model(system)
    usable = usable_cores(system, num_affine_cores=num_affine_cores)
    return CpuFacts(
        name=f"{name} ({board})" if board else name,
        architecture=architecture,
        num_cores=max(present_cores(system) or 0, num_affine_cores, 1),
        num_usable_cores=usable.num_cores,
        usable_reason=usable.reason,
    )


def cpu_report(system: System, *, architecture: str) -> DetectorReport:
    """Return the CPU as the detector's only device, and any problems in determining it."""
    cpu = describe_cpu(system)
    memory = memory_facts(system)
    is_known = memory.total_bytes > 0
    problems = []
    if not is_known:
        problems.append(memory.usable.reason)
    if _is_emulated(cpu, architecture):
        problems.append(
            f"this process is emulated: its architecture is {architecture}, but /proc/cpuinfo"
            " describes another one"
        )
    device = Device(
        device_id="cpu",
        kind=DeviceKind.CPU,
        make=cpu.make,
        name=_name(cpu, architecture),
        reported_name=cpu.reported_name or board_model(system),
        chip=cpu.chip,
        driver="",
        device_files=(),
        memory=DeviceMemory(
            total_bytes=memory.total_bytes if is_known else None,
            free_bytes=memory.free_bytes if is_known else None,
            is_shared=True,
            source="/proc/meminfo" if is_known else memory.usable.reason,
        ),
        versions=(("microcode", cpu.microcode),) if cpu.microcode else (),
    )
    return DetectorReport(detector="cpu", devices=(device,), problems=tuple(problems))


def _find(system: System) -> DetectorReport:
    return cpu_report(system, architecture=platform.machine())


def _name(cpu: CpuDescription, architecture: str) -> str:
    if _is_emulated(cpu, architecture):
        return f"{architecture} emulated on {cpu.name or cpu.family}"
    return cpu.name or architecture


def _is_emulated(cpu: CpuDescription, architecture: str) -> bool:
    """Return whether ``/proc/cpuinfo`` is of another architecture, as under qemu's user mode.

    Newer versions of qemu provide the emulated CPU's file for some architectures; emulation is then
    not detected, which does no harm.
    """
    return bool(cpu.family) and cpu.family != _family(architecture)


def _family(architecture: str) -> str:
    if architecture in ("i386", "i486", "i586", "i686"):
        return "x86"
    for beginning, family in _FAMILIES.items():
        if architecture.startswith(beginning):
            return family
    return ""


DETECTOR = Detector(name="cpu", find=_find)
