"""The stages that this node computes or holds: their workers, for the coordinators that ask.

A worker outlives the epoch that it was started for. A coordinator that asks for a stage which a
worker holds gets that worker, whatever its index in the new plan. The highest epoch that has been
connected, or that a record has announced, is obeyed: lower ones are refused, and their edges are
closed. The weights stay until a coordinator releases them or stops the deployment, or no
coordinator is left for long.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass

import msgspec
import psutil

from potluck.cluster.agent.node import StageMemory
from potluck.cluster.agent.unit_health import UnitFailure, failure_of
from potluck.cluster.agent.units import NodeUnits
from potluck.cluster.agent.worker_notes import WorkerNotes
from potluck.cluster.agent.worker_process import WorkerProcess
from potluck.cluster.calls import (
    CPU_UNIT,
    ConnectStage,
    HeldStage,
    ReleaseStages,
    StageEnds,
    StageLost,
    StageScope,
    StageStats,
)
from potluck.cluster.trust.credentials import Credentials
from potluck.cluster.worker.messages import Identity, Load, Loaded, Progress, StageSpec, Stats
from potluck.errors import EngineError, PotluckError, StalledError, UnitFaultError
from potluck.quantities import format_seconds
from potluck.types.cluster import DeploymentId, Epoch, NodeId, UnitId

_log = logging.getLogger(__name__)

_STATS_SECONDS = 1.0
"""What a worker may take to say what it did; it need not stop computing for it."""

ORPHAN_SECONDS = 600.0
"""Ten minutes: longer than a coordinator's machine takes to restart, or another node to take over,
and short enough that a node which nobody will ask again has its memory back soon."""

_Key = tuple[DeploymentId, int]


@dataclass(slots=True, kw_only=True, eq=False)
class _Hosted:
    """A worker and its stage.

    ``asked`` is the stage as it was asked for last, ``serving`` the one whose edges stand or are
    being opened. Both are the same holding; they differ in the epoch and the place in the plan.
    ``loaded`` is None while the worker loads. One that ``is_stopped`` was killed and has not ended
    yet.
    """

    worker: WorkerProcess
    asked: StageSpec
    serving: StageSpec | None = None
    loaded: Loaded | None = None
    is_stopped: bool = False

    @property
    def deployment(self) -> DeploymentId:
        return self.asked.deployment

    @property
    def held(self) -> HeldStage:
        """As a node reports it."""
        epoch = (self.serving or self.asked).epoch
        return HeldStage.of(msgspec.structs.replace(self.asked, epoch=epoch))


class StageHost:
    """Runs workers on this node's ``units``.

    ``report_lost`` tells the coordinator of a worker that ended by itself, ``unit_failed`` is told
    before that what it says of its unit. ``unit_step_seconds``, ``stall_seconds`` and
    ``orphan_seconds``: see ``AgentConfig``.
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
        orphan_seconds: float = ORPHAN_SECONDS,
    ) -> None:
        self._credentials = credentials
        self._notes = notes
        self._units = units
        self._listen_host = listen_host
        self._num_threads = num_threads
        self._packed_cache_bytes = packed_cache_bytes
        self._unit_step_seconds = unit_step_seconds
        self._stall_seconds = stall_seconds
        self._orphan_seconds = orphan_seconds
        self._unit_failed = unit_failed
        self._report_lost = report_lost
        self._hosted: dict[WorkerProcess, _Hosted] = {}
        self._highest: dict[DeploymentId, Epoch] = {}
        self._over: dict[DeploymentId, Epoch] = {}  # nothing of these and lower ones is started
        self._coordinators: dict[DeploymentId, NodeId] = {}  # who asked last
        self._orphans: dict[DeploymentId, asyncio.TimerHandle] = {}
        self._crashes: dict[_Key, tuple[Epoch, str]] = {}  # until the coordinator has asked
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def memory(self) -> StageMemory:
        """What the plans have counted for the stages that are here, and the workers have taken."""
        untaken_bytes = 0
        device_bytes: Counter[UnitId] = Counter()
        for each in self._here():
            device_bytes[each.asked.unit_id] += each.asked.device_bytes
            with suppress(psutil.Error):
                memory = psutil.Process(each.worker.pid).memory_info()
                # Pages of a mapped file are resident, and in no plan.
                taken_bytes = memory.rss - memory.shared if each.asked.is_mapped else memory.rss
                # Caches fill up as they are used.
                untaken_bytes += max(0, each.asked.num_bytes - taken_bytes)
        return StageMemory(
            planned_bytes=sum(each.asked.num_bytes for each in self._here()),
            untaken_bytes=untaken_bytes,
            device_bytes=device_bytes,
            held=tuple(each.held for each in self._here() if each.loaded is not None),
        )

    def workers_on(self, unit_id: UnitId) -> list[WorkerProcess]:
        """The workers of the stages that are on a unit."""
        return [each.worker for each in self._here() if each.asked.unit_id == unit_id]

    async def start(self, spec: StageSpec) -> AsyncGenerator[Progress | Loaded, None]:
        """Have a worker hold a stage and listen for its edge; the last answer is ``Loaded``.

        A worker that holds the stage already is kept. The epoch that is in force goes on until a
        stage of the new one is connected. Raises ``EngineError`` for an epoch that is over and for
        a unit that is out or is none of this node's, and what the worker met. If the caller goes
        away before the stage is loaded, its worker is stopped.
        """
        self._check_in_force(spec)
        self._asked_by(spec.deployment, spec.epoch)
        alike = [
            each
            for each in self._of(spec.deployment)
            if each.asked.epoch < spec.epoch and each.asked.is_same_holding(spec)
        ]
        await self._stop(each for each in alike if each.loaded is None)
        for each in alike:
            if each.loaded is not None and not each.is_stopped:
                yield await self._keep(each, each.loaded, spec)
                return
        self._check_in_force(spec)  # much may have been said meanwhile
        load = self._load(spec)
        worker = await WorkerProcess.start(self._ended, self._disconnected)
        try:
            self._check_in_force(spec)
        except EngineError:
            worker.kill()
            raise
        hosted = _Hosted(worker=worker, asked=spec)
        self._hosted[worker] = hosted
        try:
            self._notes.remember(worker.pid)
            async with aclosing(worker.load(load, stall_seconds=self._stall_seconds)) as events:
                async for event in events:
                    if isinstance(event, Loaded):
                        hosted.loaded = event
                    yield event
        finally:
            if hosted.loaded is None:
                await self._stop([hosted])

    async def connect(self, request: ConnectStage) -> None:
        """Have a loaded stage open its edges; lower epochs of its deployment are over from now on.

        Raises ``EngineError`` if its epoch is over, it is not loaded, or the edges are not opened.
        """
        deployment, epoch, index = request.deployment, request.connect.epoch, request.connect.index
        self._check_epoch(deployment, epoch)
        self._asked_by(deployment, epoch)
        hosted = self._find(deployment, epoch, index)
        if hosted is None or hosted.loaded is None:
            raise EngineError(f"stage {index} of {deployment} is not loaded here")
        hosted.serving = hosted.asked
        connecting = asyncio.ensure_future(hosted.worker.connect(request.connect))
        try:
            await self._fence(deployment, epoch)
            await asyncio.shield(connecting)
        finally:
            connecting.cancel()

    async def stop(self, scope: StageScope) -> StageEnds:
        """Stop this node's stages of a deployment, up to an epoch, and start none of them later.

        Returns how they have ended by themselves, those that had already ended included.
        """
        self._close_epoch(scope)
        stopping = [each for each in self._of(scope.deployment) if each.asked.epoch <= scope.epoch]
        await self._stop(stopping)
        await self._cut(scope)
        return self._ends(scope)

    async def end(self, scope: StageScope) -> StageEnds:
        """Close the edges of a deployment's stages, up to an epoch, and open none of them later.

        What is loaded stays, what still loads for these epochs is stopped. Returns as ``stop``.
        """
        self._close_epoch(scope)
        self._asked_by(scope.deployment, scope.epoch)
        await self._stop(
            each
            for each in self._of(scope.deployment)
            if each.loaded is None and each.asked.epoch <= scope.epoch
        )
        await self._cut(scope)
        return self._ends(scope)

    async def release(self, request: ReleaseStages) -> None:
        """End the workers of a deployment that hold none of the stages to be kept.

        Those that a higher epoch has asked for stay. Nothing is done if one is in force.
        """
        highest = self._highest.get(request.deployment)
        if highest is not None and request.epoch < highest:
            return
        self._asked_by(request.deployment, request.epoch)
        keep = list(request.keep)
        released = []
        for each in sorted(self._of(request.deployment), key=lambda each: each.serving is None):
            if request.epoch < each.asked.epoch:
                continue
            held = each.held
            kept = next((other for other in keep if other.is_same_holding(held)), None)
            if kept is None:
                released.append(each)
            else:
                keep.remove(kept)  # one worker is enough for it
        await self._stop(released)

    async def supersede(self, deployment: DeploymentId, epoch: Epoch) -> None:
        """``epoch`` is in force: lower ones are refused, and their edges are closed.

        What is loaded stays, what still loads for a lower epoch is stopped.
        """
        self._coordinators[deployment] = epoch.coordinator
        if deployment in self._orphans:
            self._await_coordinator(deployment)  # the one of this epoch may be lost as well
        await self._fence(deployment, epoch)

    async def coordinator_left(self, node_id: NodeId) -> None:
        """Hold the stages of a coordinator that is gone for a while: its successor may want them.

        What still loads is stopped: nobody listens to how far it is.
        """
        for deployment, coordinator in self._coordinators.items():
            if coordinator == node_id and self._of(deployment):
                self._await_coordinator(deployment)
        await self._stop(
            each
            for each in self._here()
            if each.loaded is None and each.asked.epoch.coordinator == node_id
        )

    async def stop_all(self) -> None:
        """Stop everything: the agent ends."""
        for timer in self._orphans.values():
            timer.cancel()
        self._orphans.clear()
        await self._stop(self._here())
        for task in self._tasks:
            task.cancel()

    async def stats(self, scope: StageScope) -> StageStats:
        """Totals of this node's stages of a deployment at one epoch."""
        concerned = {
            each.serving.index: each.worker
            for each in self._of(scope.deployment)
            if each.serving is not None and each.serving.epoch == scope.epoch
        }
        answers = await asyncio.gather(*(_stats(worker) for worker in concerned.values()))
        found = zip(concerned, answers, strict=True)
        return StageStats(stages={index: stats for index, stats in found if stats is not None})

    def _here(self) -> list[_Hosted]:
        return [each for each in self._hosted.values() if not each.is_stopped]

    def _of(self, deployment: DeploymentId) -> list[_Hosted]:
        return [each for each in self._here() if each.deployment == deployment]

    def _find(self, deployment: DeploymentId, epoch: Epoch, index: int) -> _Hosted | None:
        for each in self._of(deployment):
            if each.asked.epoch == epoch and each.asked.index == index:
                return each
        return None

    def _check_epoch(self, deployment: DeploymentId, epoch: Epoch) -> None:
        highest, over = self._highest.get(deployment), self._over.get(deployment)
        if (highest and epoch < highest) or (over and epoch <= over):
            raise EngineError(f"epoch {epoch.number} of {deployment} is over")

    def _check_in_force(self, spec: StageSpec) -> None:
        self._check_epoch(spec.deployment, spec.epoch)
        if self._find(spec.deployment, spec.epoch, spec.index) is not None:
            raise EngineError(f"stage {spec.index} of {spec.deployment} is here already")
        for each in self._of(spec.deployment):
            if spec.epoch < each.asked.epoch and each.asked.is_same_holding(spec):
                raise EngineError(
                    f"epoch {spec.epoch.number} of {spec.deployment} is over: epoch"
                    f" {each.asked.epoch.number} has asked for the same stage"
                )

    async def _keep(self, hosted: _Hosted, loaded: Loaded, spec: StageSpec) -> Loaded:
        """Give the stage that a worker holds to a higher epoch."""
        hosted.asked = msgspec.structs.replace(
            spec, num_bytes=hosted.asked.num_bytes, device_bytes=hosted.asked.device_bytes
        )
        host, port = await hosted.worker.listen(spec.epoch)
        self._check_epoch(spec.deployment, spec.epoch)
        return msgspec.structs.replace(
            loaded, host=host, port=port, read_bytes=0, seconds=0.0, is_kept=True
        )

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

    async def _fence(self, deployment: DeploymentId, epoch: Epoch) -> None:
        """Lower epochs are over: close their edges, and stop what loads for them."""
        highest = self._highest.get(deployment)
        if highest is None or highest < epoch:
            self._highest[deployment] = epoch
        loading = []
        for each in self._of(deployment):
            if each.serving is not None and each.serving.epoch < epoch:
                each.worker.disconnect(each.serving.epoch)
            if each.loaded is None and each.asked.epoch < epoch:
                loading.append(each)
        await self._stop(loading)

    def _close_epoch(self, scope: StageScope) -> None:
        over = self._over.get(scope.deployment)
        if over is None or over < scope.epoch:
            self._over[scope.deployment] = scope.epoch

    async def _cut(self, scope: StageScope) -> None:
        """Close the edges of an epoch and of lower ones, and see how that ends."""
        concerned = [
            each
            for each in self._of(scope.deployment)
            if each.serving is not None and each.serving.epoch <= scope.epoch
        ]
        for each in concerned:
            each.worker.disconnect(scope.epoch)
        if concerned:
            await asyncio.gather(*(each.worker.wait_disconnected() for each in concerned))

    def _ends(self, scope: StageScope) -> StageEnds:
        known = [key for key in self._crashes if key[0] == scope.deployment]
        crashes = [self._crashes.pop(key) for key in known if self._crashes[key][0] <= scope.epoch]
        return StageEnds(crashes=tuple(line for epoch, line in crashes if epoch == scope.epoch))

    async def _stop(self, stopping: Iterable[_Hosted]) -> None:
        """Kill, then wait for the ends: whoever is cancelled meanwhile leaves nothing behind."""
        killed = [each for each in stopping if not each.is_stopped]
        for each in killed:
            each.is_stopped = True
            each.worker.kill()
        for each in killed:
            await each.worker.wait()

    # Stages whose coordinator is lost.

    def _asked_by(self, deployment: DeploymentId, epoch: Epoch) -> None:
        """A coordinator is there."""
        self._coordinators[deployment] = epoch.coordinator
        timer = self._orphans.pop(deployment, None)
        if timer is not None:
            timer.cancel()

    def _await_coordinator(self, deployment: DeploymentId) -> None:
        timer = self._orphans.get(deployment)
        if timer is not None:
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._orphans[deployment] = loop.call_later(
            self._orphan_seconds, self._end_orphans, deployment
        )

    def _end_orphans(self, deployment: DeploymentId) -> None:
        orphans = self._of(deployment)
        if any(each.serving is not None for each in orphans):
            self._await_coordinator(deployment)  # somebody uses them, whom this node does not see
            return
        del self._orphans[deployment]
        if orphans:
            _log.warning(
                "stages of %s are ended: no coordinator has asked for them for %s",
                deployment,
                format_seconds(self._orphan_seconds),
            )
            self._spawn(self._stop(orphans))

    # What workers say.

    def _disconnected(self, worker: WorkerProcess, epoch: Epoch, message: str) -> None:
        """The edges of a worker have closed, and it keeps its weights."""
        hosted = self._hosted.get(worker)
        if hosted is None or hosted.serving is None or hosted.serving.epoch != epoch:
            return
        lost, hosted.serving = hosted.serving, None
        try:
            self._check_epoch(lost.deployment, epoch)
        except EngineError:
            return  # it was this node that closed them
        if not hosted.is_stopped:
            self._report(lost, EngineError(message), is_held=True)

    def _ended(self, worker: WorkerProcess, error: PotluckError) -> None:
        self._notes.forget(worker.pid)
        hosted = self._hosted.pop(worker, None)
        if hosted is None:
            return
        spec = hosted.serving or hosted.asked
        if worker.has_crashed:
            line = f"stage {spec.index} on node {self._credentials.node_id}: {error.message}"
            self._crashes[(spec.deployment, spec.index)] = (spec.epoch, line)
        failure = None if worker.was_killed else failure_of(error, worker.status)
        if failure is not None:
            # Also of a stage that is being stopped, perhaps because its edges have closed already.
            self._unit_failed(spec.unit_id, failure)
        if hosted.is_stopped:
            return
        self._report(spec, error)
        if hosted.asked.epoch != spec.epoch:
            self._report(hosted.asked, error)  # it was to be connected there next

    def _report(self, spec: StageSpec, error: PotluckError, *, is_held: bool = False) -> None:
        lost = StageLost(
            deployment=spec.deployment,
            epoch=spec.epoch,
            index=spec.index,
            node_id=self._credentials.node_id,
            message=error.message,
            fault=error.fault if isinstance(error, UnitFaultError) else "",
            has_stalled=isinstance(error, StalledError),
            is_held=is_held,
        )
        self._spawn(self._report_lost(lost))

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # The coordinator learns of a loss from its edges, or when a step takes too long.
            _log.error("the loss of a stage could not be reported", exc_info=error)


async def _stats(worker: WorkerProcess) -> Stats | None:
    with suppress(TimeoutError, PotluckError):
        async with asyncio.timeout(_STATS_SECONDS):
            return await worker.stats()
    return None
