"""How many cores may be used, from made-up trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.machines.machine_tree import machine_tree

from potluck.host.cores import (
    Throttling,
    UsableCores,
    default_num_threads,
    present_cores,
    threads_problem,
    usable_cores,
)

V2 = "sys/fs/cgroup"
V1 = "sys/fs/cgroup/cpu,cpuacct"
MOUNTS = {
    "proc/self/mountinfo": (
        "41 31 0:38 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
        "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
    )
}


@pytest.mark.parametrize(
    ("files", "expected", "reason"),
    [
        ({}, 8, "all"),
        ({"proc/self/cgroup": "0::/a/b", f"{V2}/a/b/cpu.max": "max 100000"}, 8, "all"),
        (
            {"proc/self/cgroup": "0::/a/b", f"{V2}/a/b/cpu.max": "200000 100000"},
            2,
            "limited to 2 by control group /sys/fs/cgroup/a/b",
        ),
        # Rounded up; a limit further up counts as well.
        (
            {"proc/self/cgroup": "0::/a/b", f"{V2}/a/cpu.max": "250000 100000"},
            3,
            "limited to 2.5 by control group /sys/fs/cgroup/a",
        ),
        # All cores can be used, though not all the time.
        (
            {"proc/self/cgroup": "0::/a", f"{V2}/a/cpu.max": "750000 100000"},
            8,
            "limited to 7.5 by control group /sys/fs/cgroup/a",
        ),
        (
            {"proc/self/cgroup": "0::/a", f"{V2}/a/cpu.max": "1000 100000"},
            1,
            "limited to 0.01 by control group /sys/fs/cgroup/a",
        ),
        # In a container the group's own files are at the root of the mount.
        (
            {
                "proc/self/cgroup": "0::/../x",
                f"{V2}/cpu.max": "400000 100000",
                f"{V2}/x/cpu.max": "100000 100000",
            },
            4,
            "limited to 4 by control group /sys/fs/cgroup",
        ),
        (
            {
                "proc/self/cgroup": "5:memory:/m\n3:cpu,cpuacct:/c",
                f"{V1}/c/cpu.cfs_quota_us": "150000",
                f"{V1}/c/cpu.cfs_period_us": "50000",
            },
            3,
            "limited to 3 by control group /sys/fs/cgroup/cpu,cpuacct/c",
        ),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/c",
                f"{V1}/c/cpu.cfs_quota_us": "-1",
                f"{V1}/c/cpu.cfs_period_us": "100000",
            },
            8,
            "all",
        ),
        ({"proc/self/cgroup": "nonsense"}, 8, "all"),
        ({"proc/self/cgroup": "0::/a", f"{V2}/a/cpu.max": "100000"}, 8, "all"),
        ({"proc/self/cgroup": "0::/a", f"{V2}/a/cpu.max": "100000 0"}, 8, "all"),
        ({"proc/self/cgroup": "0::/a", f"{V2}/a/cpu.max": "9" * 5000 + " 1"}, 8, "all"),
        # More than there is.
        ({"proc/self/cgroup": "0::/a", f"{V2}/a/cpu.max": "6400000 100000"}, 8, "all"),
    ],
)
def test_quota(tmp_path: Path, files: dict[str, str], expected: int, reason: str) -> None:
    usable = usable_cores(machine_tree(tmp_path, MOUNTS | files), num_affine_cores=8)
    assert (usable.num_cores, usable.reason) == (expected, reason)


def test_at_least_one(tmp_path: Path) -> None:
    usable = usable_cores(machine_tree(tmp_path, {}), num_affine_cores=0)
    assert (usable.num_cores, usable.core_seconds_per_second) == (1, 1.0)


@pytest.mark.parametrize(
    ("quota", "cores", "core_seconds", "period"),
    [
        ("250000 100000", 3, 2.5, 0.1),
        ("1000 5000", 1, 0.2, 0.005),
        ("max 100000", 8, 8.0, None),
    ],
)
def test_fractions_of_cores_are_told_as_they_are(
    tmp_path: Path, quota: str, cores: int, core_seconds: float, period: float | None
) -> None:
    files = {"proc/self/cgroup": "0::/a", f"{V2}/a/cpu.max": quota}
    usable = usable_cores(machine_tree(tmp_path, MOUNTS | files), num_affine_cores=8)
    assert (usable.num_cores, usable.core_seconds_per_second) == (cores, core_seconds)
    assert usable.period_seconds == period


@pytest.mark.parametrize(
    ("num_affine_cores", "quota", "expected"),
    [
        (8, "200000 100000", 8),  # it may be raised
        (8, "max 100000", 8),
        (128, "200000 100000", 16),  # every thread needs memory
        (128, "3200000 100000", 32),
        (128, "max 100000", 128),
        (1, "50000 100000", 1),
    ],
)
def test_the_threads_of_a_stage(
    tmp_path: Path, num_affine_cores: int, quota: str, expected: int
) -> None:
    files = {"proc/self/cgroup": "0::/a", f"{V2}/a/cpu.max": quota}
    tree = machine_tree(tmp_path, MOUNTS | files)
    assert usable_cores(tree, num_affine_cores=num_affine_cores).max_threads == expected


@pytest.mark.parametrize(
    ("requested", "num_cores", "reason", "expected"),
    [
        (None, 1, "quota", ""),
        (2, 2, "quota", ""),
        (8, 2, "all", "2 of 8 threads compute at a time: this machine has 2 cores"),
        (
            8,
            1,
            "quota",
            "1 of 8 threads computes at a time: only 1 core can be used here (quota)",
        ),
        (
            8,
            3,
            "by hand",
            "3 of 8 threads compute at a time: only 3 cores can be used here (by hand)",
        ),
    ],
)
def test_more_threads_than_cores(
    requested: int | None, num_cores: int, reason: str, expected: str
) -> None:
    cores = UsableCores(
        num_cores=num_cores,
        reason=reason,
        core_seconds_per_second=float(num_cores),
        num_affine_cores=num_cores,
    )
    assert threads_problem(requested, cores) == expected


V1_QUOTA = {f"{V1}/c/cpu.cfs_quota_us": "10000", f"{V1}/c/cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    ("files", "count"),
    [
        (
            {
                "proc/self/cgroup": "0::/a/b",
                f"{V2}/a/b/cpu.max": "1000 100000",
                f"{V2}/a/cpu.max": "2000 100000",
                f"{V2}/a/b/cpu.stat": "usage_usec 9\nnr_periods 30\nnr_throttled 7\nx 1",
                f"{V2}/a/cpu.stat": "nr_throttled 4\nthrottled_usec 12",
            },
            11,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/c",
                **V1_QUOTA,
                f"{V1}/c/cpu.stat": "nr_periods 30\nnr_throttled 5\nthrottled_time 99",
            },
            5,
        ),
        # Without a quota nothing is held up; what cannot be read counts as nothing.
        ({"proc/self/cgroup": "0::/a", f"{V2}/a/cpu.stat": "nr_throttled 4"}, 0),
        ({"proc/self/cgroup": "3:cpu,cpuacct:/c", **V1_QUOTA}, 0),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/c",
                **V1_QUOTA,
                f"{V1}/c/cpu.stat": "nr_throttled " + "9" * 5000,
            },
            0,
        ),
    ],
)
def test_how_often_quotas_held_this_process_up(
    tmp_path: Path, files: dict[str, str], count: int
) -> None:
    assert Throttling(machine_tree(tmp_path, MOUNTS | files)).count() == count


@pytest.mark.parametrize(
    ("present", "online", "reason"),
    [
        ("0-3", "0-3", "all"),
        ("0-7", "0-7", "affinity"),
        ("0-7", "0-3,6", "affinity"),
        ("0-7", "0-2,5", "the others are offline"),
        ("0-7", "", "affinity"),
        # Fewer than the kernel lets this process run on: the file is wrong.
        ("0-1", "0-1", "all"),
    ],
)
def test_why_four_of_the_cores(tmp_path: Path, present: str, online: str, reason: str) -> None:
    folder = "sys/devices/system/cpu"
    system = machine_tree(tmp_path, {f"{folder}/present": present, f"{folder}/online": online})
    usable = usable_cores(system, num_affine_cores=4)
    assert (usable.num_cores, usable.reason) == (4, reason)


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        ("0", 1),
        ("0-7", 8),
        ("0-3,8-11,13", 9),
        ("3-0", None),
        ("0-999999", None),
        ("0-", None),
        ("", None),
        (b"\xff\x00\x01", None),
    ],
)
def test_a_list_of_cores(tmp_path: Path, present: str | bytes, expected: int | None) -> None:
    system = machine_tree(tmp_path, {"sys/devices/system/cpu/present": present})
    assert present_cores(system) == expected


def test_without_sys_the_cores_of_cpuinfo_count(tmp_path: Path) -> None:
    cpuinfo = "processor\t: 0\nvendor_id\t: x\n\nprocessor\t: 1\n\nprocessors: 9"
    assert present_cores(machine_tree(tmp_path, {"proc/cpuinfo": cpuinfo})) == 2


def test_here() -> None:
    assert 1 <= default_num_threads() <= len(os.sched_getaffinity(0))
