"""The stages on a node, which epochs it obeys, and how stages have crashed."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
import psutil

from potluck.cluster.agent.process_stat import is_stopped, other_threads
from potluck.cluster.agent.worker_process import WorkerProcess
from potluck.cluster.wire.calls import (
    AbandonStage,
    StageCheck,
    StageChecks,
    StageEnds,
    StageScope,
    StageStats,
)
from potluck.cluster.wire.worker_messages import Loaded, StageSpec, Stats
from potluck.errors import EngineError, PotluckError, StalledError
from potluck.types.cluster import DeploymentId, Epoch, UnitId
from potluck.types.content import Transfer
from potluck.types.held_stage import HeldStage
from potluck.types.node import CPU_UNIT
from potluck.types.unit import Fault

STATS_SECONDS = 1.0
"""How long a worker may take to report its totals, for which it need not stop computing."""


CHECK_SECONDS = 0.75
"""The time for a worker to answer, or to be seen computing: one that shares a core with 50 others
runs every 0.2 s or so (slices of 3 to 4 ms)."""

_LOOK_SECONDS = 0.05

Work = tuple[int, int]


def work_of(pid: int) -> Work:
    """Return numbers that grow while a worker computes: CPU time and pages read, of all threads but
    the first, which only answers the agent.
    """
    threads = other_threads(pid)
    return (
        sum(thread.cpu_time for thread in threads),
        sum(thread.num_major_faults for thread in threads),
    )


async def check_worker(worker: WorkerProcess, *, is_cpu: bool) -> StageCheck | None:
    """Observe a worker for ``CHECK_SECONDS``, or until all is well; None for one that has exited.

    A worker that computes answers its agent on another thread, and uses the CPU. One that was
    stopped, is frozen with its control group, or hangs in the kernel does neither. The kernel is
    asked, so that a hung worker need not run any code. With ``is_cpu`` it computes on the CPU, and
    makes no progress if it is busy but uses no CPU time. Other workers wait for their unit, and
    watch it themselves.
    """
    was_stopped, work = is_stopped(worker.pid), work_of(worker.pid)
    deadline = time.monotonic() + CHECK_SECONDS
    stats: Stats | None = None
    answers = True
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            stats = await worker.stats()
    except TimeoutError:
        answers = False
    except PotluckError:
        return None
    # A worker that waits for another member of its group is idle: that member is asked, too.
    is_busy = stats is not None and not stats.waiting_seconds
    busy_seconds = stats.busy_seconds if stats is not None and is_busy else 0.0
    has_progress = answers and (busy_seconds == 0 or not is_cpu)
    while not (has_progress := has_progress or work_of(worker.pid) != work):
        if time.monotonic() >= deadline:
            break
        await asyncio.sleep(_LOOK_SECONDS)
    return StageCheck(
        answers=answers,
        is_stopped=was_stopped and not answers and is_stopped(worker.pid),
        has_progress=has_progress,
        busy_seconds=busy_seconds,
        sending_seconds=0.0 if stats is None else stats.sending_seconds,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """The memory that plans have assigned to the stages here, in bytes.

    ``planned_bytes`` are of the machine's memory; ``untaken_bytes`` of them are not yet in use, and
    so appear free. ``device_bytes`` are by unit, for units with their own memory. ``held`` are the
    loaded stages.
    """

    planned_bytes: int = 0
    untaken_bytes: int = 0
    device_bytes: Mapping[UnitId, int] = field(default_factory=dict)
    held: tuple[HeldStage, ...] = ()


@dataclass(slots=True, kw_only=True, eq=False)
class HostedStage:
    """A worker and its stage.

    ``requested`` is the stage as last requested; ``serving`` is the one whose edges are open or
    being opened. Both hold the same layers, but may differ in epoch and position in the plan.
    ``loaded`` is None while the worker loads. A worker that ``is_stopped`` was killed and has not
    exited yet. Its measurements until ``measured_at`` (seconds since 1970) are known.
    """

    worker: WorkerProcess
    requested: StageSpec
    serving: StageSpec | None = None
    loaded: Loaded | None = None
    is_stopped: bool = False
    measured_at: float = 0.0

    @property
    def is_usable(self) -> bool:
        """Whether its worker has loaded it and is not about to exit."""
        return self.loaded is not None and not (self.is_stopped or self.worker.is_ending)

    @property
    def held(self) -> HeldStage:
        """Return the stage as the node reports it."""
        epoch = (self.serving or self.requested).epoch
        return msgspec.structs.replace(self.requested, epoch=epoch).held


async def stats_of(worker: WorkerProcess, seconds: float = STATS_SECONDS) -> Stats | None:
    """Return a worker's totals; None if it is not loaded or does not answer in time."""
    with suppress(TimeoutError, PotluckError):
        async with asyncio.timeout(seconds):
            return await worker.stats()
    return None


