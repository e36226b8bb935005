"""How much memory the machine has, and how much of it this process may still use.

Swap is never counted: weights that are read once per token would be read from the disk.
Sources: ``proc(5)``, ``getrlimit(2)``, ``cgroups(7)``, and the kernel's documentation of the memory
controller's two versions (``admin-guide/cgroup-v1/memory.rst``, ``admin-guide/cgroup-v2.rst``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from potluck.host.control_groups import ControlGroup, control_groups
from potluck.host.system import THIS_MACHINE, System
from potluck.types.memory import MemoryFacts, MemoryLimit, MemoryPool
from potluck.types.quantities import format_bytes

_MAX_RESERVE_BYTES = 512 * 2**20
_RESERVED_SHARE = 16

_UNTOUCHED_BYTES = 256 * 2**20
"""Memory that a process maps but hardly touches. These limits count it, but plans do not: stacks of
threads (8 MiB each) and arenas of ``malloc`` (64 MiB for each thread that allocates). 98 MiB were
measured with 4 threads while a stage was loaded.
"""

_MAX_DIGITS = 20
"""The number of digits of 2^64, the largest number that the kernel writes in these files."""


def available_memory(system: System = THIS_MACHINE) -> MemoryLimit:
    """Return how much memory may be used now, and the reason (``memory_facts(system).usable``)."""
    return memory_facts(system).usable


def held_bytes(system: System = THIS_MACHINE) -> int:
    """Return the memory of this process that the kernel cannot evict: its own pages and shared
    memory.
    """
    status = read_sizes(system, system.proc / "self/status")
    return status.get("RssAnon", 0) + status.get("RssShmem", 0)


def resident_bytes(system: System = THIS_MACHINE) -> int:
    """Return the memory of this process, with the pages of files that it has mapped."""
    return read_sizes(system, system.proc / "self/status").get("VmRSS", 0)


def memory_pools(machine_id: str, system: System = THIS_MACHINE) -> tuple[MemoryPool, ...]:
    """Return the memory that this process shares with others: the machine's and its control
    groups'.

    ``machine_id`` is the same for all processes on one kernel. A control group is identified by the
    inode of its directory, which is the same in every container. A process that sees another total
    (in a container with its own ``meminfo``) uses different memory.
    """
    facts = memory_facts(system)
    machine = MemoryPool(
        pool_id=f"{machine_id}/{facts.total_bytes}",
        limit_bytes=facts.total_bytes,
        available_bytes=max(0, facts.free_bytes - facts.reserve_bytes),
    )
    groups = (
        MemoryPool(
            pool_id=f"{machine_id}/group-{inode}",
            limit_bytes=limit.limit_bytes,
            available_bytes=limit.left_bytes,
        )
        for limit in _control_group_limits(system)
        if limit.limit_bytes <= facts.total_bytes
        and (inode := system.inode(limit.group.path)) is not None
    )
    return (machine, *groups)


def memory_facts(system: System) -> MemoryFacts:
    """Return the machine's memory, and the usable part: the least that is left of the machine's
    memory, the control groups' limits and the process limits.

    File caches that the kernel can evict count as free, in control groups too. If ``/proc/meminfo``
    cannot be read, everything is 0, and the limit's reason says why. Other limits that cannot be
    read are ignored.
    """
    values = read_sizes(system, system.proc / "meminfo")
    total, free = values.get("MemTotal"), _free(values)
    if total is None or free is None:
        unknown = MemoryLimit(bytes=0, reason="/proc/meminfo cannot be read: is /proc mounted?")
        return MemoryFacts(total_bytes=0, free_bytes=0, reserve_bytes=0, usable=unknown)
    free = max(0, min(free, total))
    reserve = reserve_bytes(total)
    machine = MemoryLimit(
        bytes=max(0, free - reserve),
        reason=f"free on this machine, less a reserve of {format_bytes(reserve)} for the system",
    )
    # "No limit" needs no special case: version 1 of control groups writes 2^63 less a page, which
    # is never the minimum.
    groups = (limit.as_memory_limit() for limit in _control_group_limits(system))
    limits = [machine, *groups, *_process_limits(system)]
    return MemoryFacts(
        total_bytes=total,
        free_bytes=free,
        reserve_bytes=reserve,
        usable=min(limits, key=lambda limit: limit.bytes),
    )


def reserve_bytes(total_bytes: int) -> int:
    """Return the part of a machine's memory that is reserved for the system: a sixteenth, at most
    512 MiB.

    ``MemAvailable`` already excludes the memory that the kernel needs. The reserve is for usage
    that grows while a model is loaded: a login, a package manager, this node's agent, network
    buffers, page tables of the weights (a 512th of their size), and the code of all of these, which
    must stay in the cache. On boards with 2 to 4 GB it is 128 to 256 MiB. It costs a 3 GB board one
    layer in sixteen, whereas a machine that runs out of memory costs the whole epoch.
    """
    return min(total_bytes // _RESERVED_SHARE, _MAX_RESERVE_BYTES)


def _free(values: Mapping[str, int]) -> int | None:
    available = values.get("MemAvailable")
    if available is not None:
        return available
    # Kernels before 3.14, which some boards still run, do not have MemAvailable.
    free = values.get("MemFree")
    if free is None:
        return None
    return free + values.get("Buffers", 0) + values.get("Cached", 0) - values.get("Shmem", 0)


def _process_limits(system: System) -> Iterator[MemoryLimit]:
    """Yield RLIMIT_AS and RLIMIT_DATA (which also counts private mappings since Linux 4.7)."""
    limits = system.text(system.proc / "self/limits") or ""
    used = read_sizes(system, system.proc / "self/status")
    for row, counter, reason in (
        ("address space", "VmSize", "the address space limit (ulimit -v)"),
        ("data size", "VmData", "the data size limit (ulimit -d)"),
    ):
        soft = re.search(rf"^Max {row} +([0-9]{{1,{_MAX_DIGITS}}}) ", limits, re.MULTILINE)
        if soft and counter in used:
            left = int(soft[1]) - used[counter] - _UNTOUCHED_BYTES
            yield MemoryLimit(bytes=max(0, left), reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Controller:
    """The names of one version's files, and of its statistics about caches.

    ``inactive`` and ``active`` count pages of files; ``mapped`` counts the pages of both that a
    process has mapped.
    """

    limits: tuple[str, ...]
    usage: str
    inactive: str
    active: str
    mapped: str

    def droppable_bytes(self, statistics: Mapping[str, int]) -> int:
        """Return the size of cached files that are not in use.

        Usage counts them, but the kernel drops them first when the limit is reached. Files that are
        read repeatedly become active, such as a model whose weights are mapped; when no process has
        them mapped any more, they are only a cache.
        """
        inactive, active, mapped = (
            statistics.get(name, 0) for name in (self.inactive, self.active, self.mapped)
        )
        return inactive + max(0, active - mapped)


_CONTROLLERS = {
    1: _Controller(
        limits=("memory.limit_in_bytes",),
        usage="memory.usage_in_bytes",
        inactive="total_inactive_file",
        active="total_active_file",
        mapped="total_mapped_file",
    ),
    # Above memory.high no process is killed, but the whole group is throttled heavily.
    2: _Controller(
        limits=("memory.max", "memory.high"),
        usage="memory.current",
        inactive="inactive_file",
        active="active_file",
        mapped="file_mapped",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _GroupLimit:
    """A limit of a control group, and how much of it is left."""

    group: ControlGroup
    limit_bytes: int
    left_bytes: int

    def as_memory_limit(self) -> MemoryLimit:
        reason = f"the control group's limit in {self.group.directory}"
        return MemoryLimit(bytes=self.left_bytes, reason=reason)


def _control_group_limits(system: System) -> Iterator[_GroupLimit]:
    """Yield the limits of this process's groups, up to the mount points of their hierarchies."""
    for group in control_groups(system, "memory"):
        controller = _CONTROLLERS[group.version]
        usage = system.number(group.path / controller.usage)
        if usage is None:
            continue
        statistics = read_sizes(system, group.path / "memory.stat")
        used = max(0, usage - controller.droppable_bytes(statistics))
        for name in controller.limits:
            limit = system.number(group.path / name)
            if limit is not None and limit >= 0:
                yield _GroupLimit(group=group, limit_bytes=limit, left_bytes=max(0, limit - used))


def read_sizes(system: System, path: Path) -> dict[str, int]:
    """Return the sizes in a file such as ``/proc/meminfo`` in bytes, by name.

    Lines are like ``Name: 12 kB`` or ``name 12``; others are ignored.
    """
    line = rf"^(\w+):?[ \t]+([0-9]{{1,{_MAX_DIGITS}}})( kB)?[ \t]*$"
    return {
        name: int(digits) * (1024 if unit else 1)
        for name, digits, unit in re.findall(line, system.text(path) or "", re.MULTILINE)
    }
