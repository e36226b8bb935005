"""The number of cores, and how many of them this process may use.

A core is a logical CPU of the kernel, so a physical core with two threads counts as two. Sources:
the kernel's ``admin-guide/cputopology.rst``, ``sched_getaffinity(2)``, and the CPU controllers of
``admin-guide/cgroup-v2.rst`` and ``scheduler/sched-bwc.rst``.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from potluck.host.control_groups import ControlGroup, control_groups
from potluck.host.system import THIS_MACHINE, System
from potluck.types.quantities import format_count

_MAX_CORES = 1 << 16
"""Eight times the most that Linux supports (CONFIG_NR_CPUS): a longer list is invalid."""

_ALL_CORES = "all"

_MAX_SPARE_THREADS = 16
"""A quota can be raised later, so stages have threads for more cores than a quota allows at first;
but not for all cores of a big server, since every thread needs scratch memory (0.1 to 2.6 MiB)."""

WATCH_SECONDS = 1.0
"""How long a ``CoreWatch`` takes the cores to be the same. Reading them takes about 0.6 ms on an
EPYC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsableCores:
    """The number of cores that may be used at once, and the ``reason`` for the limit, or ``all``.

    ``core_seconds_per_second`` is the core time that may be used in the long run, including the
    fraction that ``num_cores`` rounds up. The limiting control group's quota is renewed every
    ``period_seconds``; None if no quota is the limit. ``num_affine_cores`` would be usable without
    quotas.
    """

    num_cores: int
    reason: str
    core_seconds_per_second: float
    num_affine_cores: int
    period_seconds: float | None = None

    @property
    def max_threads(self) -> int:
        """The number of threads that a stage should have, so that it can use more cores when a
        quota is raised.
        """
        return max(self.num_cores, min(self.num_affine_cores, _MAX_SPARE_THREADS))


def default_num_threads() -> int:
    """Return the number of threads that may compute at once now: the number of usable cores."""
    return own_usable_cores().num_cores


def affine_cores() -> frozenset[int]:
    """Return the cores that this process may run on.

    If a sandbox denies ``sched_getaffinity(2)``, return the first cores, as many as are online.
    """
    try:
        return frozenset(os.sched_getaffinity(0))
    except OSError:
        return frozenset(range(os.cpu_count() or 1))


def own_usable_cores() -> UsableCores:
    """Return the cores that this process may use now."""
    return usable_cores(THIS_MACHINE, num_affine_cores=len(affine_cores()))


def usable_cores(system: System, *, num_affine_cores: int) -> UsableCores:
    """Return the minimum of ``num_affine_cores`` and the control groups' CPU quotas, at least 1.

    A quota of 2.5 cores counts as 3: the last thread has half a core, and any idle thread takes the
    next chunk of work. Unreadable limits are ignored.
    """
    least, reason = float(num_affine_cores), _affinity_reason(system, num_affine_cores)
    period = None
    for group in control_groups(system, "cpu"):
        quota = _quota(system, group)
        if quota is not None and quota.cores < least:
            least, period = quota.cores, quota.period_seconds
            reason = f"limited to {least:.3g} by control group {group.directory}"
    return UsableCores(
        num_cores=max(1, math.ceil(least)),
        reason=reason,
        core_seconds_per_second=least if least > 0 else 1.0,
        num_affine_cores=max(1, num_affine_cores),
        period_seconds=period,
    )


def threads_problem(requested: int | None, cores: UsableCores) -> str:
    """Return a warning if more threads are requested than cores are usable; empty otherwise."""
    if requested is None or requested <= cores.num_cores:
        return ""
    verb = "computes" if cores.num_cores == 1 else "compute"
    usable = format_count(cores.num_cores, "core")
    limit = (
        f"this machine has {usable}"
        if cores.reason == _ALL_CORES
        else f"only {usable} can be used here ({cores.reason})"
    )
    return f"{cores.num_cores} of {requested} threads {verb} at a time: {limit}"


