"""The stages that this node computes or holds: their workers, for the coordinators that ask.

A worker outlives the epoch that it was started for. A coordinator that asks for a stage that a
worker holds gets that worker, whatever its index in the new plan. The highest epoch that has been
connected, or that a record has announced, is obeyed: lower ones are refused, and their edges are
closed. The weights stay loaded until a coordinator releases them or stops the deployment, or there
has been no coordinator for long.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

import msgspec

from potluck.catalog import check_manifest
from potluck.cluster.agent.config import AgentConfig
from potluck.cluster.agent.hosted_stage import (
    EpochsInForce,
    HostedStage,
    HostedStages,
    StageCrashes,
)
from potluck.cluster.agent.orphans import Orphans
from potluck.cluster.agent.unit_health import UnitFailure, failure_of
from potluck.cluster.agent.units import NodeUnits
from potluck.cluster.agent.worker_notes import WorkerNotes
from potluck.cluster.agent.worker_process import WorkerProcess
from potluck.cluster.background import Background
from potluck.cluster.network.edges.listener import EdgeEndpoint, RoutedConnections
from potluck.cluster.wire.calls import (
    ConnectStage,
    ReleaseStages,
    StageEnds,
    StageLost,
    StageScope,
)
from potluck.cluster.wire.worker_messages import (
    EdgeRoute,
    Load,
    Loaded,
    Progress,
    StageSpec,
    Stats,
)
from potluck.errors import EngineError, PotluckError, StalledError, UnitFaultError
from potluck.types.cluster import DeploymentId, Epoch, NodeId, UnitId
from potluck.types.node import CPU_UNIT
from potluck.types.unit import Role

_log = logging.getLogger(__name__)

_LAST_STATS_SECONDS = 0.2
"""The time for workers to report their measurements before they are stopped, which takes
milliseconds."""


class StageHost:
    """Runs workers on this node's ``units``; their stages are ``hosted``.

    ``report_lost`` tells the coordinator of a worker that exited unexpectedly; before that,
    ``unit_failed`` is called with what its exit says about its unit. ``measured`` gets all totals
    that workers report. ``worker_socket`` returns the socket through which a worker reads a model
    whose files are known by their content; without it such a model is refused.
    """

    def __init__(
        self,
        config: AgentConfig,
        endpoint: EdgeEndpoint,
        notes: WorkerNotes,
        units: NodeUnits,
        *,
        num_threads: int,
        unit_failed: Callable[[UnitId, UnitFailure], None],
        report_lost: Callable[[StageLost], Coroutine[Any, Any, None]],
        measured: Callable[[HostedStage, Stats], None] | None = None,
        worker_socket: Callable[[], socket.socket] | None = None,
    ) -> None:
        self._worker_socket = worker_socket
        self._config = config
        self._endpoint = endpoint
        self._node_id = endpoint.credentials.node_id
        self._notes = notes
        self._units = units
        self._num_threads = num_threads
        self._unit_failed = unit_failed
        self._report_lost = report_lost
        self.hosted = HostedStages(measured)
        self._epochs = EpochsInForce()
        self._orphans = Orphans(config.orphan_seconds, is_used=self._is_used, end=self._end_orphans)
        self._crashes = StageCrashes()
        # The coordinator detects a loss by its edges, too, or when a step takes too long.
        self._background = Background("could not report the loss of a stage")

    async def start(self, spec: StageSpec) -> AsyncGenerator[Progress | Loaded, None]:
        """Have a worker load a stage and listen for its edge; the last answer is ``Loaded``.

        A worker that already holds the stage is kept. The current epoch continues until a stage of
        the new one is connected. Raises ``EngineError`` for an epoch that is over, for a unit that
        is out or unknown, and for the worker's own errors. If the caller disconnects before the
        stage is loaded, its worker is stopped.
        """
        self._check_in_force(spec)
        self._orphans.note_request(spec.deployment, spec.epoch.coordinator)
        alike = [
            each
            for each in self.hosted.of(spec.deployment)
            if each.requested.epoch < spec.epoch and each.requested.is_same_holding(spec)
        ]
        await self._stop(each for each in alike if each.loaded is None)
        for each in alike:
            if each.is_usable and (kept := await self._keep(each, spec)) is not None:
                yield kept
                return
        self._check_in_force(spec)  # much may have changed in the meantime
        try:
            open_route = self._endpoint.open_route
            route = None if open_route is None else open_route()
        except OSError as error:
            raise EngineError(f"cannot listen for the edge: {error.strerror or error}") from error
        try:
            load = self._load(spec, route)
            worker = await WorkerProcess.start(
                self._ended,
                self._disconnected,
                transfer=self._transfer_for(spec),
                route=route,
            )
        except BaseException:
            if route is not None:
                route.close()
            raise
        try:
            self._check_in_force(spec)
        except EngineError:
            worker.kill()
            raise
        hosted = HostedStage(worker=worker, requested=spec)
        self.hosted.by_worker[worker] = hosted
        try:
            self._notes.remember(worker.pid)
            loading = worker.load(load, stall_seconds=self._config.stall_seconds)
            async with aclosing(loading) as events:
                async for event in events:
                    if isinstance(event, Loaded):
                        hosted.loaded = event
                    yield event
        finally:
            if hosted.loaded is None:
                await self._stop([hosted])

    async def connect(self, request: ConnectStage) -> None:
        """Have a loaded stage open its edges; lower epochs of its deployment are then over.

        Raises ``EngineError`` if its epoch is over, it is not loaded, or the edges cannot be
        opened.
        """
        deployment, epoch, index = request.deployment, request.connect.epoch, request.connect.index
        self._epochs.check(deployment, epoch)
        self._orphans.note_request(deployment, epoch.coordinator)
        hosted = self.hosted.find(deployment, epoch, index)
        if hosted is None or hosted.loaded is None:
            raise EngineError(f"stage {index} of {deployment} is not loaded here")
        hosted.serving = hosted.requested
        connecting = asyncio.ensure_future(hosted.worker.connect(request.connect))
        try:
            await self._fence(deployment, epoch)
            await asyncio.shield(connecting)
        finally:
            connecting.cancel()

    async def stop(self, scope: StageScope) -> StageEnds:
        """Stop this node's stages of a deployment, up to an epoch, and start none of them later.

        Returns how stages have exited unexpectedly, including earlier exits.
        """
        self._epochs.end(scope.deployment, scope.epoch)
        stopping = [
            each for each in self.hosted.of(scope.deployment) if each.requested.epoch <= scope.epoch
        ]
        await self.hosted.stats_of(stopping, _LAST_STATS_SECONDS)
        await self._stop(stopping)
        await self._cut(scope)
        return self._crashes.take(scope)

    async def end(self, scope: StageScope) -> StageEnds:
        """Close the edges of a deployment's stages, up to an epoch, and open none of them later.

        Loaded stages stay; those that are loading for these epochs are stopped. Returns as
        ``stop``.
        """
        self._epochs.end(scope.deployment, scope.epoch)
        self._orphans.note_request(scope.deployment, scope.epoch.coordinator)
        await self._stop(
            each
            for each in self.hosted.of(scope.deployment)
            if each.loaded is None and each.requested.epoch <= scope.epoch
        )
        await self._cut(scope)
        units = (each.chosen for each in self._units.all())
        out = {each.unit_id: each.reason for each in units if each.role is Role.OUT}
        return msgspec.structs.replace(self._crashes.take(scope), out=out)

    async def release(self, request: ReleaseStages) -> None:
        """Stop the workers of a deployment that hold none of the stages to be kept.

        Those that a higher epoch has asked for stay. Does nothing if a higher epoch is in force.
        """
        if self._epochs.has_higher(request.deployment, request.epoch):
            return
        self._orphans.note_request(request.deployment, request.epoch.coordinator)
        keep = list(request.keep)
        released = []
        for each in sorted(
            self.hosted.of(request.deployment), key=lambda each: each.serving is None
        ):
            if request.epoch < each.requested.epoch:
                continue
            held = each.held
            kept = next((other for other in keep if other.is_same_holding(held)), None)
            if kept is None:
                released.append(each)
            else:
                keep.remove(kept)  # one worker per stage is enough
        await self.hosted.stats_of(released, _LAST_STATS_SECONDS)
        await self._stop(released)

    async def supersede(self, deployment: DeploymentId, epoch: Epoch) -> None:
        """Put ``epoch`` in force: refuse lower ones, and close their edges.

        Loaded stages stay; those that are loading for a lower epoch are stopped.
        """
        self._orphans.announced(deployment, epoch.coordinator)
        await self._fence(deployment, epoch)

    async def coordinator_left(self, node_id: NodeId) -> None:
        """Hold the stages of a coordinator that left for a while, since its successor may want
        them.

        Stages that are loading are stopped, since nobody follows their progress.
        """
        self._orphans.left(node_id)
        await self._stop(
            each
            for each in self.hosted.here()
            if each.loaded is None and each.requested.epoch.coordinator == node_id
        )

    async def stop_all(self) -> None:
        """Stop everything, as the agent is stopping."""
        self._orphans.close()
        await self.hosted.stats_of(self.hosted.here(), _LAST_STATS_SECONDS)
        await self._stop(self.hosted.here())
        self._background.cancel()

    def _check_in_force(self, spec: StageSpec) -> None:
        self._epochs.check(spec.deployment, spec.epoch)
        if self.hosted.find(spec.deployment, spec.epoch, spec.index) is not None:
            raise EngineError(f"stage {spec.index} of {spec.deployment} is already here")
        for each in self.hosted.of(spec.deployment):
            if spec.epoch < each.requested.epoch and each.requested.is_same_holding(spec):
                raise EngineError(
                    f"epoch {spec.epoch.number} of {spec.deployment} is over: epoch"
                    f" {each.requested.epoch.number} has asked for the same stage"
                )

    async def _keep(self, hosted: HostedStage, spec: StageSpec) -> Loaded | None:
        """Reassign the stage that a worker holds to a higher epoch; None if the worker exits."""
        hosted.requested = msgspec.structs.replace(
            spec, num_bytes=hosted.requested.num_bytes, device_bytes=hosted.requested.device_bytes
        )
        try:
            address = await hosted.worker.listen(spec.epoch)
        except StalledError:
            raise
        except PotluckError:
            return None
        self._epochs.check(spec.deployment, spec.epoch)
        if hosted.loaded is None or not hosted.is_usable:
            return None
        return msgspec.structs.replace(
            hosted.loaded,
            **asdict(address),
            read_bytes=0,
            seconds=0.0,
            is_kept=True,
        )

    def _transfer_for(self, spec: StageSpec) -> socket.socket | None:
        if spec.files is None:
            return None
        if self._worker_socket is None:
            raise EngineError(
                f"node {self._node_id} cannot fetch files of {spec.model}",
                hint="its agent runs without a transfer process; see its log",
            )
        check_manifest(spec.files.manifest, spec.model)
        return self._worker_socket()

    def _load(self, spec: StageSpec, route: RoutedConnections | None = None) -> Load:
        unit = self._units.require(spec.unit_id)
        own_bytes = unit.device.own_free_bytes
        taken_bytes = self.hosted.memory.device_bytes.get(spec.unit_id, 0)
        return Load(
            spec=spec,
            unit=self._units.address(unit, spec.arithmetic),
            device_free_bytes=None if own_bytes is None else own_bytes - taken_bytes,
            identity=self._endpoint.credentials,
            listen_host=self._endpoint.listen_host,
            route=None if route is None else EdgeRoute.of(route),
            num_threads=self._num_threads,
            packed_cache_bytes=self._config.packed_cache_bytes,
            step_seconds=None if spec.unit_id == CPU_UNIT else self._config.stage_step_seconds,
        )

    async def _fence(self, deployment: DeploymentId, epoch: Epoch) -> None:
        """End lower epochs: close their edges, and stop what is loading for them."""
        self._epochs.observe(deployment, epoch)
        loading = []
        for each in self.hosted.of(deployment):
            if each.serving is not None and each.serving.epoch < epoch:
                each.worker.disconnect(each.serving.epoch)
            if each.loaded is None and each.requested.epoch < epoch:
                loading.append(each)
        await self._stop(loading)

    async def _cut(self, scope: StageScope) -> None:
        """Close the edges of an epoch and of lower ones, and wait for the outcome."""
        concerned = [
            each
            for each in self.hosted.of(scope.deployment)
            if each.serving is not None and each.serving.epoch <= scope.epoch
        ]
        for each in concerned:
            each.worker.disconnect(scope.epoch)
        if concerned:
            await asyncio.gather(*(each.worker.wait_disconnected() for each in concerned))

    async def _stop(self, stopping: Iterable[HostedStage]) -> None:
        """Kill all, then wait, so that cancellation leaves nothing behind."""
        killed = [each for each in stopping if not each.is_stopped]
        for each in killed:
            each.is_stopped = True
            each.worker.kill()
        for each in killed:
            await each.worker.wait()

    # Stages whose coordinator is lost.

    def _is_used(self, deployment: DeploymentId) -> bool:
        """Return whether stages are used by a coordinator that this node does not see."""
        return any(each.serving is not None for each in self.hosted.of(deployment))

    def _end_orphans(self, deployment: DeploymentId) -> None:
        if orphans := self.hosted.of(deployment):
            _log.warning("no coordinator has asked for the stages of %s; stopping them", deployment)
            self._background.spawn(self._stop(orphans))

    # Events of workers.

    def _disconnected(self, worker: WorkerProcess, epoch: Epoch, message: str) -> None:
        """Handle that a worker's edges have closed; it keeps its weights."""
        hosted = self.hosted.by_worker.get(worker)
        if hosted is None or hosted.serving is None or hosted.serving.epoch != epoch:
            return
        lost, hosted.serving = hosted.serving, None
        is_ours = self._epochs.is_over(lost.deployment, epoch)  # closed by this node
        if not (is_ours or hosted.is_stopped):
            self._report(lost, EngineError(message), is_held=True)

    def _ended(self, worker: WorkerProcess, error: PotluckError) -> None:
        self._notes.forget(worker.pid)
        hosted = self.hosted.by_worker.pop(worker, None)
        if hosted is None:
            return
        spec = hosted.serving or hosted.requested
        if worker.has_crashed:
            line = f"stage {spec.index} on node {self._node_id}: {error.message}"
            self._crashes.note(spec, line)
        failure = None if worker.was_killed else failure_of(error, worker.status)
        if failure is not None:
            # Also for a stage that is being stopped, perhaps because its edges have already closed.
            self._unit_failed(spec.unit_id, failure)
        if hosted.is_stopped:
            return
        self._report(spec, error)
        if hosted.requested.epoch != spec.epoch:
            self._report(hosted.requested, error)  # it would have been connected there next

    def _report(self, spec: StageSpec, error: PotluckError, *, is_held: bool = False) -> None:
        lost = StageLost(
            deployment=spec.deployment,
            epoch=spec.epoch,
            index=spec.index,
            node_id=self._node_id,
            message=error.message,
            fault=error.fault if isinstance(error, UnitFaultError) else "",
            has_stalled=isinstance(error, StalledError),
            is_held=is_held,
        )
        self._background.spawn(self._report_lost(lost))
