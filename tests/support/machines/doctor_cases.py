"""Machines for the doctor: a sound one, and what is changed about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from potluck.host.system import Access, System
from potluck.probe.doctor.case import Case, Distribution, Finding, LocalNetwork, Port, User
from potluck.probe.doctor.examine import examine
from potluck.types.backend import BackendSpec, DeviceKind
from potluck.types.hardware import (
    CpuFacts,
    DetectorReport,
    Device,
    DeviceMemory,
    ProbeReport,
    Trial,
)
from potluck.types.memory import MemoryFacts, MemoryLimit

MIB = 2**20
GIB = 2**30

NATIVE = BackendSpec(name="native", module="native_trial", kinds=frozenset({DeviceKind.CPU}))
FOR_GPUS = BackendSpec(name="cl", module="cl_trial", kinds=frozenset({DeviceKind.GPU}))
"""With it a GPU that cannot be used is a loss."""

FILES = {
    "proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n"
    "SwapTotal: 2097152 kB\nSwapFree: 2097152 kB\n",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "performance",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_available_governors": "performance powersave",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedSystem(System):
    """A tree, and the files below its /dev that may not be opened, with their groups.

    Root, as whom tests often run, may open everything.
    """

    forbidden: Mapping[str, str] = field(default_factory=dict)

    def access(self, device_file: Path) -> Access:
        if self._name(device_file) in self.forbidden:
            return Access.FORBIDDEN
        return System.access(self, device_file)

    def group(self, device_file: Path) -> str:
        return self.forbidden.get(self._name(device_file), "")

    def _name(self, device_file: Path) -> str:
        return str(device_file).removeprefix(f"{self.dev}/")


def grow(root: Path, files: Mapping[str, str]) -> None:
    """Write ``files`` below ``root``."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def a_system(
    root: Path, files: Mapping[str, str] | None = None, forbidden: Mapping[str, str] | None = None
) -> PlayedSystem:
    grow(root, FILES | dict(files or {}))
    for name in forbidden or {}:
        grow(root / "dev", {name: ""})
    return PlayedSystem(
        sys=root / "sys",
        proc=root / "proc",
        dev=root / "dev",
        files=root,
        forbidden=forbidden or {},
    )


CPU = Device(
    device_id="cpu",
    kind=DeviceKind.CPU,
    make="",
    name="Some CPU",
    reported_name="",
    chip="",
    driver="",
    device_files=(),
    memory=DeviceMemory(total_bytes=16 * GIB, free_bytes=8 * GIB, is_shared=True, source=""),
)


def a_gpu(make: str, name: str, driver: str, *device_files: Path, **others: Any) -> Device:
    return replace(
        CPU,
        **{
            "device_id": "pci-0000:01:00.0",
            "kind": DeviceKind.GPU,
            "make": make,
            "name": name,
            "driver": driver,
            "device_files": tuple(map(str, device_files)),
            **others,
        },
    )


def a_memory(
    *, usable_bytes: int = 7 * GIB, reason: str = "free on this machine", total: int = 16 * GIB
) -> MemoryFacts:
    return MemoryFacts(
        total_bytes=total,
        free_bytes=8 * GIB,
        reserve_bytes=GIB // 2,
        usable=MemoryLimit(bytes=usable_bytes, reason=reason),
    )


def a_report(
    *devices: Device,
    container: str = "",
    problems: tuple[str, ...] = (),
    trials: tuple[Trial, ...] = (Trial(device_id="cpu", backend="native", works=True),),
    memory: MemoryFacts | None = None,
    architecture: str = "x86_64",
) -> ProbeReport:
    return ProbeReport(
        host_name="box",
        kernel="6.1.0-13-amd64",
        container=container,
        cpu=CpuFacts(
            name="Some CPU",
            architecture=architecture,
            num_cores=4,
            num_usable_cores=4,
            usable_reason="all of them",
        ),
        memory=memory or a_memory(),
        detectors=(
            DetectorReport(detector="cpu", devices=(CPU,)),
            DetectorReport(detector="gpu", devices=devices, problems=problems),
        ),
        trials=trials,
        is_complete=True,
    )


def a_case(system: System, report: ProbeReport | None = None, **others: Any) -> Case:
    """A sound machine, but for what is given."""
    values: dict[str, Any] = {
        "backends": (NATIVE, FOR_GPUS),
        "missing_packages": (),
        "unloadable_packages": (),
        "opened_libraries": (),
        "distribution": Distribution(name="debian", manager="apt"),
        "user": User(name="alice", is_root=False, groups=frozenset({"alice"})),
        "folders": (),
        "missing_folder": "",
        "shared_memory_bytes": 8 * GIB,
        "network": LocalNetwork(
            address="10.0.0.5",
            ports=(Port(number=7333, purpose="other nodes", option="--lan", problem=""),),
            multicast_problem="",
        ),
        "cluster": None,
        **others,
    }
    return Case(system=system, report=report or a_report(), **values)


def the_finding(case: Case) -> Finding:
    """The only one."""
    findings = examine(case)
    assert len(findings) == 1, findings
    return findings[0]