class HostedStages:
    """The stages on this node, those that load included. For use in the agent's event loop.

    ``measured`` gets all totals that workers report. Stages of workers that were killed are not
    returned.
    """

    def __init__(self, measured: Callable[[HostedStage, Stats], None] | None) -> None:
        self.by_worker: dict[WorkerProcess, HostedStage] = {}
        self._measured = measured

    @property
    def memory(self) -> StageMemory:
        """Return the memory that plans have assigned to the stages here, and how much is in use."""
        stages = self.here()
        untaken_bytes = 0
        device_bytes: Counter[UnitId] = Counter()
        for each in stages:
            device_bytes[each.requested.unit_id] += each.requested.device_bytes
            with suppress(psutil.Error):
                memory = psutil.Process(each.worker.pid).memory_info()
                # Pages of a mapped file are resident, but not part of a plan.
                taken_bytes = memory.rss - memory.shared if each.requested.is_mapped else memory.rss
                # Caches fill as they are used.
                untaken_bytes += max(0, each.requested.num_bytes - taken_bytes)
        return StageMemory(
            planned_bytes=sum(each.requested.num_bytes for each in stages),
            untaken_bytes=untaken_bytes,
            device_bytes=device_bytes,
            held=tuple(each.held for each in stages if each.is_usable),
        )

    @property
    def is_serving(self) -> bool:
        """Whether the edges of any stage are open or being opened."""
        return any(each.serving is not None for each in self.here())

    def workers_on(self, unit_id: UnitId) -> list[WorkerProcess]:
        """Return the workers of the stages on a unit."""
        return [each.worker for each in self.here() if each.requested.unit_id == unit_id]

    def note_transfer(self, job: str, transfer: Transfer) -> None:
        """Pass on the progress of a job's files to those that wait for the stages."""
        for each in self.here():
            files = each.requested.files
            if each.loaded is None and files is not None and files.job == job:
                each.worker.transferred(transfer)

    def here(self) -> list[HostedStage]:
        """Return all stages."""
        return [each for each in self.by_worker.values() if not each.is_stopped]

    def of(self, deployment: DeploymentId) -> list[HostedStage]:
        """Return the stages of a deployment."""
        return [each for each in self.here() if each.requested.deployment == deployment]

    def find(self, deployment: DeploymentId, epoch: Epoch, index: int) -> HostedStage | None:
        """Return the stage that was requested last at an epoch, as one of its plan."""
        for each in self.of(deployment):
            if each.requested.epoch == epoch and each.requested.index == index:
                return each
        return None

    def _serving(self, scope: StageScope) -> dict[int, HostedStage]:
        """Return the stages of a deployment that serve at one epoch, by index."""
        return {
            each.serving.index: each
            for each in self.of(scope.deployment)
            if each.serving is not None and each.serving.epoch == scope.epoch
        }

    async def collect(self) -> None:
        """Have every worker report its measurements."""
        await self.stats_of(self.here())

    async def stats(self, scope: StageScope) -> StageStats:
        """Return the totals of this node's stages of a deployment at one epoch."""
        concerned = self._serving(scope)
        answers = await self.stats_of(concerned.values())
        found = zip(concerned, answers, strict=True)
        return StageStats(stages={index: stats for index, stats in found if stats is not None})

    async def stats_of(
        self, stages: Collection[HostedStage], seconds: float = STATS_SECONDS
    ) -> list[Stats | None]:
        """Return the totals of stages; None for one that does not answer in time."""
        answers = await asyncio.gather(*(stats_of(each.worker, seconds) for each in stages))
        for stage, stats in zip(stages, answers, strict=True):
            if stats is not None and self._measured is not None:
                self._measured(stage, stats)
        return answers

    async def check(self, scope: StageScope) -> StageChecks:
        """Return whether this node's stages of a deployment at one epoch make progress; takes a
        second.
        """
        concerned = self._serving(scope)
        answers = await asyncio.gather(
            *(
                check_worker(each.worker, is_cpu=each.requested.unit_id == CPU_UNIT)
                for each in concerned.values()
            )
        )
        found = zip(concerned, answers, strict=True)
        return StageChecks(stages={index: check for index, check in found if check is not None})

    async def abandon(self, request: AbandonStage) -> None:
        """Stop a stage that makes no progress; report it as lost, and its unit as hung."""
        scope = StageScope(deployment=request.deployment, epoch=request.epoch)
        hosted = self._serving(scope).get(request.index)
        if hosted is not None:
            hosted.worker.fail(StalledError(Fault.HUNG.value, request.message))


