"""The stages that this node computes: their workers, started and stopped for coordinators."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass

import psutil

from potluck.cluster.agent.node import StageMemory
from potluck.cluster.agent.stage_checks import check_worker
from potluck.cluster.agent.unit_health import UnitFailure, failure_of
from potluck.cluster.agent.units import NodeUnits
from potluck.cluster.agent.worker_notes import WorkerNotes
from potluck.cluster.agent.worker_process import WorkerProcess
from potluck.cluster.calls import (
    CPU_UNIT,
    AbandonStage,
    ConnectStage,
    StageChecks,
    StageEnds,
    StageLost,
    StageScope,
    StageStats,
)
from potluck.cluster.trust.credentials import Credentials
from potluck.cluster.worker.messages import Identity, Load, Loaded, Progress, StageSpec, Stats
from potluck.errors import EngineError, PotluckError, StalledError, UnitFaultError
from potluck.types.cluster import DeploymentId, Epoch, NodeId, UnitId
from potluck.types.unit import Fault

_log = logging.getLogger(__name__)

_STATS_SECONDS = 1.0
"""What a worker may take to say what it did; it need not stop computing for it."""

_Key = tuple[DeploymentId, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    epoch: Epoch
    unit_id: UnitId
    num_bytes: int
    device_bytes: int
    is_mapped: bool
    worker: WorkerProcess


class StageHost:
    """Runs workers on this node's ``units``.

    ``report_lost`` tells the coordinator of a worker that ended by itself, ``unit_failed`` is told
    before that what it says of its unit. ``unit_step_seconds`` and ``stall_seconds``: see
    ``AgentConfig``.
    """

    def __init__(
        self,
        credentials: Credentials,
        notes: WorkerNotes,
        units: NodeUnits,
        *,
        listen_host: str,
        num_threads: int,
        packed_cache_bytes: int | None,
        unit_step_seconds: float,
        stall_seconds: float,
        unit_failed: Callable[[UnitId, UnitFailure], None],
        report_lost: Callable[[StageLost], Awaitable[None]],
    ) -> None:
        self._credentials = credentials
        self._notes = notes
        self._units = units
        self._listen_host = listen_host
        self._num_threads = num_threads
        self._packed_cache_bytes = packed_cache_bytes
        self._unit_step_seconds = unit_step_seconds
        self._stall_seconds = stall_seconds
        self._unit_failed = unit_failed
        self._report_lost = report_lost
        self._stages: dict[_Key, _Running] = {}
        self._highest: dict[DeploymentId, Epoch] = {}
        self._stopped: dict[DeploymentId, Epoch] = {}
        self._crashes: dict[_Key, tuple[Epoch, str]] = {}  # until the coordinator has asked
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def memory(self) -> StageMemory:
        """What the plans have counted for the stages that are here, and the workers have taken."""
        untaken_bytes = 0
        device_bytes: Counter[UnitId] = Counter()
        for running in self._stages.values():
            device_bytes[running.unit_id] += running.device_bytes
            with suppress(psutil.Error):
                memory = psutil.Process(running.worker.pid).memory_info()
                # Pages of a mapped file are resident, and in no plan.
                taken_bytes = memory.rss - memory.shared if running.is_mapped else memory.rss
                # Caches fill up as they are used.
                untaken_bytes += max(0, running.num_bytes - taken_bytes)
        return StageMemory(
            planned_bytes=sum(running.num_bytes for running in self._stages.values()),
            untaken_bytes=untaken_bytes,
            device_bytes=device_bytes,
        )

    def workers_on(self, unit_id: UnitId) -> list[WorkerProcess]:
        """The workers of the stages that are on a unit."""
        return [each.worker for each in self._stages.values() if each.unit_id == unit_id]

    async def start(self, spec: StageSpec) -> AsyncGenerator[Progress | Loaded, None]:
        """Start a worker for a stage and load it; the last answer is ``Loaded``.

        Whatever this node has of the deployment at lower epochs is stopped first. Raises
        ``EngineError`` for an epoch that is over and for a unit that is out or is none of this
        node's, and what the worker met. If the caller goes away before the stage is loaded, its
        worker is stopped.
        """
        self._check_in_force(spec)
        await self.supersede(spec.deployment, spec.epoch)
        load = self._load(spec)
        key = (spec.deployment, spec.index)
        worker = await WorkerProcess.start(lambda worker, error: self._ended(spec, worker, error))
        try:
            self._check_in_force(spec)  # much may have been said meanwhile
        except EngineError:
            worker.kill()
            raise
        self._stages[key] = _Running(
            epoch=spec.epoch,
            unit_id=spec.unit_id,
            num_bytes=spec.num_bytes,
            device_bytes=spec.device_bytes,
            is_mapped=spec.is_mapped,
            worker=worker,
        )
        is_loaded = False
        try:
            self._notes.remember(worker.pid)
            async with aclosing(worker.load(load, stall_seconds=self._stall_seconds)) as events:
                async for event in events:
                    is_loaded = isinstance(event, Loaded)
                    yield event
        finally:
            if not is_loaded:
                await self._stop(lambda other, epoch: other == key and epoch == spec.epoch)

    async def connect(self, request: ConnectStage) -> None:
        """Have a loaded stage open its edges."""
        running = self._stages.get((request.deployment, request.index))
        if running is None or running.epoch != request.epoch:
            raise EngineError(f"stage {request.index} of {request.deployment} is not loaded here")
        await running.worker.connect(request.connect)

    async def stop(self, scope: StageScope) -> StageEnds:
        """Stop this node's stages of a deployment, up to an epoch, and start none of them later.

        Returns how they have ended by themselves, those that had already ended included.
        """
        stopped = self._stopped.get(scope.deployment)
        if stopped is None or stopped < scope.epoch:
            self._stopped[scope.deployment] = scope.epoch
        await self._stop(lambda key, epoch: key[0] == scope.deployment and epoch <= scope.epoch)
        crashes = self._forget_crashes(scope.deployment, scope.epoch)
        return StageEnds(crashes=tuple(line for epoch, line in crashes if epoch == scope.epoch))

    def _forget_crashes(self, deployment: DeploymentId, epoch: Epoch) -> list[tuple[Epoch, str]]:
        known = [key for key in self._crashes if key[0] == deployment]
        return [self._crashes.pop(key) for key in known if self._crashes[key][0] <= epoch]

    async def supersede(self, deployment: DeploymentId, epoch: Epoch) -> None:
        """``epoch`` is in force: stop what is here of lower ones, and start none of it later."""
        highest = self._highest.get(deployment)
        if highest is None or highest < epoch:
            self._highest[deployment] = epoch
        await self._stop(lambda key, running: key[0] == deployment and running < epoch)

    async def coordinator_left(self, node_id: NodeId) -> None:
        """Stop the stages of a coordinator that is gone: its successor plans anew."""
        await self._stop(lambda key, epoch: epoch.coordinator == node_id)

    async def stop_all(self) -> None:
        """Stop everything: the agent ends."""
        await self._stop(lambda key, epoch: True)
        for task in self._tasks:
            task.cancel()

    async def stats(self, scope: StageScope) -> StageStats:
        """Totals of this node's stages of a deployment at one epoch."""
        concerned = self._at(scope)
        answers = await asyncio.gather(*(_stats(running.worker) for running in concerned.values()))
        found = zip(concerned, answers, strict=True)
        return StageStats(stages={index: stats for index, stats in found if stats is not None})

    async def check(self, scope: StageScope) -> StageChecks:
        """Whether this node's stages of a deployment at one epoch make progress; a second."""
        concerned = self._at(scope)
        answers = await asyncio.gather(
            *(
                check_worker(running.worker, is_cpu=running.unit_id == CPU_UNIT)
                for running in concerned.values()
            )
        )
        found = zip(concerned, answers, strict=True)
        return StageChecks(stages={index: check for index, check in found if check is not None})

    async def abandon(self, request: AbandonStage) -> None:
        """End a stage that makes no progress; it is reported as lost, and its unit as hung."""
        scope = StageScope(deployment=request.deployment, epoch=request.epoch)
        running = self._at(scope).get(request.index)
        if running is not None:
            running.worker.fail(StalledError(Fault.HUNG.value, request.message))

    def _at(self, scope: StageScope) -> dict[int, _Running]:
        """Return the stages of a deployment at one epoch, by index."""
        return {
            key[1]: running
            for key, running in self._stages.items()
            if key[0] == scope.deployment and running.epoch == scope.epoch
        }

    def _check_in_force(self, spec: StageSpec) -> None:
        highest = self._highest.get(spec.deployment)
        stopped = self._stopped.get(spec.deployment)
        if (highest and spec.epoch < highest) or (stopped and spec.epoch <= stopped):
            raise EngineError(f"epoch {spec.epoch.number} of {spec.deployment} is over")
        running = self._stages.get((spec.deployment, spec.index))
        if running is not None and running.epoch == spec.epoch:
            raise EngineError(f"stage {spec.index} of {spec.deployment} is here already")

    def _load(self, spec: StageSpec) -> Load:
        unit = self._units.require(spec.unit_id)
        own_bytes = unit.device.own_free_bytes
        taken_bytes = self.memory.device_bytes.get(spec.unit_id, 0)
        return Load(
            spec=spec,
            unit=self._units.address(unit, spec.arithmetic),
            device_free_bytes=None if own_bytes is None else own_bytes - taken_bytes,
            identity=Identity(
                node_id=self._credentials.node_id,
                certificate_pem=self._credentials.certificate_pem,
                private_key_pem=self._credentials.private_key_pem,
                authority_pem=self._credentials.authority_pem,
            ),
            listen_host=self._listen_host,
            num_threads=self._num_threads,
            packed_cache_bytes=self._packed_cache_bytes,
            step_seconds=None if spec.unit_id == CPU_UNIT else self._unit_step_seconds,
        )

    async def _stop(self, concerns: Callable[[_Key, Epoch], bool]) -> None:
        """Kill, then wait for the ends: whoever is cancelled meanwhile leaves nothing behind."""
        stopping = [
            (key, running.worker)
            for key, running in self._stages.items()
            if concerns(key, running.epoch)
        ]
        for key, worker in stopping:
            del self._stages[key]
            worker.kill()
        for _, worker in stopping:
            await worker.wait()

    def _ended(self, spec: StageSpec, worker: WorkerProcess, error: PotluckError) -> None:
        key = (spec.deployment, spec.index)
        self._notes.forget(worker.pid)
        if worker.has_crashed:
            line = f"stage {spec.index} on node {self._credentials.node_id}: {error.message}"
            self._crashes[key] = (spec.epoch, line)
        failure = None if worker.was_killed else failure_of(error, worker.status)
        if failure is not None:
            # Also of a stage that is being stopped, perhaps because its edges have closed already.
            self._unit_failed(spec.unit_id, failure)
        running = self._stages.get(key)
        if running is None or running.worker is not worker:
            return  # it was stopped
        del self._stages[key]
        lost = StageLost(
            deployment=key[0],
            epoch=running.epoch,
            index=key[1],
            node_id=self._credentials.node_id,
            message=error.message,
            fault=error.fault if isinstance(error, UnitFaultError) else "",
            has_stalled=isinstance(error, StalledError),
        )
        task = asyncio.ensure_future(self._report_lost(lost))
        self._tasks.add(task)
        task.add_done_callback(self._reported)

    def _reported(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # The coordinator learns of it from its edges, or when a step takes too long.
            _log.error("the loss of a stage could not be reported", exc_info=error)


async def _stats(worker: WorkerProcess) -> Stats | None:
    with suppress(TimeoutError, PotluckError):
        async with asyncio.timeout(_STATS_SECONDS):
            return await worker.stats()
    return None
