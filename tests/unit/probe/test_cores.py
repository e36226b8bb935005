"""How many cores may be used, from made-up control group trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from potluck.probe.cores import default_num_threads, usable_cores


def write_tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V2 = "sys/fs/cgroup"
V1 = "sys/fs/cgroup/cpu,cpuacct"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"proc/self/cgroup": "0::/a/b\n", f"{V2}/a/b/cpu.max": "max 100000\n"}, 8),
        ({"proc/self/cgroup": "0::/a/b\n", f"{V2}/a/b/cpu.max": "200000 100000\n"}, 2),
        # Rounded up; a limit further up counts as well.
        ({"proc/self/cgroup": "0::/a/b\n", f"{V2}/a/cpu.max": "250000 100000\n"}, 3),
        ({"proc/self/cgroup": "0::/a\n", f"{V2}/a/cpu.max": "1000 100000\n"}, 1),
        # In a container the group's own files are at the root of the mount.
        ({"proc/self/cgroup": "0::/../x\n", f"{V2}/cpu.max": "400000 100000\n"}, 4),
        (
            {
                "proc/self/cgroup": "5:memory:/m\n3:cpu,cpuacct:/c\n",
                f"{V1}/c/cpu.cfs_quota_us": "150000\n",
                f"{V1}/c/cpu.cfs_period_us": "50000\n",
            },
            3,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/c\n",
                f"{V1}/c/cpu.cfs_quota_us": "-1\n",
                f"{V1}/c/cpu.cfs_period_us": "100000\n",
            },
            8,
        ),
        ({"proc/self/cgroup": "nonsense\n"}, 8),
        ({"proc/self/cgroup": "0::/a\n", f"{V2}/a/cpu.max": "100000\n"}, 8),
        ({"proc/self/cgroup": "0::/a\n", f"{V2}/a/cpu.max": "100000 0\n"}, 8),
        # More than there is.
        ({"proc/self/cgroup": "0::/a\n", f"{V2}/a/cpu.max": "6400000 100000\n"}, 8),
    ],
)
def test_quota(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    assert usable_cores(8, write_tree(tmp_path, files)) == expected


def test_at_least_one(tmp_path: Path) -> None:
    assert usable_cores(0, tmp_path) == 1


def test_here() -> None:
    assert default_num_threads() >= 1