class StageCrashes:
    """The latest crash of each stage, until its coordinator asks. For the agent's event loop."""

    def __init__(self) -> None:
        self._crashes: dict[tuple[DeploymentId, int], tuple[Epoch, str]] = {}

    def note(self, spec: StageSpec, line: str) -> None:
        """Record that a stage crashed, with a line that describes how."""
        self._crashes[spec.deployment, spec.index] = (spec.epoch, line)

    def take(self, scope: StageScope) -> StageEnds:
        """Return the crashes of an epoch, and drop them and those of lower epochs."""
        known = [key for key in self._crashes if key[0] == scope.deployment]
        crashes = [self._crashes.pop(key) for key in known if self._crashes[key][0] <= scope.epoch]
        return StageEnds(crashes=tuple(line for epoch, line in crashes if epoch == scope.epoch))


class EpochsInForce:
    """The epochs of each deployment that a node obeys. Pure; grows with each deployment.

    These are the highest epoch seen in use, and the highest that has ended.
    """

    def __init__(self) -> None:
        self._highest: dict[DeploymentId, Epoch] = {}
        self._ended: dict[DeploymentId, Epoch] = {}

    def observe(self, deployment: DeploymentId, epoch: Epoch) -> None:
        """Record that ``epoch`` is in use; lower ones are over."""
        highest = self._highest.get(deployment)
        if highest is None or highest < epoch:
            self._highest[deployment] = epoch

    def end(self, deployment: DeploymentId, epoch: Epoch) -> None:
        """Record that ``epoch`` and lower ones are over."""
        ended = self._ended.get(deployment)
        if ended is None or ended < epoch:
            self._ended[deployment] = epoch

    def is_over(self, deployment: DeploymentId, epoch: Epoch) -> bool:
        """Return whether ``epoch`` is over."""
        ended = self._ended.get(deployment)
        return self.has_higher(deployment, epoch) or (ended is not None and epoch <= ended)

    def has_higher(self, deployment: DeploymentId, epoch: Epoch) -> bool:
        """Return whether a higher epoch than ``epoch`` was seen in use."""
        highest = self._highest.get(deployment)
        return highest is not None and epoch < highest

    def check(self, deployment: DeploymentId, epoch: Epoch) -> None:
        """Raise ``EngineError`` if ``epoch`` is over."""
        if self.is_over(deployment, epoch):
            raise EngineError(f"epoch {epoch.number} of {deployment} is over")
