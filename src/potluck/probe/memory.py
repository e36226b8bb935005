"""How much memory this process may still take, as the kernel tells it.

Everything is read below a root directory, so that the trees of other machines can be read too.
Sources: ``proc(5)``, ``cgroups(7)``, and the kernel's documentation of both versions of the memory
controller (``admin-guide/cgroup-v1/memory.rst``, ``admin-guide/cgroup-v2.rst``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from potluck.errors import PotluckError
from potluck.types.memory import MemoryLimit


def available_memory(root: Path = Path("/")) -> MemoryLimit:
    """The least of what the machine, the control groups and the address space have left.

    Caches of files count as free where the kernel can drop them, in control groups too. Raises
    ``PotluckError`` when there is no ``/proc/meminfo``; limits that cannot be read are none.
    """
    # "No limit" needs no care: version 1 of control groups writes a number near 2^63, which is
    # never the least.
    limits = [_machine(root), *_control_groups(root), *_address_space(root)]
    return min(limits, key=lambda limit: limit.bytes)


def _machine(root: Path) -> MemoryLimit:
    values = _table(root / "proc/meminfo")
    available = values.get("MemAvailable")
    if available is not None:
        return MemoryLimit(bytes=available, reason="memory available on this machine")
    # Kernels before 3.14, which boards still run, leave the estimate to the reader.
    free = values.get("MemFree")
    if free is None:
        raise PotluckError(
            "cannot read how much memory is free from /proc/meminfo", hint="mount /proc"
        )
    free += values.get("Buffers", 0) + values.get("Cached", 0) - values.get("Shmem", 0)
    return MemoryLimit(bytes=free, reason="memory free or in caches on this machine")


def _address_space(root: Path) -> Iterator[MemoryLimit]:
    """RLIMIT_AS (``ulimit -v``), less what is in use."""
    soft = re.search(r"^Max address space +(\d+) ", _text(root / "proc/self/limits"), re.MULTILINE)
    used = _table(root / "proc/self/status").get("VmSize")
    if soft and used is not None:
        yield MemoryLimit(
            bytes=max(0, int(soft[1]) - used), reason="the address space limit (ulimit -v)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Controller:
    """How one version of the memory controller spells its files."""

    limit: str
    usage: str
    inactive_file: str


_VERSION_1 = _Controller(
    limit="memory.limit_in_bytes",
    usage="memory.usage_in_bytes",
    inactive_file="total_inactive_file",
)
_VERSION_2 = _Controller(limit="memory.max", usage="memory.current", inactive_file="inactive_file")


def _control_groups(root: Path) -> Iterator[MemoryLimit]:
    """The limits of this process's groups, up to where their hierarchies are mounted."""
    for controller, directories in _group_directories(root):
        for directory in directories:
            path = root / str(directory).lstrip("/")
            limit, usage = _number(path / controller.limit), _number(path / controller.usage)
            if limit is None or usage is None:
                continue
            statistics = _table(path / "memory.stat")
            # Usage counts cached files; those not in use are dropped before the limit bites.
            used = usage - statistics.get(controller.inactive_file, 0)
            yield MemoryLimit(
                bytes=max(0, limit - used), reason=f"the control group's limit in {directory}"
            )


def _group_directories(root: Path) -> Iterator[tuple[_Controller, list[PurePosixPath]]]:
    """For each mounted memory controller, this process's group and those above it."""
    groups: dict[str, PurePosixPath] = {}
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group_path = rest.partition(":")
        if number == "0" and not controllers:
            groups["cgroup2"] = PurePosixPath(group_path)
        elif "memory" in controllers.split(","):
            groups["cgroup"] = PurePosixPath(group_path)
    for line in _text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, file_system = before.split(), after.split()
        if len(fields) < 5 or not file_system or file_system[0] not in groups:
            continue
        # Mounts of version 1's other controllers come too; they lack the files that matter here.
        controller = _VERSION_1 if file_system[0] == "cgroup" else _VERSION_2
        mounted, mount_point = _mount_path(fields[3]), _mount_path(fields[4])
        group = groups[file_system[0]]
        # In a container the hierarchy may be mounted from the container's own group on.
        below = group.relative_to(mounted) if group.is_relative_to(mounted) else PurePosixPath()
        directory = mount_point / below
        yield controller, [directory, *directory.parents[: len(below.parts)]]


def _mount_path(field: str) -> PurePosixPath:
    """A path of ``mountinfo``, where blanks are octal escapes."""
    return PurePosixPath(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    """A file of one number; None when it cannot be read or is no number, as ``max`` is none."""
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _table(path: Path) -> dict[str, int]:
    """Lines like ``Name: 12 kB`` or ``name 12``, in bytes; others are left out."""
    values: dict[str, int] = {}
    for line in _text(path).splitlines():
        match = re.fullmatch(r"(\w+):?\s+(\d+)( kB)?", line.strip())
        if match:
            values[match[1]] = int(match[2]) * (1024 if match[3] else 1)
    return values
