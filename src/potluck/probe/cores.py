"""How many threads a stage should use: as many as the system lets this process run at once."""

from __future__ import annotations

import math
import os
from pathlib import Path, PurePosixPath


def default_num_threads() -> int:
    """Cores that this process may use, by affinity and by control group; at least 1."""
    return usable_cores(len(os.sched_getaffinity(0)), Path("/"))


def usable_cores(num_affine_cores: int, root: Path) -> int:
    """The smaller of ``num_affine_cores`` and the control groups' CPU quota, at least 1.

    ``root`` is where ``proc`` and ``sys`` are found. A quota of 2.5 cores counts as 3: the last
    thread has half a core, and chunks are taken by whoever is free. What cannot be read limits
    nothing.
    """
    quotas = _cpu_quotas(root)
    return max(1, min([num_affine_cores, *(math.ceil(quota) for quota in quotas)]))


def _cpu_quotas(root: Path) -> list[float]:
    """Limits in cores, of the process's groups and all above them.

    A line of ``/proc/self/cgroup`` is ``id:controllers:path``; version 2 has id 0 and no
    controllers (Linux, Documentation/admin-guide/cgroup-v1 and cgroup-v2).
    """
    quotas = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if hierarchy == "0" and not controllers:
            for folder in _group_and_parents(root / "sys/fs/cgroup", group):
                quotas.append(_quota_v2(folder))
        elif "cpu" in controllers.split(","):
            for mount in ("cpu", "cpu,cpuacct"):
                for folder in _group_and_parents(root / "sys/fs/cgroup" / mount, group):
                    quotas.append(_quota_v1(folder))
    return [quota for quota in quotas if quota is not None]


def _group_and_parents(mount: Path, group: str) -> list[Path]:
    """Folders from ``group`` up to the mount's root.

    In a container the mount often shows the container's own group as its root while the path is
    the host's: then only the root exists, and the others read as nothing.
    """
    parts = [part for part in PurePosixPath(group).parts if part not in ("/", "..")]
    return [mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def _quota_v2(folder: Path) -> float | None:
    quota, _, period = _read(folder / "cpu.max").strip().partition(" ")
    return _ratio(quota, period)


def _quota_v1(folder: Path) -> float | None:
    quota = _read(folder / "cpu.cfs_quota_us").strip()
    return _ratio(quota, _read(folder / "cpu.cfs_period_us").strip())


def _ratio(quota: str, period: str) -> float | None:
    """Cores, or None without a limit ("max" in version 2, -1 in version 1)."""
    if not quota.isdecimal() or not period.isdecimal() or int(quota) == 0 or int(period) == 0:
        return None
    return int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