class CoreWatch:
    """The cores that this process may use. The user or an orchestrator may change them.

    They are read again if the last reading is older than ``WATCH_SECONDS``. Any thread may ask.
    """

    def __init__(
        self,
        read: Callable[[], UsableCores] = own_usable_cores,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._clock = clock
        self._latest = read()
        self._expires = clock() + WATCH_SECONDS

    def latest(self) -> UsableCores:
        """Return the cores as they were within the last ``WATCH_SECONDS``."""
        if self._clock() >= self._expires:
            self._latest = self._read()
            self._expires = self._clock() + WATCH_SECONDS
        return self._latest


class Throttling:
    """Reports how often this process's control groups were throttled by their CPU quotas.

    The groups are those at the time of its creation.
    """

    def __init__(self, system: System) -> None:
        self._system = system
        self._files = [
            group.path / "cpu.stat"
            for group in control_groups(system, "cpu")
            if _quota(system, group) is not None
        ]

    def count(self) -> int:
        """Return the number of periods so far in which some group used up its quota."""
        texts = (self._system.text(file) or "" for file in self._files)
        found = (re.search(r"^nr_throttled ([0-9]{1,18})$", text, re.MULTILINE) for text in texts)
        return sum(int(match[1]) for match in found if match)


def present_cores(system: System) -> int | None:
    """Return how many cores the machine has, including those that are offline; None if unknown."""
    present = _listed_cores(system, "present")
    if present is not None:
        return present
    # Without /sys, count the cores that are online.
    cpuinfo = system.text(system.proc / "cpuinfo") or ""
    return len(re.findall(r"^processor[ \t]*\d*[ \t]*:", cpuinfo, re.MULTILINE)) or None


def _affinity_reason(system: System, num_affine_cores: int) -> str:
    present = present_cores(system)
    if present is None or num_affine_cores >= present:
        return _ALL_CORES
    online = _listed_cores(system, "online")
    if online is not None and num_affine_cores >= online:
        return "the others are offline"
    return "affinity"


def _listed_cores(system: System, name: str) -> int | None:
    """Return the number of cores in a list like ``0-3,8``; None if it is not a valid list."""
    text = system.text(system.sys / "devices/system/cpu" / name) or ""
    if not re.fullmatch(r"[0-9]{1,6}(-[0-9]{1,6})?(,[0-9]{1,6}(-[0-9]{1,6})?)*", text):
        return None
    count = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count if 0 < count <= _MAX_CORES else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Quota:
    cores: float
    period_seconds: float


def _quota(system: System, group: ControlGroup) -> _Quota | None:
    """Return a group's limit; None if there is none ("max" in version 2, -1 in version 1)."""
    if group.version == 2:
        quota, _, period = (system.text(group.path / "cpu.max") or "").partition(" ")
    else:
        quota = system.text(group.path / "cpu.cfs_quota_us") or ""
        period = system.text(group.path / "cpu.cfs_period_us") or ""
    # Microseconds; the kernel's own bound is below 2^44 (sched-bwc.rst).
    if not re.fullmatch(r"[0-9]{1,18}", quota) or not re.fullmatch(r"[0-9]{1,18}", period):
        return None
    if int(quota) == 0 or int(period) == 0:
        return None
    return _Quota(cores=int(quota) / int(period), period_seconds=int(period) / 1e6)


def last_level_cache_bytes() -> int | None:
    """Return the total size for all cores that this process may use; None if it is not reported."""
    return cache_bytes(THIS_MACHINE, affine_cores())


def cache_bytes(system: System, cores: Iterable[int]) -> int | None:
    """Return the total size of the last-level caches of ``cores``; shared caches count once.

    ``Documentation/ABI/testing/sysfs-devices-system-cpu``: ``cache/index*`` has ``level``,
    ``type``, ``size`` (``32768K``) and ``shared_cpu_map``. Many device trees of boards omit the
    sizes.
    """
    caches: dict[str, int] = {}
    for core in cores:
        folder = system.sys / f"devices/system/cpu/cpu{core}/cache"
        found = [
            (level, size, system.text(index / "shared_cpu_map") or str(core))
            for index in folder.glob("index*")
            if (level := system.number(index / "level")) is not None
            and (size := _size(system.text(index / "size") or ""))
            and system.text(index / "type") != "Instruction"
        ]
        if found:
            _, size, shared = max(found)
            caches[shared] = size
    return sum(caches.values()) or None


def _size(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,18})([KM])", text)
    return int(match[1]) * (1 << 10 if match[2] == "K" else 1 << 20) if match else 0
