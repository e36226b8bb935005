"""How much memory there is and may be used, from made-up trees."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from support.machines.machine_tree import machine_tree

from potluck.host.memory import available_memory, held_bytes, memory_facts, memory_pools
from potluck.host.system import System

MIB = 2**20
GIB = 2**30

V1_MOUNT = "35 31 0:32 {root} {point} rw,relatime shared:9 - cgroup cgroup rw,memory"
V1_CPU_MOUNT = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu"
V2_MOUNT = "41 31 0:38 {root} {point} rw,relatime - cgroup2 cgroup2 rw,nsdelegate"
NO_LIMIT_V1 = "9223372036854771712"
UNTOUCHED = 256 * MIB
ALONE = 4 * GIB - GIB // 2


def tree(root: Path, files: dict[str, str]) -> System:
    """A machine of 8 GiB, half of it free: 3.5 GiB may be used, for 512 MiB are reserved."""
    defaults = {"proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable:    4194304 kB"}
    return machine_tree(root, defaults | files)


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
    facts = memory_facts(tree(tmp_path, {}))
    assert facts.total_bytes == 8 * GIB
    assert facts.free_bytes == 4 * GIB
    assert facts.reserve_bytes == GIB // 2
    assert facts.usable.bytes == 4 * GIB - GIB // 2
    assert facts.usable.reason == "free on this machine, less a reserve of 512 MiB for the system"


@pytest.mark.parametrize(
    ("total_kib", "reserve"),
    [
        (512 * 1024, 32 * MIB),
        # A board of 3 GB, of which the firmware keeps some.
        (2_949_120, 180 * MIB),
        (8 * 1024**2, 512 * MIB),
        (1024**3, 512 * MIB),
    ],
)
def test_the_reserve(tmp_path: Path, total_kib: int, reserve: int) -> None:
    meminfo = f"MemTotal: {total_kib} kB\nMemAvailable: {total_kib // 2} kB"
    facts = memory_facts(tree(tmp_path, {"proc/meminfo": meminfo}))
    assert facts.reserve_bytes == reserve
    assert facts.usable.bytes == total_kib * 512 - reserve


def test_less_free_than_the_reserve(tmp_path: Path) -> None:
    meminfo = "MemTotal: 8388608 kB\nMemAvailable: 1024 kB"
    assert available_memory(tree(tmp_path, {"proc/meminfo": meminfo})).bytes == 0


def test_swap_does_not_count(tmp_path: Path) -> None:
    meminfo = "MemTotal: 16 kB\nMemAvailable: 8 kB\nSwapTotal: 99999 kB\nSwapFree: 99999 kB"
    facts = memory_facts(tree(tmp_path, {"proc/meminfo": meminfo}))
    assert (facts.total_bytes, facts.free_bytes, facts.usable.bytes) == (16384, 8192, 8192 - 1024)


def test_a_kernel_without_an_estimate(tmp_path: Path) -> None:
    meminfo = (
        "MemTotal: 16000 kB\nMemFree: 4000 kB\nBuffers: 200 kB\nCached: 30 kB\nShmem: 4 kB\n"
        "HugePages_Total: 0"
    )
    facts = memory_facts(tree(tmp_path, {"proc/meminfo": meminfo}))
    assert facts.free_bytes == 4226 * 1024
    assert facts.usable.bytes == (4226 - 1000) * 1024


@pytest.mark.parametrize(
    "meminfo",
    [None, "", b"\xff\xfe\x00MemTotal", "MemTotal: 12 kB", "MemTotal: " + "9" * 5000 + " kB"],
)
def test_without_figures_nothing_may_be_used(tmp_path: Path, meminfo: str | bytes | None) -> None:
    facts = memory_facts(
        machine_tree(tmp_path, {} if meminfo is None else {"proc/meminfo": meminfo})
    )
    assert facts.usable.bytes == facts.total_bytes == facts.free_bytes == 0
    assert facts.usable.reason == "/proc/meminfo cannot be read: is /proc mounted?"


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
        limit = available_memory(tree(tmp_path, files))
        assert limit.bytes == ALONE
        assert "this machine" in limit.reason

    def test_a_limit_between_what_is_free_and_what_is_left_of_it(
        self, tmp_path: Path, version: int
    ) -> None:
        """The reserve comes off the machine's memory and not off the group's."""
        files = self.files(version, "/a") | group_files("cg/a", version, str(4 * GIB - MIB), 0)
        assert available_memory(tree(tmp_path, files)).bytes == ALONE

    def test_absurd_figures(self, tmp_path: Path, version: int) -> None:
        for index, limit in enumerate(("-5", "x", "", "9" * 5000, str(2**60))):
            files = self.files(version, "/a") | group_files("cg/a", version, limit, 0)
            assert available_memory(tree(tmp_path / str(index), files)).bytes == ALONE
        # More in droppable caches than is in use.
        files = self.files(version, "/a") | group_files("cg/a", version, str(GIB), MIB, 2 * MIB)
        assert available_memory(tree(tmp_path / "caches", files)).bytes == GIB

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


def test_a_group_that_is_throttled_before_it_is_full(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/a",
        "proc/self/mountinfo": V2_MOUNT.format(root="/", point="/sys/fs/cgroup"),
        "sys/fs/cgroup/a/memory.high": str(GIB),
    }
    files |= group_files("sys/fs/cgroup/a", 2, str(2 * GIB), MIB)
    limit = available_memory(tree(tmp_path, files))
    assert limit.bytes == GIB - MIB
    assert limit.reason == "the control group's limit in /sys/fs/cgroup/a"


def test_a_container_that_lxcfs_gives_a_meminfo_of_its_own(tmp_path: Path) -> None:
    """All that it sees is its limit; the reserve is of that."""
    files = {
        "proc/meminfo": "MemTotal: 1048576 kB\nMemFree: 524288 kB\nMemAvailable: 786432 kB",
        "proc/self/cgroup": "0::/",
        "proc/self/mountinfo": V2_MOUNT.format(root="/", point="/sys/fs/cgroup")
        + "\n50 49 0:44 /proc/meminfo /proc/meminfo rw - fuse.lxcfs lxcfs rw,user_id=0",
    }
    files |= group_files("sys/fs/cgroup", 2, str(GIB), 512 * MIB, 256 * MIB)
    facts = memory_facts(tree(tmp_path, files))
    assert facts.total_bytes == GIB
    assert facts.usable.bytes == 768 * MIB - 64 * MIB


LIMITS = (
    "Limit                     Soft Limit           Hard Limit           Units     \n"
    "Max data size             {data:<20} unlimited            bytes     \n"
    "Max locked memory         65536                65536                bytes     \n"
    "Max address space         {address_space:<20} unlimited            bytes     \n"
)


@pytest.mark.parametrize(
    ("address_space", "data", "expected", "reason"),
    [
        ("unlimited", "unlimited", ALONE, "this machine"),
        (str(GIB), "unlimited", GIB - 2 * MIB - UNTOUCHED, "the address space limit (ulimit -v)"),
        ("unlimited", str(GIB), GIB - MIB - UNTOUCHED, "the data size limit (ulimit -d)"),
        (str(GIB), str(GIB), GIB - 2 * MIB - UNTOUCHED, "the address space limit (ulimit -v)"),
        (str(MIB), "unlimited", 0, "the address space limit (ulimit -v)"),
        (str(2**60), str(2**64 - 1), ALONE, "this machine"),
        ("9" * 5000, "x", ALONE, "this machine"),
    ],
)
def test_limits_of_the_process(
    tmp_path: Path, address_space: str, data: str, expected: int, reason: str
) -> None:
    files = {
        "proc/self/limits": LIMITS.format(address_space=address_space, data=data),
        "proc/self/status": "Name:\tx\nVmSize:\t    2048 kB\nVmData:\t    1024 kB",
    }
    limit = available_memory(tree(tmp_path, files))
    assert limit.bytes == expected
    assert reason in limit.reason


def test_what_is_shared_with_others(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/a/b",
        "proc/self/mountinfo": V2_MOUNT.format(root="/", point="/cg"),
    }
    files |= group_files("cg/a/b", 2, str(GIB), 300 * MIB)
    files |= group_files("cg/a", 2, "max", 300 * MIB)
    files |= group_files("cg", 2, str(2 * GIB), 500 * MIB)
    system = tree(tmp_path, files)
    machine, inner, outer = memory_pools("m", system)
    assert (machine.limit_bytes, machine.available_bytes) == (8 * GIB, ALONE)
    assert (inner.limit_bytes, inner.available_bytes) == (GIB, GIB - 300 * MIB)
    assert (outer.limit_bytes, outer.available_bytes) == (2 * GIB, 2 * GIB - 500 * MIB)
    assert len({machine.pool_id, inner.pool_id, outer.pool_id}) == 3
    # A neighbour in the outer group knows it by the same name, and the machine too.
    neighbour = dataclasses.replace(system, proc=tmp_path / "other")
    machine_tree(
        tmp_path / "other",
        {
            "meminfo": "MemTotal: 8388608 kB\nMemAvailable:    4194304 kB",
            "self/cgroup": "0::/c",
            "self/mountinfo": files["proc/self/mountinfo"],
        },
    )
    assert memory_pools("m", neighbour) == (machine, outer)


def test_what_a_process_holds(tmp_path: Path) -> None:
    status = "VmRSS:\t  900 kB\nRssAnon:\t  500 kB\nRssFile:\t 300 kB\nRssShmem:\t 100 kB"
    assert held_bytes(tree(tmp_path, {"proc/self/status": status})) == 600 * 1024


def test_this_machine_has_some() -> None:
    facts = memory_facts(System())
    assert MIB < facts.usable.bytes <= facts.free_bytes <= facts.total_bytes < 2**50


@pytest.mark.parametrize(
    ("statistics", "mount", "directory"),
    [
        ("total_{0} {1}", V1_MOUNT, "sys/fs/cgroup/memory"),
        ("{0} {1}", V2_MOUNT, "sys/fs/cgroup"),
    ],
    ids=["v1", "v2"],
)
@pytest.mark.parametrize(
    ("active", "mapped", "droppable"), [(700, 0, 1000), (700, 500, 500), (700, 900, 300)]
)
def test_files_that_nobody_has_mapped_are_free_in_a_group(
    tmp_path: Path,
    statistics: str,
    mount: str,
    directory: str,
    active: int,
    mapped: int,
    droppable: int,
) -> None:
    """300 MiB are inactive anyway; of the active ones those that are in use are not free."""
    version = 1 if mount == V1_MOUNT else 2
    files = group_files(directory, version, str(2 * GIB), GIB)
    names = ("inactive_file", "active_file", "mapped_file" if version == 1 else "file_mapped")
    values = (300, active, mapped)
    files[f"{directory}/memory.stat"] = "\n".join(
        statistics.format(name, value * MIB) for name, value in zip(names, values, strict=True)
    )
    files["proc/self/mountinfo"] = mount.format(root="/", point=f"/{directory}")
    files["proc/self/cgroup"] = "4:memory:/" if version == 1 else "0::/"
    assert available_memory(tree(tmp_path, files)).bytes == GIB + droppable * MIB
