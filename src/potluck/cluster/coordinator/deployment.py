"""One deployment as its coordinator runs it: placed, loaded, served, and placed anew when lost.

A deployment goes through epochs. Each has a plan, workers that hold its stages, edges between them
and a dispatcher on top. When a worker, an edge or a node is lost the epoch is over: requests in
flight fail, what is left of the workers is stopped, and the next epoch is planned on the nodes
that are there. Everything here runs in the agent's event loop, except steps and results.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from potluck.catalog import ModelDescription
from potluck.cluster.calls import (
    CPU_UNIT,
    CheckModel,
    ConnectStage,
    DeploymentRecord,
    DeploymentState,
    ModelFingerprint,
    NodeReport,
    RejectionRecord,
    StageLost,
    StageRecord,
    StageScope,
    StageStats,
    decode,
    encode,
)
from potluck.cluster.coordinator.edges import StageAddress, open_edges
from potluck.cluster.coordinator.pipeline import RemotePipeline
from potluck.cluster.coordinator.planning import DeploymentSize, model_cost, offers, size_of
from potluck.cluster.membership import Membership
from potluck.cluster.trust.credentials import Credentials
from potluck.cluster.worker.messages import Connect, Loaded, Peer, Progress, StageSpec, Stats
from potluck.errors import CallError, EngineError, OverloadedError, PotluckError
from potluck.placement import place
from potluck.scheduling import SchedulerLimits
from potluck.serving.dispatcher import Dispatcher, Load, Update
from potluck.types.cluster import Epoch, NodeId, Plan, Rejection
from potluck.types.sequence import CommittedToken, SequenceRequest

_log = logging.getLogger(__name__)

MAX_WAITING_SEQUENCES = 256
"""Beyond that a request is told to come again: it would wait for minutes."""

_RETRY_AFTER_SECONDS = 5
_REPORT_SECONDS = 5.0
_CHECK_SECONDS = 900.0
"""A model from the hub may have to be downloaded for it."""
_CONNECT_SECONDS = 40.0
_STOP_SECONDS = 10.0
_DRAIN_SECONDS = 30.0
_RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0, 15.0, 60.0)
_PUBLISH_SECONDS = 0.3
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTotals:
    """What is known of a stage's work; None until its worker reported."""

    node_id: NodeId
    stats: Stats | None


