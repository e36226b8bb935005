from __future__ import annotations

from pathlib import Path

import pytest
from support.machines.machine_tree import machine_tree

from potluck.host.control_groups import control_groups

MOUNTS = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
    "34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
    "35 31 0:32 /docker/x /cg rw - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    "a line that is - none\n"
)
OWN = "4:memory:/docker/x/job\n3:cpuset:/s\n2:cpu,cpuacct:/a/b\n1:name=systemd:/\n0::/u\nnone"


@pytest.mark.parametrize(
    ("controller", "expected"),
    [
        (
            "cpu",
            [
                (1, "/sys/fs/cgroup/cpu,cpuacct/a/b"),
                (1, "/sys/fs/cgroup/cpu,cpuacct/a"),
                (1, "/sys/fs/cgroup/cpu,cpuacct"),
                (2, "/sys/fs/cgroup/unified/u"),
                (2, "/sys/fs/cgroup/unified"),
            ],
        ),
        (
            "memory",
            [
                (1, "/cg/job"),
                (1, "/cg"),
                (2, "/sys/fs/cgroup/unified/u"),
                (2, "/sys/fs/cgroup/unified"),
            ],
        ),
    ],
)
def test_groups(tmp_path: Path, controller: str, expected: list[tuple[int, str]]) -> None:
    files = {"proc/self/cgroup": OWN, "proc/self/mountinfo": MOUNTS}
    groups = list(control_groups(machine_tree(tmp_path, files), controller))
    assert [(group.version, str(group.directory)) for group in groups] == expected
    assert [group.path for group in groups] == [
        tmp_path / directory.lstrip("/") for _, directory in expected
    ]


def test_nothing_to_read(tmp_path: Path) -> None:
    assert list(control_groups(machine_tree(tmp_path, {}), "cpu")) == []
