"""A machine with a CPU that works, as the probe would report it."""

from __future__ import annotations

from potluck.types.backend import DeviceKind
from potluck.types.hardware import (
    CpuFacts,
    DetectorReport,
    Device,
    DeviceMemory,
    ProbeReport,
    Trial,
)
from potluck.types.memory import MemoryFacts, MemoryLimit

GIB = 2**30


def device(device_id: str, kind: DeviceKind = DeviceKind.GPU, *, problem: str = "") -> Device:
    return Device(
        device_id=device_id,
        kind=kind,
        make="Acme",
        name=f"Acme {device_id}",
        reported_name=f"ACME(R) {device_id}",
        chip="",
        driver="",
        device_files=(),
        memory=DeviceMemory(
            total_bytes=8 * GIB,
            free_bytes=6 * GIB,
            is_shared=kind is DeviceKind.CPU,
            source="told by hand",
        ),
        problem=problem,
    )


CPU = device("cpu", DeviceKind.CPU)


def report(
    *detectors: DetectorReport, trials: tuple[Trial, ...] | None = None, is_complete: bool = True
) -> ProbeReport:
    """The CPU and ``detectors``; without ``trials`` the native backend works on the CPU."""
    works = Trial(device_id="cpu", backend="native", works=True, variants=("scalar", "avx2"))
    return ProbeReport(
        host_name="board-7",
        kernel="6.1.43",
        container="",
        cpu=CpuFacts(
            name="Acme One",
            architecture="aarch64",
            num_cores=8,
            num_usable_cores=8,
            usable_reason="",
        ),
        memory=MemoryFacts(
            total_bytes=8 * GIB,
            free_bytes=6 * GIB,
            reserve_bytes=GIB // 2,
            usable=MemoryLimit(bytes=5 * GIB, reason="memory available on this machine"),
        ),
        detectors=(DetectorReport(detector="cpu", devices=(CPU,)), *detectors),
        trials=(works,) if trials is None else trials,
        is_complete=is_complete,
    )