class Deployment:
    """Made by the coordinator's agent; ``publish`` tells every agent of its record.

    ``before_next_epoch`` is awaited when an epoch is over: the agent may want to look around.
    """

    def __init__(
        self,
        record: DeploymentRecord,
        description: ModelDescription,
        fingerprint: ModelFingerprint,
        *,
        membership: Membership,
        credentials: Credentials,
        listen_host: str,
        publish: Callable[[DeploymentRecord], None],
        before_next_epoch: Callable[[], Awaitable[None]],
    ) -> None:
        self.record = record
        self._description = description
        self._fingerprint = fingerprint
        self._membership = membership
        self._credentials = credentials
        self._listen_host = listen_host
        self._publish = publish
        self._before_next_epoch = before_next_epoch
        self._size: DeploymentSize = size_of(description, record)
        self._dispatcher: Dispatcher | None = None
        self._stats: dict[int, Stats] = {}
        self._leaving: set[NodeId] = set()
        self._over: asyncio.Future[str] | None = None
        self._changed = asyncio.Event()
        self._last_published = 0.0
        self._task: asyncio.Task[None] | None = None

    @property
    def load(self) -> Load | None:
        """How busy it is; None while it does not serve."""
        return None if self._dispatcher is None else self._dispatcher.load

    @property
    def num_blocks(self) -> int:
        """Cache blocks of every stage."""
        return self._size.num_blocks

    def stage_totals(self) -> tuple[StageTotals, ...]:
        """One per stage of the plan in force."""
        return tuple(
            StageTotals(node_id=stage.node_id, stats=self._stats.get(index))
            for index, stage in enumerate(self.record.stages)
        )

    async def start(self) -> None:
        """Deploy for the first time, then go on by itself. What prevents it is raised."""
        try:
            await self._deploy()
        except BaseException:
            await self._tear_down()
            raise
        self._task = asyncio.create_task(self._keep_up(is_deployed=True))

    def resume(self) -> None:
        """Take over from a coordinator that is lost: deploy at the next epoch, until it works."""
        self._task = asyncio.create_task(self._keep_up(is_deployed=False))

    async def remove(self) -> None:
        """End it: requests in flight fail, the stages are stopped."""
        await self._end_task()
        await self._tear_down(EngineError("the model was undeployed"))
        self._say(state=DeploymentState.REMOVED, reason="undeployed", stages=())

    async def close(self) -> None:
        """The agent ends: stop the stages, leave the record to a successor."""
        await self._end_task()
        await self._tear_down(
            EngineError(
                "the node that schedules the model left the cluster",
                hint="send the request again: another node takes over",
            )
        )

    async def vacate(self, node_id: NodeId) -> None:
        """Go on without a node that is about to leave, once the sequences in flight are done."""
        if all(stage.node_id != node_id for stage in self.record.stages):
            return
        self._leaving.add(node_id)
        await self.finish()
        self._end_epoch(f"node {node_id} leaves")
        deadline = time.monotonic() + _DRAIN_SECONDS
        while any(stage.node_id == node_id for stage in self.record.stages):
            if time.monotonic() > deadline:
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def finish(self) -> None:
        """Wait for the sequences in flight, half a minute at most."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        while time.monotonic() < deadline:
            load = self.load
            if load is None or load.num_running + load.num_waiting == 0:
                return
            await asyncio.sleep(_POLL_SECONDS)

    def stage_lost(self, lost: StageLost) -> None:
        """A worker ended by itself."""
        if lost.epoch == self.record.epoch:
            self._end_epoch(f"stage {lost.index} on node {lost.node_id}: {lost.message}")

    def node_left(self, node_id: NodeId) -> None:
        """A node is no longer there."""
        self._leaving.discard(node_id)
        self._changed.set()
        if any(stage.node_id == node_id for stage in self.record.stages):
            self._end_epoch(f"node {node_id} was lost")

    def node_joined(self) -> None:
        """There may be room now for what did not fit."""
        self._changed.set()

    async def generate(self, request: SequenceRequest) -> AsyncGenerator[CommittedToken, None]:
        """Compute a sequence; closing the generator cancels it and frees its cache."""
        dispatcher = self._dispatcher
        if dispatcher is None:
            reason = self.record.reason or self.record.state.value
            raise EngineError(
                f"the model {self.record.model_id} cannot answer now: {reason}",
                hint="try again in a moment; potluck ps shows its state",
            )
        if dispatcher.load.num_waiting >= MAX_WAITING_SEQUENCES:
            raise OverloadedError(
                f"{MAX_WAITING_SEQUENCES} sequences already wait for {self.record.model_id}",
                retry_after_seconds=_RETRY_AFTER_SECONDS,
            )
        updates: asyncio.Queue[Update] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def deliver(update: Update) -> None:
            loop.call_soon_threadsafe(updates.put_nowait, update)

        sequence_id = dispatcher.add(request, deliver)
        try:
            while True:
                update = await updates.get()
                if isinstance(update, PotluckError):
                    raise update
                yield update.token
                if update.token.finish_reason is not None:
                    return
        finally:
            dispatcher.cancel(sequence_id)

    async def refresh_stats(self) -> None:
        """Ask the stages' nodes for their totals."""
        if self._dispatcher is None:
            return
        scope = encode(StageScope(deployment=self.record.deployment, epoch=self.record.epoch))
        nodes = {stage.node_id for stage in self.record.stages}
        answers = await asyncio.gather(
            *(self._membership.call(node, "stage.stats", scope) for node in nodes),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, bytes):
                self._stats.update(decode(answer, StageStats).stages)

    async def _end_task(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep_up(self, *, is_deployed: bool) -> None:
        """Deploy at one epoch after the other, as the nodes come and go."""
        num_failures = 0
        while True:
            if is_deployed and self._over is not None:
                reason = await self._over
                self._say(state=DeploymentState.DEGRADED, reason=reason)
                await self._tear_down(
                    EngineError(
                        f"the model was interrupted: {reason}",
                        hint="send the request again: the model is being deployed anew",
                    )
                )
            await self._before_next_epoch()
            self._next_epoch()
            self._changed.clear()
            try:
                await self._deploy()
                is_deployed, num_failures = True, 0
            except PotluckError as error:
                is_deployed = False
                await self._tear_down()
                self._say(state=DeploymentState.DEGRADED, reason=error.message, stages=())
                pause = _RETRY_SECONDS[min(num_failures, len(_RETRY_SECONDS) - 1)]
                num_failures += 1
                try:
                    await asyncio.wait_for(self._changed.wait(), pause)
                except TimeoutError:
                    continue

    def _next_epoch(self) -> None:
        epoch = Epoch(number=self.record.epoch.number + 1, coordinator=self._membership.node_id)
        self.record = msgspec.structs.replace(self.record, epoch=epoch, revision=0)

    def _end_epoch(self, reason: str) -> None:
        if self._over is not None and not self._over.done():
            _log.warning("%s: %s", self.record.model_id, reason)
            self._over.set_result(reason)

    async def _tear_down(self, reason: PotluckError | None = None) -> None:
        """Fail what is in flight with ``reason`` and stop every stage that can be reached."""
        dispatcher, self._dispatcher = self._dispatcher, None
        if dispatcher is not None:
            await asyncio.to_thread(dispatcher.close, reason)
        scope = encode(StageScope(deployment=self.record.deployment, epoch=self.record.epoch))
        nodes = {stage.node_id for stage in self.record.stages} & (
            self._membership.nodes() | {self._membership.node_id}
        )
        await asyncio.gather(
            *(
                self._membership.call(node, "stage.stop", scope, timeout_seconds=_STOP_SECONDS)
                for node in nodes
            ),
            return_exceptions=True,
        )

    async def _deploy(self) -> None:
        """Plan, load, connect and serve the present epoch."""
        self._over = asyncio.get_running_loop().create_future()
        self._stats.clear()
        self._say(state=DeploymentState.LOADING, reason="being placed", stages=(), done_bytes=0)
        plan = await self._plan()
        self._say(
            reason="loading",
            stages=tuple(
                StageRecord(
                    node_id=stage.node_id,
                    unit_id=stage.unit_id,
                    start_layer=stage.shard.start_layer,
                    end_layer=stage.shard.end_layer,
                    num_bytes=stage.num_bytes,
                )
                for stage in plan.stages
            ),
            rejections=tuple(
                RejectionRecord(node_id=each.node_id, unit_id=each.unit_id, reason=each.reason)
                for each in plan.rejections
            ),
        )
        addresses = await self._load(plan)
        await self._connect(addresses)
        if self._over.done():
            raise EngineError(self._over.result())
        self._say(state=DeploymentState.READY, reason="")

    async def _plan(self) -> Plan:
        nodes = sorted(self._membership.nodes() | {self._membership.node_id})
        reports, silent = await gather_reports(self._membership, nodes)
        able, unable = await self._nodes_with_model(
            [report for report in reports if report.node_id not in self._leaving]
        )
        cost = await asyncio.to_thread(
            model_cost, self._description, self._size, num_threads=_most_threads(able)
        )
        plan = place(offers(able), cost)
        return Plan(stages=plan.stages, rejections=(*plan.rejections, *silent, *unable))

    async def _nodes_with_model(
        self, reports: Sequence[NodeReport]
    ) -> tuple[list[NodeReport], list[Rejection]]:
        """Nodes that can read the very same model, and why the others cannot."""
        request = encode(CheckModel(model=self.record.model))
        answers = await asyncio.gather(
            *(
                self._membership.call(
                    report.node_id, "model.check", request, timeout_seconds=_CHECK_SECONDS
                )
                for report in reports
            ),
            return_exceptions=True,
        )
        able: list[NodeReport] = []
        unable: list[Rejection] = []
        for report, answer in zip(reports, answers, strict=True):
            if isinstance(answer, PotluckError):
                reason = f"it cannot read the model: {answer.message}"
            elif isinstance(answer, BaseException):
                raise answer
            elif decode(answer, ModelFingerprint) != self._fingerprint:
                reason = f"its files of {self.record.model} are not those of the coordinator"
            else:
                able.append(report)
                continue
            unit_id = report.units[0].unit_id
            unable.append(Rejection(node_id=report.node_id, unit_id=unit_id, reason=reason))
        return able, unable

    async def _load(self, plan: Plan) -> list[StageAddress]:
        """Start every stage's worker and load it; all at the same time."""
        done = [0] * len(plan.stages)
        totals = [0] * len(plan.stages)

        async def load(index: int) -> StageAddress:
            stage = plan.stages[index]
            spec = StageSpec(
                deployment=self.record.deployment,
                epoch=self.record.epoch,
                index=index,
                num_stages=len(plan.stages),
                model=self.record.model,
                start_layer=stage.shard.start_layer,
                end_layer=stage.shard.end_layer,
                context_tokens=self.record.context_tokens,
                num_blocks=self._size.num_blocks,
                max_step_tokens=self._size.max_step_tokens,
                max_step_sequences=self._size.max_step_sequences,
            )
            decoder = msgspec.msgpack.Decoder(Progress | Loaded)
            stream = self._membership.call_stream(stage.node_id, "stage.start", encode(spec))
            try:
                async for part in stream:
                    event = decoder.decode(part)
                    if isinstance(event, Loaded):
                        return StageAddress(node_id=stage.node_id, host=event.host, port=event.port)
                    done[index], totals[index] = event.done_bytes, event.total_bytes
                    self._say_progress(sum(done), sum(totals))
            except CallError as error:
                raise EngineError(
                    f"stage {index} on node {stage.node_id}: {error.message}", hint=error.hint
                ) from error
            finally:
                await stream.aclose()
            raise EngineError(f"stage {index} on node {stage.node_id} was not loaded")

        tasks = [asyncio.create_task(load(index)) for index in range(len(plan.stages))]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def _connect(self, stages: Sequence[StageAddress]) -> None:
        """Have the stages open their edges, open the coordinator's two, start to serve."""
        own = self._membership.node_id

        def connect_stages(result: tuple[str, int]) -> list[ConnectStage]:
            peers = [
                Peer(node_id=own),
                *(Peer(node_id=each.node_id, host=each.host, port=each.port) for each in stages),
                Peer(node_id=own, host=result[0], port=result[1]),
            ]
            return [
                ConnectStage(
                    deployment=self.record.deployment,
                    epoch=self.record.epoch,
                    index=index,
                    connect=Connect(preceding=peers[index], following=peers[index + 2]),
                )
                for index in range(len(stages))
            ]

        async def tell(index: int, request: ConnectStage) -> None:
            try:
                await self._membership.call(
                    stages[index].node_id,
                    "stage.connect",
                    encode(request),
                    timeout_seconds=_CONNECT_SECONDS,
                )
            except CallError as error:
                raise EngineError(
                    f"stage {index} on node {stages[index].node_id}: {error.message}",
                    hint=error.hint,
                ) from error

        outgoing, incoming = await open_edges(
            self._credentials,
            self._listen_host,
            first=stages[0],
            last=stages[-1],
            num_stages=len(stages),
            deployment=self.record.deployment,
            epoch=self.record.epoch,
            limits=self._size.edge_limits,
            tell_stages=lambda result: [
                tell(index, request) for index, request in enumerate(connect_stages(result))
            ],
        )
        loop = asyncio.get_running_loop()

        def lost(error: PotluckError) -> None:
            loop.call_soon_threadsafe(self._end_epoch, error.message)

        limits = SchedulerLimits(
            num_blocks=self._size.num_blocks,
            context_tokens=self.record.context_tokens,
            max_step_tokens=self._size.max_step_tokens,
            max_step_sequences=self._size.max_step_sequences,
            max_steps_in_flight=len(stages),
        )
        self._dispatcher = Dispatcher(
            limits,
            lambda on_outcome: RemotePipeline(outgoing, incoming, on_outcome, lost),
        )

    def _say(self, **changes: object) -> None:
        """Change the record and tell everybody."""
        self.record = msgspec.structs.replace(
            self.record, revision=self.record.revision + 1, **changes
        )
        self._last_published = time.monotonic()
        self._publish(self.record)

    def _say_progress(self, done_bytes: int, total_bytes: int) -> None:
        if time.monotonic() - self._last_published > _PUBLISH_SECONDS:
            self._say(done_bytes=done_bytes, total_bytes=total_bytes)


async def gather_reports(
    membership: Membership, nodes: Sequence[NodeId]
) -> tuple[list[NodeReport], list[Rejection]]:
    """What each node says of itself, and those that do not answer."""
    answers = await asyncio.gather(
        *(
            membership.call(node, "node.report", b"", timeout_seconds=_REPORT_SECONDS)
            for node in nodes
        ),
        return_exceptions=True,
    )
    reports: list[NodeReport] = []
    silent: list[Rejection] = []
    for node, answer in zip(nodes, answers, strict=True):
        if isinstance(answer, bytes):
            reports.append(decode(answer, NodeReport))
        elif isinstance(answer, PotluckError):
            reason = f"it does not answer: {answer.message}"
            silent.append(Rejection(node_id=node, unit_id=CPU_UNIT, reason=reason))
        else:
            raise answer
    return reports, silent


def _most_threads(reports: Sequence[NodeReport]) -> int:
    return max((unit.num_threads for report in reports for unit in report.units), default=1)
