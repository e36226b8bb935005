"""The threads with which this node's stages compute on the CPU."""

from __future__ import annotations

from potluck.host.cores import CoreWatch, UsableCores


class NodeThreads:
    """How many threads a stage has, and how many of them compute: one for each usable core.

    ``requested`` is the user's limit. The usable cores can change while the agent runs. Workers
    follow them by themselves; reports and measured speeds use this object.
    """

    def __init__(self, requested: int | None = None, cores: CoreWatch | None = None) -> None:
        self._cores = CoreWatch() if cores is None else cores
        usable = self._cores.latest()
        self.most = usable.max_threads if requested is None else requested
        """The threads of each stage, computing or not: they have scratch memory."""
        self.at_start = min(self.most, usable.num_cores)
        """The threads that the units are measured with."""

    @property
    def cores(self) -> UsableCores:
        """The cores that are usable now."""
        return self._cores.latest()

    @property
    def num_computing(self) -> int:
        """The number of threads that compute now."""
        return min(self.most, self.cores.num_cores)

    @property
    def core_time(self) -> float | None:
        """The CPU time, in cores, that the computing threads can get; None if they get all."""
        cores = self.cores.core_seconds_per_second
        return cores if cores < self.num_computing else None

    @property
    def usable_share(self) -> float:
        """The part of the core time of the threads at the start that can be used now, at most 1."""
        return min(1.0, self.cores.core_seconds_per_second / self.at_start)
