"""A fake ``libnvidia-ml.so.1``, and many runs of ``potluck.probe.children.nvml`` over it.

Every run is a process of its own, so that it may crash and hang; the processes are forked from one
that has imported everything, because starting Python hundreds of times takes minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.kernels.build import require_tool

from potluck.host.child import ChildAnswer, ChildFailure, ChildOutcome, Failure

_SOURCE = Path(__file__).with_name("fake_nvml.c")
_TIMEOUT_SECONDS = 120

CALLS = (
    "nvmlInitWithFlags",
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetName",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetNumGpuCores",
    "nvmlDeviceGetMaxClockInfo",
    "nvmlDeviceGetMemoryBusWidth",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetVbiosVersion",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetComputeInstanceId",
    "nvmlDeviceGetAttributes_v2",
)
"""All that the child calls; that it calls no others is a test of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How one process ended: ``returncode`` as of ``subprocess``, None if it had to be killed."""

    returncode: int | None
    stdout: str
    calls: tuple[str, ...]

    @property
    def outcome(self) -> ChildOutcome:
        """As the parent sees it."""
        if self.returncode != 0:
            failure = Failure.HUNG if self.returncode is None else Failure.CRASHED
            return ChildFailure(failure=failure, reason=failure.value, seconds=0.0)
        document = json.loads(self.stdout)
        if "refused" in document:
            reason = document["refused"]
            return ChildFailure(failure=Failure.REFUSED, reason=reason, seconds=0.0)
        return ChildAnswer(document=document, seconds=0.0)


def build(directory: Path) -> Path:
    """Compile the library into ``directory``; the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    library = directory / "libnvidia-ml.so.1"
    command = [require_tool("gcc"), "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    command += [f"-Wl,-soname,{library.name}", str(_SOURCE), "-o", str(library)]
    subprocess.run(command, check=True)
    return directory


def environment(directory: Path, **settings: str) -> dict[str, str]:
    """This process's, with the library found first and ``cards="4"`` as ``FAKE_NVML_CARDS``."""
    names = {f"FAKE_NVML_{name.upper()}": text for name, text in settings.items()}
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(directory),
        "PYTHONPATH": os.pathsep.join(sys.path),
        **names,
    }


def run_all(directory: Path, cases: Sequence[Mapping[str, str]]) -> list[Run]:
    """Run the child once for each case, whose items are settings as of ``environment``.

    One that hangs is killed as soon as the library says that it does.
    """
    done = subprocess.run(
        [sys.executable, "-m", "support.machines.nvml_runs"],
        input=json.dumps([dict(case) for case in cases]),
        env=environment(directory),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return [
        Run(returncode=run["returncode"], stdout=run["stdout"], calls=tuple(run["calls"]))
        for run in json.loads(done.stdout)
    ]
