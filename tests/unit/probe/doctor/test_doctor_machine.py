"""Findings about the CPU, memory, folders and trials."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.machines.doctor_cases import (
    GIB,
    MIB,
    a_case,
    a_gpu,
    a_memory,
    a_report,
    a_system,
    grow,
    the_finding,
)

from potluck.probe.doctor.case import Distribution, Folder, Severity
from potluck.probe.doctor.examine import examine
from potluck.probe.doctor.settings import CACHE, MODELS, STATE
from potluck.types.hardware import Trial

POLICY = "sys/devices/system/cpu/cpufreq/policy"


def policy(number: int, governor: str, driver: str = "cpufreq-dt") -> dict[str, str]:
    folder = f"{POLICY}{number}"
    return {
        f"{folder}/scaling_governor": f"{governor}\n",
        f"{folder}/scaling_available_governors": "ondemand performance powersave schedutil\n",
        f"{folder}/scaling_driver": f"{driver}\n",
    }


@pytest.mark.parametrize(
    ("files", "severity", "governors"),
    [
        (policy(0, "ondemand"), Severity.SLOWS, "ondemand (policy0)"),
        (policy(0, "powersave"), Severity.SLOWS, "powersave (policy0)"),
        (policy(0, "schedutil"), Severity.NOTE, "schedutil (policy0)"),
        (policy(0, "powersave", "intel_pstate"), Severity.NOTE, "powersave (policy0)"),
        (policy(0, "powersave", "intel_cpufreq"), Severity.SLOWS, "powersave (policy0)"),
        (
            policy(0, "schedutil") | policy(4, "ondemand") | policy(6, "ondemand"),
            Severity.SLOWS,
            "ondemand (policy4, policy6), schedutil (policy0)",
        ),
    ],
)
def test_a_governor(
    tmp_path: Path, files: dict[str, str], severity: Severity, governors: str
) -> None:
    found = the_finding(a_case(a_system(tmp_path, files)))
    assert found.severity is severity
    assert found.message == f"the CPU frequency governor is {governors} instead of performance"
    assert found.command == (
        "echo performance | sudo tee /sys/devices/system/cpu/cpufreq/policy*/scaling_governor"
    )
    assert found.details == "until the machine reboots"


def test_a_machine_without_a_choice_of_governors(tmp_path: Path) -> None:
    files = {f"{POLICY}0/scaling_governor": "userspace"}
    files[f"{POLICY}0/scaling_available_governors"] = "userspace"
    assert examine(a_case(a_system(tmp_path, files))) == ()


GROUP = "the control group's limit in /sys/fs/cgroup"
LIMITS = (
    "Limit          Soft Limit      Hard Limit      Units\nMax address space  1073741824 {} bytes\n"
)


@pytest.mark.parametrize(
    ("reason", "container", "files", "command"),
    [
        (
            f"{GROUP}/system.slice/potluck.service",
            "",
            {},
            "sudo systemctl set-property potluck.service MemoryMax=infinity MemoryHigh=infinity",
        ),
        (
            f"{GROUP}/small",
            "",
            {"sys/fs/cgroup/small/memory.max": "1"},
            "echo max | sudo tee /sys/fs/cgroup/small/memory.max /sys/fs/cgroup/small/memory.high",
        ),
        (
            f"{GROUP}/memory/small",
            "",
            {"sys/fs/cgroup/memory/small/memory.limit_in_bytes": "1"},
            "echo -1 | sudo tee /sys/fs/cgroup/memory/small/memory.limit_in_bytes",
        ),
        (
            GROUP,
            "docker",
            {},
            "docker update --memory 16384m --memory-swap 16384m CONTAINER",
        ),
        (
            "the address space limit (ulimit -v)",
            "",
            {"proc/self/limits": LIMITS.format("unlimited")},
            "ulimit -v unlimited",
        ),
        (
            "the address space limit (ulimit -v)",
            "",
            {"proc/self/limits": LIMITS.format("1073741824")},
            "sudo prlimit --pid $$ --as=unlimited",
        ),
        (
            "the data size limit (ulimit -d)",
            "",
            {"proc/self/limits": LIMITS.format("unlimited")},
            "sudo prlimit --pid $$ --data=unlimited",
        ),
    ],
)
def test_a_memory_limit(
    tmp_path: Path, reason: str, container: str, files: dict[str, str], command: str
) -> None:
    memory = a_memory(usable_bytes=GIB, reason=reason)
    report = a_report(container=container, memory=memory)
    found = the_finding(a_case(a_system(tmp_path, files), report))
    assert found.severity is Severity.SLOWS
    assert found.message == (
        f"1 GiB of memory is usable here, but the machine has 8 GiB free: limited by {reason}"
    )
    assert found.command == command


@pytest.mark.parametrize(
    ("usable_bytes", "reason"), [(5 * GIB, GROUP), (GIB, "free on this machine")]
)
def test_a_limit_that_is_none(tmp_path: Path, usable_bytes: int, reason: str) -> None:
    memory = a_memory(usable_bytes=usable_bytes, reason=reason)
    assert examine(a_case(a_system(tmp_path), a_report(memory=memory))) == ()


def test_memory_of_which_nothing_is_known(tmp_path: Path) -> None:
    reason = "/proc/meminfo cannot be read: is /proc mounted?"
    memory = replace(a_memory(usable_bytes=0, reason=reason, total=0), free_bytes=0)
    found = the_finding(a_case(a_system(tmp_path), a_report(memory=memory)))
    assert found.severity is Severity.PREVENTS
    assert found.message == f"no memory is usable: {reason}"
    assert found.command == "sudo mount -t proc proc /proc"


def meminfo(available_mib: int, swap_mib: int, swap_free_mib: int) -> dict[str, str]:
    return {
        "proc/meminfo": f"MemAvailable: {available_mib * 1024} kB\n"
        f"SwapTotal: {swap_mib * 1024} kB\nSwapFree: {swap_free_mib * 1024} kB\n"
    }


@pytest.mark.parametrize(
    ("available_mib", "command"),
    [
        (8192, "sudo swapoff -a && sudo swapon -a"),
        (1024, "ps axk -rss o rss,comm | head"),
    ],
)
def test_swap_in_use(tmp_path: Path, available_mib: int, command: str) -> None:
    system = a_system(tmp_path, meminfo(available_mib, 4096, 3072))
    found = the_finding(a_case(system))
    assert found.severity is Severity.NOTE
    assert found.message == "1 GiB are swapped out: a model in swap is slowed down by the disk"
    assert found.command == command


@pytest.mark.parametrize(
    ("distribution", "command"),
    [
        (Distribution(name="debian", manager="apt"), "sudo apt install zram-tools"),
        (Distribution(name="fedora", manager="dnf"), "sudo dnf install zram-generator-defaults"),
        (
            Distribution(name="", manager=""),
            "sudo fallocate -l 2G /swapfile && sudo chmod 600 /swapfile && sudo mkswap /swapfile "
            "&& sudo swapon /swapfile",
        ),
    ],
)
def test_a_small_machine_without_swap(
    tmp_path: Path, distribution: Distribution, command: str
) -> None:
    system = a_system(tmp_path, meminfo(2048, 0, 0))
    small = a_report(memory=a_memory(total=4 * GIB))
    found = the_finding(a_case(system, small, distribution=distribution))
    assert found.severity is Severity.NOTE
    assert found.message == (
        "there is no swap: when memory runs out, processes are killed without warning"
    )
    assert found.command == command
    large = a_report(memory=a_memory(total=16 * GIB))
    assert examine(a_case(system, large)) == ()


@pytest.mark.parametrize(
    ("size", "container", "problem", "command"),
    [
        (16 * MIB, "", "is only 16 MiB", "sudo mount -o remount,size=1G /dev/shm"),
        (16 * MIB, "docker", "is only 16 MiB", "docker run --shm-size 1g …"),
        (
            None,
            "",
            "is missing",
            "sudo mkdir -p /dev/shm && sudo mount -t tmpfs -o nosuid,nodev tmpfs /dev/shm",
        ),
    ],
)
def test_small_shared_memory(
    tmp_path: Path, size: int | None, container: str, problem: str, command: str
) -> None:
    report = a_report(container=container)
    found = the_finding(a_case(a_system(tmp_path), report, shared_memory_bytes=size))
    assert found.severity is Severity.NOTE
    assert found.message == f"/dev/shm {problem}: drivers and libraries that use shared memory fail"
    assert found.command == command


def a_folder(purpose: str, **others: Any) -> Folder:
    values: dict[str, Any] = {
        "path": Path("/home/alice/x"),
        "needed_bytes": 16 * MIB,
        "free_bytes": GIB,
        "file_system": "ext4",
        "mount_point": "/home",
        "is_writable": True,
        "is_read_only": False,
        **others,
    }
    return Folder(purpose=purpose, **values)


@pytest.mark.parametrize(
    ("folder", "severity", "message", "command"),
    [
        (
            a_folder(STATE, is_writable=False),
            Severity.PREVENTS,
            "/home/alice/x is not writable: this node cannot join a cluster",
            "sudo chown -R $USER /home/alice/x",
        ),
        (
            a_folder(CACHE, is_writable=False, is_read_only=True),
            Severity.SLOWS,
            "/home/alice/x is on a disk that is mounted read-only: every device is tested again "
            "at every start",
            "sudo mount -o remount,rw /home",
        ),
        (
            a_folder(MODELS, free_bytes=MIB),
            Severity.SLOWS,
            "/home/alice/x has 1 MiB of free space: no model can be downloaded",
            "df -h /home",
        ),
        (
            a_folder(MODELS, file_system="tmpfs"),
            Severity.SLOWS,
            "/home/alice/x is in memory (tmpfs): models occupy memory twice",
            "export HF_HOME=DIRECTORY",
        ),
        (
            a_folder(STATE, file_system="tmpfs"),
            Severity.NOTE,
            "/home/alice/x is in memory (tmpfs): it is lost when the machine stops",
            "potluck up --state DIRECTORY",
        ),
    ],
)
def test_a_folder(
    tmp_path: Path, folder: Folder, severity: Severity, message: str, command: str
) -> None:
    found = the_finding(a_case(a_system(tmp_path), folders=(folder, a_folder(CACHE))))
    assert (found.severity, found.message, found.command) == (severity, message, command)


def test_no_home(tmp_path: Path) -> None:
    reason = "there is no home directory for the node's state"
    found = the_finding(a_case(a_system(tmp_path), missing_folder=reason))
    assert found.severity is Severity.PREVENTS
    assert found.message == f"{reason}: this node cannot join a cluster"
    assert found.command == "potluck up --state DIRECTORY"


def test_a_self_test_that_failed(tmp_path: Path) -> None:
    trial = Trial(device_id="cpu", backend="native", works=False, reason="its numbers are wrong")
    found = the_finding(a_case(a_system(tmp_path), a_report(trials=(trial,))))
    assert found.severity is Severity.PREVENTS
    assert found.message == "cpu/native does not work: its numbers are wrong"
    assert found.command == "potluck probe --retry"
    assert found.device_id == "cpu"


def test_a_backend_that_failed_beside_one_that_works(tmp_path: Path) -> None:
    works = Trial(device_id="cpu", backend="native", works=True, variants=("scalar",))
    other = Trial(device_id="cpu", backend="other", works=False, reason="no clang")
    found = the_finding(a_case(a_system(tmp_path), a_report(trials=(works, other))))
    assert (found.check, found.severity) == ("self-test", Severity.NOTE)


def test_a_trial_that_the_devices_own_problem_explains(tmp_path: Path) -> None:
    gpu = a_gpu("AMD", "Radeon RX 6800", "", problem="no kernel driver is bound to it")
    trial = Trial(device_id=gpu.device_id, backend="cl", works=False, reason="no platform")
    assert the_finding(a_case(a_system(tmp_path), a_report(gpu, trials=(trial,)))).check == "driver"


def test_a_library_in_quarantine(tmp_path: Path) -> None:
    problem = "NVML told nothing: not tried again: it crashed (SIGSEGV)"
    found = the_finding(a_case(a_system(tmp_path), a_report(problems=(problem, "another"))))
    assert (found.severity, found.message, found.command) == (
        Severity.NOTE,
        f"gpu: {problem}",
        "potluck probe --retry",
    )


def test_a_layer_that_did_not_answer(tmp_path: Path) -> None:
    problem = "has not responded after 3 s"
    report = a_report(problems=("another", problem))
    late = replace(
        report, detectors=tuple(replace(each, is_pending=True) for each in report.detectors)
    )
    found = the_finding(a_case(a_system(tmp_path), late))
    assert (found.check, found.severity, found.message, found.command) == (
        "deadline",
        Severity.NOTE,
        f"gpu: {problem}",
        "potluck probe --wait",
    )
    assert "sudo dmesg" in found.details


def test_a_unit_that_is_not_tested_yet_is_no_failure(tmp_path: Path) -> None:
    trial = Trial(device_id="cpu", backend="cl", works=False, reason="it runs", is_pending=True)
    found = the_finding(a_case(a_system(tmp_path), a_report(trials=(trial,))))
    assert (found.check, found.severity, found.command) == (
        "deadline",
        Severity.NOTE,
        "potluck probe --wait",
    )


def test_what_costs_most_comes_first(tmp_path: Path) -> None:
    case = a_case(
        a_system(tmp_path, policy(0, "schedutil") | policy(1, "schedutil")),
        a_report(memory=a_memory(usable_bytes=GIB, reason=GROUP)),
        folders=(a_folder(STATE, is_writable=False),),
    )
    assert [found.check for found in examine(case)] == ["folder", "memory-limit", "cpu-governor"]


def test_a_check_that_fails_costs_one_line(tmp_path: Path) -> None:
    def nonsense(case: object) -> Any:
        raise KeyError("two\nlines")

    def sound(case: object) -> Any:
        return iter([replace(the_finding(swapped), message="all the same")])

    swapped = a_case(a_system(tmp_path, meminfo(8192, 4096, 3072)))
    broken, other = examine(swapped, [nonsense, sound])
    assert broken.message == "the check nonsense failed: KeyError: 'two\\nlines'"
    assert broken.command == "potluck --debug doctor"
    assert other.message == "all the same"


def test_a_tree_of_rubbish_makes_no_check_fail(tmp_path: Path) -> None:
    rubbish = "\udcff\0 : % 9" * 9
    files = [
        "proc/meminfo",
        "proc/self/limits",
        "proc/self/mountinfo",
        "proc/driver/nvidia/version",
        "proc/sys/net/ipv4/ip_local_port_range",
        "etc/group",
        "etc/OpenCL/vendors/x.icd",
        f"{POLICY}0/scaling_governor",
        f"{POLICY}0/scaling_available_governors",
        "usr/lib/libnvidia-ml.so.rubbish",
        "usr/lib/libmali.so",
        "dev/mali0",
    ]
    system = a_system(tmp_path, forbidden={"dri/renderD128": "render"})
    for name in files:
        grow(tmp_path, {name: ""})
        (tmp_path / name).write_bytes(rubbish.encode(errors="surrogateescape"))
    devices = (
        a_gpu("NVIDIA", "A10", "nvidia", system.dev / "dri/renderD128"),
        a_gpu("Arm Mali", "", "mali", system.dev / "mali0"),
        a_gpu("Intel", "", "i915", Path("elsewhere")),
    )
    report = a_report(*devices, memory=a_memory(usable_bytes=1, reason=GROUP + "/\udcff"))
    assert not [found for found in examine(a_case(system, report)) if found.check == "doctor"]
