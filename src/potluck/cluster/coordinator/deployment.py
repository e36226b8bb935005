"""One deployment as its coordinator runs it: placed, loaded, served, and placed anew when lost.

A deployment goes through epochs. Each has a plan, workers that hold its stages, edges between them
and a dispatcher on top. When a worker, an edge or a node is lost the epoch is over: requests in
flight fail, what is left of the workers is stopped, and the next epoch is planned on the nodes
that are there. Everything here runs in the agent's event loop, except steps and results; one task
goes through the epochs, and whoever ends the deployment first ends that task.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec

from potluck.catalog import ModelDescription
from potluck.cluster.calls import (
    DeploymentRecord,
    DeploymentState,
    ModelFingerprint,
    StageEnds,
    StageLost,
    StageScope,
    decode,
    encode,
)
from potluck.cluster.coordinator.answering import Answering, OnOver
from potluck.cluster.coordinator.left_out import LeftOut, StageStalledError
from potluck.cluster.coordinator.metrics import deployment_metrics
from potluck.cluster.coordinator.outages import units_out
from potluck.cluster.coordinator.overdue import OverdueSteps
from potluck.cluster.coordinator.pipeline import RemotePipeline
from potluck.cluster.coordinator.planning import DeploymentSize, placement_fields, size_of
from potluck.cluster.coordinator.starting import connect_stages, load_stages
from potluck.cluster.coordinator.survey import plan_model
from potluck.cluster.membership import Membership
from potluck.cluster.trust.credentials import Credentials
from potluck.cluster.worker.messages import Loaded
from potluck.engines.costs import CostOf
from potluck.errors import (
    CallError,
    DefectError,
    EngineError,
    PotluckError,
)
from potluck.scheduling import SchedulerLimits
from potluck.serving.dispatcher import Load
from potluck.serving.pipeline import OnOutcome
from potluck.types.cluster import Epoch, NodeId
from potluck.types.gateway import ModelMetrics
from potluck.types.sequence import CommittedToken, SequenceRequest

_log = logging.getLogger(__name__)

_STOP_SECONDS = 10.0
_END_SECONDS = 10.0
"""For the task that goes through the epochs; none of what it does while it ends waits for long."""
_DRAIN_SECONDS = 30.0
_PAUSE_SECONDS = (0.0, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0)
"""Before the next try, by how many failed in a row. A node that joins ends the pause."""
_STABLE_SECONDS = 30.0
"""An epoch that ends sooner counts as failed."""
_PUBLISH_SECONDS = 0.3
_POLL_SECONDS = 0.05


class Deployment:
    """Made by the coordinator's agent; ``publish`` tells every agent of its record.

    ``step_seconds``: see ``AgentConfig``. ``cost_of`` knows what engines take.
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
        step_seconds: float,
        cost_of: CostOf,
        before_next_epoch: Callable[[], Awaitable[None]],
        publish: Callable[[DeploymentRecord], None],
    ) -> None:
        self.record = record
        self._description = description
        self._fingerprint = fingerprint
        self._membership = membership
        self._credentials = credentials
        self._listen_host = listen_host
        self._step_seconds = step_seconds
        self._cost_of = cost_of
        self._before_next_epoch = before_next_epoch
        self._publish = publish
        self._size: DeploymentSize = size_of(description, record)
        self._answering = Answering(record.model_id, description.config.vocab_size)
        self._over: asyncio.Future[PotluckError] | None = None
        self._left_out = LeftOut()
        self._outages: tuple[str, ...] = ()  # since it last served
        self._changed = asyncio.Event()
        self._last_published = 0.0
        self._task: asyncio.Task[None] | None = None

    @property
    def load(self) -> Load | None:
        """How busy it is; None while it does not serve."""
        return self._answering.load

    async def start(self) -> None:
        """Deploy for the first time, then go on by itself.

        What prevents it is raised; the deployment is then to be removed, as after a cancellation.
        """
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._run(first)
        await first

    def resume(self) -> None:
        """Take over from a coordinator that is lost: deploy at the next epoch, until it works."""
        self._next_epoch()
        self._say(state=DeploymentState.DEGRADED, reason="its coordinator was lost", stages=())
        self._run(None)

    async def remove(self, reason: str = "undeployed") -> None:
        """End it: requests in flight fail, the stages are stopped."""
        await self.close(EngineError("the model was undeployed"))
        self._say(state=DeploymentState.REMOVED, reason=reason, stages=())

    async def close(self, reason: PotluckError | None = None) -> None:
        """Stop the stages, and leave the record to a successor. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            _, unwilling = await asyncio.wait({self._task}, timeout=_END_SECONDS)
            if unwilling:
                _log.error("%s: its task does not end, and is left behind", self.record.model_id)
        await self._tear_down(
            reason
            or EngineError(
                "the node that schedules the model left the cluster",
                hint="send the request again: another node takes over",
            )
        )

    async def vacate(self, node_id: NodeId) -> None:
        """Go on without a node that drains, once the sequences in flight are done."""
        if not self._has_stage_on(node_id):
            return
        await self.finish()
        self._end_epoch(EngineError(f"node {node_id} leaves"))
        deadline = time.monotonic() + _DRAIN_SECONDS
        while self._has_stage_on(node_id) and time.monotonic() < deadline:
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
            reason = f"stage {lost.index} on node {lost.node_id}: {lost.message}"
            stages = self.record.stages[lost.index : lost.index + 1]
            if stages and lost.has_stalled:
                self._end_epoch(StageStalledError(lost.node_id, stages[0].unit_id, reason))
            else:
                self._end_epoch(EngineError(reason))

    def node_left(self, node_id: NodeId) -> None:
        """A node is no longer there."""
        if self._has_stage_on(node_id):
            self._end_epoch(EngineError(f"node {node_id} was lost"))

    def node_joined(self) -> None:
        """There may be room now for what did not fit."""
        self._changed.set()

    def generate(self, request: SequenceRequest) -> AsyncGenerator[CommittedToken, None]:
        """Compute a sequence; see ``Answering.generate``. ``EngineError`` while it is not ready."""
        reason = self.record.reason or self.record.state.value
        not_now = EngineError(
            f"the model {self.record.model_id} cannot answer now: {reason}",
            hint="try again in a moment; potluck ps shows its state",
        )
        return self._answering.generate(request, not_now)

    async def metrics(self) -> ModelMetrics | None:
        """What it does now; None while it does not serve."""
        record, sent, load = self.record, self._answering.sent, self.load
        if sent is None or load is None:
            return None
        return await deployment_metrics(
            self._membership, record, load, sent, num_blocks=self._size.num_blocks
        )

    def _has_stage_on(self, node_id: NodeId) -> bool:
        return any(stage.node_id == node_id for stage in self.record.stages)

    def _run(self, first: asyncio.Future[None] | None) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                _log.error("%s is given up", self.record.model_id, exc_info=error)
            if first is not None and not first.done():
                first.set_exception(
                    EngineError(f"{self.record.model_id} was removed while it was being deployed")
                )

        self._task = asyncio.create_task(self._go_through_epochs(first))
        self._task.add_done_callback(ended)

    async def _go_through_epochs(self, first: asyncio.Future[None] | None) -> None:
        """Deploy at one epoch after the other, as nodes come and go.

        ``first`` is told how the first try ended. Where that failed it was the last one, unless
        units failed: then it goes on without them at once.
        """
        num_failures = 0
        while True:
            started = time.monotonic()
            try:
                outages = await self._one_epoch(first)
                if first is not None and _has_failed(first):
                    return
                if outages:
                    continue  # every plan without them is a new one, and they come to an end
            except Exception as error:  # noqa: BLE001 - nobody else would ever try again
                _log.exception("%s: an epoch did not end as it should", self.record.model_id)
                if first is not None and not first.done():
                    first.set_exception(_unexpected(error))
                    return
            if time.monotonic() - started > _STABLE_SECONDS:
                num_failures = 0
            pause = _PAUSE_SECONDS[min(num_failures, len(_PAUSE_SECONDS) - 1)]
            num_failures += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            await self._before_next_epoch()

    async def _one_epoch(self, first: asyncio.Future[None] | None) -> tuple[str, ...]:
        """Deploy, serve, and clear away; returns why units are out by then, a line each."""
        self._changed.clear()
        self._over = asyncio.get_running_loop().create_future()
        error = await self._serve(self._over, first)
        if first is None or first.done():
            self._say(state=DeploymentState.DEGRADED, reason=error.message)
        await self._tear_down(
            EngineError(
                f"the model was interrupted: {error.message}",
                hint="send the request again: the model is being deployed anew",
            ),
            is_defect=isinstance(error, DefectError),
        )
        outages = await units_out(self._membership, self.record.stages)
        if isinstance(error, StageStalledError):
            self._left_out = self._left_out.stalled(error, time.monotonic())
            unit = f"{error.unit_id} on node {error.node_id}"
            if not any(line.startswith(unit) for line in outages):
                outages += (f"{unit} is left out for now",)
        if first is not None and not first.done() and not outages:
            first.set_exception(self._with_outages(error))
            return ()
        self._outages += outages
        self._say(stages=(), reason=self._because(error.message))
        return outages

    def _because(self, what: str) -> str:
        """What goes on, and that it does because units are out, if so."""
        return "; ".join((what, *self._outages))

    def _with_outages(self, error: PotluckError) -> PotluckError:
        if not self._outages:
            return error
        return EngineError(self._because(error.message), hint=error.hint)

    async def _serve(
        self, over: asyncio.Future[PotluckError], first: asyncio.Future[None] | None
    ) -> PotluckError:
        """Deploy and serve until the epoch is over; returns why it is, or never began."""
        is_first = first is not None and not first.done()
        deploying = asyncio.create_task(self._deploy(is_first=is_first))
        try:
            either: set[asyncio.Future[Any]] = {deploying, over}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if deploying.done() and not over.done():
                deploying.result()
                if first is not None and not first.done():
                    first.set_result(None)
            return await over
        except PotluckError as error:
            return error
        except Exception as error:  # noqa: BLE001 - nobody else would ever try again
            _log.exception("%s could not be deployed", self.record.model_id)
            return _unexpected(error)
        finally:
            deploying.cancel()
            await asyncio.gather(deploying, return_exceptions=True)

    async def _deploy(self, *, is_first: bool) -> None:
        """Plan, load, connect and serve the next epoch."""
        self._say(
            state=DeploymentState.LOADING,
            reason=self._because("being placed"),
            stages=(),
            done_bytes=0,
        )
        planned = await plan_model(
            self._membership,
            self.record.model,
            self._description,
            self._fingerprint,
            size_of(self._description, self.record),
            may_quantize=self.record.may_quantize,
            arithmetic=self.record.arithmetic,
            cost_of=self._cost_of,
            left_out=self._left_out.reasons(time.monotonic(), is_first=is_first),
        )
        unmapped = [each.unit_id for each in planned.stages if not each.plan.size.is_mapped]
        if self._size.is_mapped and unmapped:
            units = ", ".join(unmapped)
            _log.warning("weights are loaded, not mapped, where %s computes", units)
        # Only now: a coordinator that is cut off and finds no plan must not outrun its successor.
        self._next_epoch()
        self._say(reason=self._because("loading"), **placement_fields(planned))
        self._size = replace(
            self._size, quantization=planned.quantization, arithmetic=planned.arithmetic
        )
        stages = await load_stages(
            self._membership, self.record, self._size, self._say_progress, self._say_loaded
        )
        outgoing, incoming = await connect_stages(
            self._membership, self._credentials, self._listen_host, self.record, self._size, stages
        )
        loop = asyncio.get_running_loop()
        epoch = self.record.epoch

        def over(error: PotluckError) -> None:
            with suppress(RuntimeError):  # the loop is closed, and so is everything else
                loop.call_soon_threadsafe(self._end_epoch, error, epoch)

        overdue = OverdueSteps(
            self._membership, self.record, lambda error: self._end_epoch(error, epoch)
        )

        def open_pipeline(on_outcome: OnOutcome, on_lost: OnOver) -> RemotePipeline:
            return RemotePipeline(
                outgoing,
                incoming,
                on_outcome,
                on_lost,
                overdue.ask,
                step_seconds=self._step_seconds,
            )

        limits = SchedulerLimits(
            num_blocks=self._size.num_blocks,
            context_tokens=self._size.context_tokens,
            max_step_tokens=self._size.max_step_tokens,
            max_step_sequences=self._size.max_step_sequences,
            max_steps_in_flight=len(stages),
        )
        self._answering.begin(limits, open_pipeline, over)
        self._outages = ()
        self._say(state=DeploymentState.READY, reason="")

    def _next_epoch(self) -> None:
        epoch = Epoch(number=self.record.epoch.number + 1, coordinator=self._membership.node_id)
        self.record = msgspec.structs.replace(self.record, epoch=epoch, revision=0)

    def _end_epoch(self, error: PotluckError, epoch: Epoch | None = None) -> None:
        """The present epoch is over (unless ``epoch`` is another one)."""
        is_present = epoch is None or epoch == self.record.epoch
        if is_present and self._over is not None and not self._over.done():
            _log.warning("%s: %s", self.record.model_id, error.message)
            self._answering.stop()
            self._over.set_result(error)

    async def _tear_down(self, reason: PotluckError, *, is_defect: bool = False) -> None:
        """End all requests and stop every stage of this epoch, wherever it can be reached.

        Where it has ended by a defect of its own, or of a stage, the requests in its steps are
        suspects.
        """
        in_flight: tuple[SequenceRequest, ...] = ()
        defect = reason.message if is_defect else ""
        try:
            in_flight = await self._answering.end(reason)
            defect = "; ".join(await self._stop_stages()) or defect
        finally:
            self._answering.judge(in_flight, defect)

    async def _stop_stages(self) -> list[str]:
        """Stop the stages of this epoch; returns how they have crashed, if they have."""
        scope = encode(StageScope(deployment=self.record.deployment, epoch=self.record.epoch))
        nodes = {stage.node_id for stage in self.record.stages} & (
            self._membership.nodes() | {self._membership.node_id}
        )

        async def stop(node: NodeId) -> tuple[str, ...]:
            try:
                answer = await self._membership.call(
                    node, "stage.stop", scope, timeout_seconds=_STOP_SECONDS
                )
                return decode(answer, StageEnds).crashes
            except CallError as error:
                _log.info("stages on node %s could not be stopped: %s", node, error.message)
                return ()

        answers = await asyncio.gather(*map(stop, sorted(nodes)))
        return [line for crashes in answers for line in crashes]

    def _say(self, **changes: object) -> None:
        """Change the record and tell everybody."""
        self.record = msgspec.structs.replace(
            self.record, revision=self.record.revision + 1, **changes
        )
        self._last_published = time.monotonic()
        self._publish(self.record)

    def _say_progress(self, reason: str, done_bytes: int, total_bytes: int) -> None:
        said = self._because(reason)
        is_due = time.monotonic() - self._last_published > _PUBLISH_SECONDS
        if is_due or said != self.record.reason:
            self._say(reason=said, done_bytes=done_bytes, total_bytes=total_bytes)

    def _say_loaded(self, index: int, loaded: Loaded) -> None:
        stages = list(self.record.stages)
        stages[index] = msgspec.structs.replace(
            stages[index],
            memory=loaded.memory,
            read_bytes=loaded.read_bytes,
            load_seconds=loaded.seconds,
        )
        self._say(stages=tuple(stages))


def _has_failed(first: asyncio.Future[None]) -> bool:
    return first.done() and (first.cancelled() or first.exception() is not None)


def _unexpected(error: Exception) -> EngineError:
    return EngineError(f"{type(error).__name__}: {error}")
