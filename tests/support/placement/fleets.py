"""What machines of a fleet file say of themselves."""

from __future__ import annotations

import msgspec

from potluck.types.hardware import CpuFacts, ProbeReport, Trial
from potluck.types.memory import MemoryFacts, MemoryLimit


def probe_document(**changes: object) -> dict[str, object]:
    """Return what ``potluck probe --json`` says on a board with one unit."""
    report = ProbeReport(
        host_name="board",
        kernel="6.1",
        container="",
        cpu=CpuFacts(
            name="", architecture="aarch64", num_cores=4, num_usable_cores=4, usable_reason="all"
        ),
        memory=MemoryFacts(
            total_bytes=2**32,
            free_bytes=2**31,
            reserve_bytes=2**28,
            usable=MemoryLimit(bytes=2**30, reason="free"),
        ),
        detectors=(),
        trials=(Trial(device_id="cpu", backend="native", works=True, variants=("scalar",)),),
        is_complete=True,
    )
    document = msgspec.to_builtins(report)
    device = {
        "device_id": "cpu",
        "kind": "cpu",
        "make": "",
        "name": "Cortex",
        "reported_name": "",
        "chip": "",
        "driver": "",
        "device_files": [],
        "memory": {"total_bytes": None, "free_bytes": None, "is_shared": True, "source": ""},
    }
    unit = {"unit_id": "cpu/native", "device_id": "cpu", "backend": "native", "role": "serves"}
    document["detectors"] = [{"detector": "cpu", "devices": [device]}]
    return {"schema": "potluck.probe/1", "version": "1", **document, "units": [unit], **changes}
