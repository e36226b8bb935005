from __future__ import annotations

from pathlib import Path

import pytest

from potluck.errors import PotluckError
from potluck.probe.memory import available_memory

MIB = 2**20
GIB = 2**30

V1_MOUNT = "35 31 0:32 {root} {point} rw,relatime shared:9 - cgroup cgroup rw,memory"
V1_CPU_MOUNT = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu"
V2_MOUNT = "41 31 0:38 {root} {point} rw,relatime - cgroup2 cgroup2 rw,nsdelegate"
NO_LIMIT_V1 = "9223372036854771712"


def tree(root: Path, files: dict[str, str]) -> Path:
    defaults = {"proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable:    4194304 kB\n"}
    for name, content in (defaults | files).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    return root


def group_files(
    directory: str, version: int, limit: str, usage: int, inactive_file: int = 0
) -> dict[str, str]:
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    if version == 2:
        names = ("memory.max", "memory.current", "inactive_file")
    return {
        f"{directory}/{names[0]}": limit,
        f"{directory}/{names[1]}": str(usage),
        f"{directory}/memory.stat": f"cache 1\n{names[2]} {inactive_file}\nrss 3",
    }


def test_the_machine_alone(tmp_path: Path) -> None:
    limit = available_memory(tree(tmp_path, {}))
    assert limit.bytes == 4 * GIB
    assert "this machine" in limit.reason


def test_a_kernel_without_an_estimate(tmp_path: Path) -> None:
    meminfo = "MemFree: 1000 kB\nBuffers: 200 kB\nCached: 30 kB\nShmem: 4 kB\nHugePages_Total: 0"
    assert available_memory(tree(tmp_path, {"proc/meminfo": meminfo})).bytes == 1226 * 1024


def test_no_proc(tmp_path: Path) -> None:
    with pytest.raises(PotluckError, match="/proc/meminfo"):
        available_memory(tmp_path)


@pytest.mark.parametrize("version", [1, 2])
class TestControlGroups:
    def files(self, version: int, group: str, root: str = "/") -> dict[str, str]:
        mount = V1_MOUNT if version == 1 else V2_MOUNT
        return {
            "proc/self/cgroup": f"4:memory:{group}\n1:cpu:/x" if version == 1 else f"0::{group}",
            "proc/self/mountinfo": V1_CPU_MOUNT + "\n" + mount.format(root=root, point="/cg"),
        }

    def test_the_group_of_the_process(self, tmp_path: Path, version: int) -> None:
        files = self.files(version, "/a/b") | group_files("cg/a/b", version, str(GIB), 300 * MIB)
        limit = available_memory(tree(tmp_path, files))
        assert limit.bytes == GIB - 300 * MIB
        assert limit.reason == "the control group's limit in /cg/a/b"

    def test_cached_files_that_can_be_dropped_are_free(self, tmp_path: Path, version: int) -> None:
        files = group_files("cg/a", version, str(GIB), 900 * MIB, 700 * MIB)
        limit = available_memory(tree(tmp_path, self.files(version, "/a") | files))
        assert limit.bytes == GIB - 200 * MIB

    @pytest.mark.parametrize("smallest", ["cg", "cg/a", "cg/a/b"])
    def test_the_least_on_the_way_up_to_the_mount(
        self, tmp_path: Path, version: int, smallest: str
    ) -> None:
        files = self.files(version, "/a/b")
        for directory in ("cg", "cg/a", "cg/a/b"):
            size = GIB if directory == smallest else 2 * GIB
            files |= group_files(directory, version, str(size), MIB)
        # Not on the way: the directory above the mount, and a sibling.
        files |= group_files(".", version, "1", 0) | group_files("cg/c", version, "1", 0)
        limit = available_memory(tree(tmp_path, files))
        assert limit.bytes == GIB - MIB
        assert limit.reason.endswith(f"/{smallest}")

    def test_a_container_that_sees_its_own_group_as_the_mount(
        self, tmp_path: Path, version: int
    ) -> None:
        files = self.files(version, "/docker/x/job", root="/docker/x")
        files |= group_files("cg", version, str(2 * GIB), MIB)
        files |= group_files("cg/job", version, str(GIB), MIB)
        assert available_memory(tree(tmp_path, files)).bytes == GIB - MIB

    def test_a_group_outside_what_is_mounted(self, tmp_path: Path, version: int) -> None:
        files = self.files(version, "/elsewhere", root="/docker/x")
        files |= group_files("cg", version, str(GIB), MIB)
        assert available_memory(tree(tmp_path, files)).bytes == GIB - MIB

    def test_no_limit(self, tmp_path: Path, version: int) -> None:
        files = self.files(version, "/a")
        files |= group_files("cg/a", version, NO_LIMIT_V1 if version == 1 else "max", MIB)
        assert available_memory(tree(tmp_path, files)).bytes == 4 * GIB

    def test_more_in_use_than_allowed_leaves_nothing(self, tmp_path: Path, version: int) -> None:
        files = self.files(version, "/a") | group_files("cg/a", version, str(MIB), 2 * MIB)
        assert available_memory(tree(tmp_path, files)).bytes == 0

    def test_blanks_in_the_mount_point(self, tmp_path: Path, version: int) -> None:
        files = self.files(version, "/a")
        files["proc/self/mountinfo"] = files["proc/self/mountinfo"].replace("/cg", r"/c\040g")
        files |= group_files("c g/a", version, str(GIB), 0)
        assert available_memory(tree(tmp_path, files)).bytes == GIB


def test_both_versions_mounted_and_the_older_in_force(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:memory,hugetlb:/a\n0::/u",
        "proc/self/mountinfo": V1_MOUNT.format(root="/", point="/cg/memory")
        + "\n"
        + V2_MOUNT.format(root="/", point="/cg/unified"),
    }
    files |= group_files("cg/memory/a", 1, str(GIB), 0)
    assert available_memory(tree(tmp_path, files)).bytes == GIB


@pytest.mark.parametrize(("soft", "expected"), [("1073741824", GIB - MIB), ("unlimited", 4 * GIB)])
def test_the_address_space(tmp_path: Path, soft: str, expected: int) -> None:
    limits = (
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max locked memory         65536                65536                bytes     \n"
        f"Max address space         {soft:<20} unlimited            bytes     \n"
    )
    files = {"proc/self/limits": limits, "proc/self/status": "Name:\tx\nVmSize:\t    1024 kB"}
    limit = available_memory(tree(tmp_path, files))
    assert limit.bytes == expected
    assert ("ulimit -v" in limit.reason) == (expected < 4 * GIB)


def test_this_machine_has_some() -> None:
    assert MIB < available_memory().bytes < 2**50
