"""The CPU, cores and memory of this very machine, where it lets a process have little.

Each test probes in a child process. A limit is set for real, and what the child says is compared
with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.kernels.build import require_tool
from support.processes import denied_calls
from support.processes.command import run_command
from support.processes.confinement import as_user, control_group, covered, inside, limited
from support.processes.environment import environment

MIB = 2**20

SCRIPT = """
import json, os
from dataclasses import asdict
from potluck.host.container import container
from potluck.host.cores import affine_cores, default_num_threads
from potluck.probe.detectors.cpu import DETECTOR, cpu_facts
from potluck.host.memory import available_memory, memory_facts
from potluck.host.system import THIS_MACHINE

report = DETECTOR.find(THIS_MACHINE)
print(json.dumps({
    "cpu": asdict(cpu_facts(THIS_MACHINE, num_affine_cores=len(affine_cores()))),
    "memory": asdict(memory_facts(THIS_MACHINE)),
    "num_threads": default_num_threads(),
    "available": available_memory().bytes,
    "container": container(THIS_MACHINE),
    "devices": [device.device_id for device in report.devices],
    "problems": report.problems,
}))
"""


@dataclass(frozen=True, kw_only=True)
class Probed:
    """What the child said."""

    name: str
    num_cores: int
    num_usable_cores: int
    usable_reason: str
    num_threads: int
    total_bytes: int
    usable_bytes: int
    memory_reason: str
    problems: list[str]


def probe(*prefix: str, env: Mapping[str, str] | None = None) -> Probed:
    """Probe in a child that ``prefix`` starts; it must succeed and find the CPU."""
    completed = subprocess.run(
        [*prefix, sys.executable, "-c", SCRIPT],
        env=environment() if env is None else env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    document = json.loads(completed.stdout)
    assert document["devices"] == ["cpu"]
    return Probed(
        name=document["cpu"]["name"],
        num_cores=document["cpu"]["num_cores"],
        num_usable_cores=document["cpu"]["num_usable_cores"],
        usable_reason=document["cpu"]["usable_reason"],
        num_threads=document["num_threads"],
        total_bytes=document["memory"]["total_bytes"],
        usable_bytes=document["memory"]["usable"]["bytes"],
        memory_reason=document["memory"]["usable"]["reason"],
        problems=document["problems"],
    )


@pytest.fixture(scope="module")
def unlimited() -> Probed:
    """As this test's own process would see it."""
    return probe()


@pytest.mark.parametrize("of", ["own", "parent"])
def test_memory_of_a_control_group(of: str) -> None:
    root = Path(f"/sys/fs/cgroup/memory/potluck-probe-{os.getpid()}")
    limit = {"memory.limit_in_bytes": str(200 * MIB)}
    with (
        control_group(root, limit if of == "parent" else {}),
        control_group(root / "inner", limit if of == "own" else {}) as inner,
    ):
        probed = probe(*inside(inner))
    where = inner if of == "own" else root
    assert probed.memory_reason == f"the control group's limit in {where}"
    # Python and what it has read since it entered.
    assert 100 * MIB < probed.usable_bytes < 200 * MIB
    assert probed.total_bytes > 200 * MIB


def test_cores_of_a_control_group() -> None:
    files = {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "50000"}
    with control_group(Path(f"/sys/fs/cgroup/cpu/potluck-probe-{os.getpid()}"), files) as path:
        probed = probe(*inside(path))
    assert (probed.num_usable_cores, probed.num_threads) == (1, 1)
    assert probed.usable_reason == f"limited to 0.5 by control group {path}"


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("-v", "the address space limit (ulimit -v)"),
        ("-d", "the data size limit (ulimit -d)"),
    ],
)
def test_limits_of_the_process(option: str, reason: str) -> None:
    kib = 1_000_000
    probed = probe(*limited(option, kib))
    assert probed.memory_reason == reason
    # Less what a Python has mapped, which is tens of MiB.
    assert kib * 1024 - 500 * MIB < probed.usable_bytes < kib * 1024 - MIB


def test_one_core_allowed() -> None:
    core = min(os.sched_getaffinity(0))
    probed = probe(require_tool("taskset"), "-c", str(core))
    assert (probed.num_usable_cores, probed.num_threads) == (1, 1)
    assert probed.usable_reason == ("all" if probed.num_cores == 1 else "affinity")


def test_no_home_and_no_settings(unlimited: Probed) -> None:
    kept = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    probed = probe(env=kept)
    assert (probed.name, probed.num_cores) == (unlimited.name, unlimited.num_cores)


def test_an_ordinary_user(unlimited: Probed) -> None:
    probed = probe(*as_user())
    assert probed.name == unlimited.name
    assert probed.num_usable_cores == unlimited.num_usable_cores
    assert probed.total_bytes == unlimited.total_bytes
    assert probed.problems == []


def test_an_unreadable_sys(unlimited: Probed) -> None:
    """The cores are counted elsewhere; limits of control groups can't be seen."""
    probed = probe(*covered("/sys", "mode=000"), *as_user())
    assert (probed.name, probed.num_cores) == (unlimited.name, unlimited.num_cores)
    assert probed.usable_bytes > 0


def test_an_empty_proc() -> None:
    """No more than the architecture and the cores is left, and that no memory may be used."""
    probed = probe(*covered("/proc", "mode=555"))
    assert probed.num_usable_cores == probed.num_threads >= 1
    assert probed.usable_bytes == 0
    assert probed.problems == ["/proc/meminfo cannot be read: is /proc mounted?"]


@pytest.mark.parametrize("denied", ["sched_getaffinity", "uname", "sched_getaffinity,uname"])
def test_denied_system_calls(unlimited: Probed, denied: str) -> None:
    probed = probe(sys.executable, denied_calls.__file__, denied)
    assert (probed.name, probed.num_cores) == (unlimited.name, unlimited.num_cores)
    assert 1 <= probed.num_usable_cores == probed.num_threads <= probed.num_cores


@pytest.mark.parametrize("denied", ["sched_getaffinity", "uname"])
def test_the_command_where_system_calls_are_denied(tmp_path: Path, denied: str) -> None:
    prefix = (sys.executable, denied_calls.__file__, denied)
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    completed = run_command("probe", "--json", "--wait", prefix=prefix, env=env)
    assert completed.returncode == 0, completed.stderr
    document = json.loads(completed.stdout)
    machine = os.uname()
    assert (document["host_name"], document["kernel"]) == (machine.nodename, machine.release)
    assert document["cpu"]["architecture"] == machine.machine
    assert "cpu/native" in [unit["unit_id"] for unit in document["units"] if unit["role"] != "out"]
