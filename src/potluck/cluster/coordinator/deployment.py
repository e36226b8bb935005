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
    StageLost,
    StageScope,
    encode,
)
from potluck.cluster.coordinator.metrics import deployment_metrics
from potluck.cluster.coordinator.outages import units_out
from potluck.cluster.coordinator.pipeline import RemotePipeline
from potluck.cluster.coordinator.planning import DeploymentSize, placement_fields, size_of
from potluck.cluster.coordinator.starting import connect_stages, load_stages
from potluck.cluster.coordinator.survey import plan_model
from potluck.cluster.membership import Membership
from potluck.cluster.steps import MAX_WAITING_SEQUENCES
from potluck.cluster.trust.credentials import Credentials
from potluck.cluster.worker.messages import Loaded
from potluck.engines.costs import CostOf
from potluck.errors import EngineError, OverloadedError, ParameterError, PotluckError
from potluck.scheduling import SchedulerLimits
from potluck.serving.dispatcher import Dispatcher, Load, Update
from potluck.serving.pipeline import OnOutcome
from potluck.types.cluster import Epoch, NodeId
from potluck.types.gateway import ModelMetrics
from potluck.types.sampling import validate_sampling
from potluck.types.sequence import CommittedToken, SequenceRequest

_log = logging.getLogger(__name__)

_RETRY_AFTER_SECONDS = 5
_STOP_SECONDS = 10.0
_DRAIN_SECONDS = 30.0
_PAUSE_SECONDS = (0.0, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0)
"""Before the next try, by how many failed in a row. A node that joins ends the pause."""
_STABLE_SECONDS = 30.0
"""An epoch that ends sooner counts as failed."""
_PUBLISH_SECONDS = 0.3
_POLL_SECONDS = 0.05


class Deployment:
    """Made by the coordinator's agent; ``publish`` tells every agent of its record.

    ``step_seconds`` is the longest time for a step through all stages; a stage that has not
    answered then counts as lost. ``cost_of`` knows what engines take. ``before_next_epoch`` is
    awaited when an epoch is over: the agent
    may want to look around.
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
        self._pipeline: RemotePipeline | None = None
        self._dispatcher: Dispatcher | None = None
        self._over: asyncio.Future[str] | None = None
        self._outages: tuple[str, ...] = ()  # since it last served
        self._changed = asyncio.Event()
        self._last_published = 0.0
        self._task: asyncio.Task[None] | None = None

    @property
    def load(self) -> Load | None:
        """How busy it is; None while it does not serve."""
        return None if self._dispatcher is None else self._dispatcher.load

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
            await asyncio.wait({self._task})
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
        self._end_epoch(f"node {node_id} leaves")
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
            self._end_epoch(f"stage {lost.index} on node {lost.node_id}: {lost.message}")

    def node_left(self, node_id: NodeId) -> None:
        """A node is no longer there."""
        if self._has_stage_on(node_id):
            self._end_epoch(f"node {node_id} was lost")

    def node_joined(self) -> None:
        """There may be room now for what did not fit."""
        self._changed.set()

    async def generate(self, request: SequenceRequest) -> AsyncGenerator[CommittedToken, None]:
        """Compute a sequence; closing the generator cancels it and frees its cache.

        Raises ``ParameterError`` for what no stage could compute: it would fail the sequences that
        share its steps, too.
        """
        dispatcher = self._dispatcher
        if dispatcher is None:
            reason = self.record.reason or self.record.state.value
            raise EngineError(
                f"the model {self.record.model_id} cannot answer now: {reason}",
                hint="try again in a moment; potluck ps shows its state",
            )
        self._check(request)
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

    async def metrics(self) -> ModelMetrics | None:
        """What it does now; None while it does not serve."""
        record, pipeline, load = self.record, self._pipeline, self.load
        if pipeline is None or load is None:
            return None
        return await deployment_metrics(
            self._membership, record, load, pipeline.sent, num_blocks=self._size.num_blocks
        )

    def _has_stage_on(self, node_id: NodeId) -> bool:
        return any(stage.node_id == node_id for stage in self.record.stages)

    def _check(self, request: SequenceRequest) -> None:
        vocab_size = self._description.config.vocab_size
        validate_sampling(request.sampling, vocab_size)
        if not request.prompt_tokens or not all(
            0 <= token < vocab_size for token in request.prompt_tokens
        ):
            raise ParameterError("prompt", f"a prompt has tokens from 0 to {vocab_size - 1}")
        if request.max_new_tokens is not None and request.max_new_tokens < 1:
            raise ParameterError("max_tokens", "at least one token must be asked for")

    def _run(self, first: asyncio.Future[None] | None) -> None:
        def ended(_: asyncio.Task[None]) -> None:
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
            self._changed.clear()
            self._over = asyncio.get_running_loop().create_future()
            started = time.monotonic()
            error = await self._one_epoch(self._over, first)
            is_first = first is not None and not first.done()
            if not is_first:
                self._say(state=DeploymentState.DEGRADED, reason=error.message)
            await self._tear_down(
                EngineError(
                    f"the model was interrupted: {error.message}",
                    hint="send the request again: the model is being deployed anew",
                )
            )
            outages = await units_out(self._membership, self.record.stages)
            if first is not None and not first.done() and not outages:
                first.set_exception(self._with_outages(error))
                return
            self._outages += outages
            self._say(stages=(), reason=self._because(error.message))
            if outages:
                continue  # every plan without them is a new one, and they come to an end
            if time.monotonic() - started > _STABLE_SECONDS:
                num_failures = 0
            pause = _PAUSE_SECONDS[min(num_failures, len(_PAUSE_SECONDS) - 1)]
            num_failures += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            await self._before_next_epoch()

    def _because(self, what: str) -> str:
        """What goes on, and that it does because units are out, if so."""
        return "; ".join((what, *self._outages))

    def _with_outages(self, error: PotluckError) -> PotluckError:
        if not self._outages:
            return error
        return EngineError(self._because(error.message), hint=error.hint)

    async def _one_epoch(
        self, over: asyncio.Future[str], first: asyncio.Future[None] | None
    ) -> PotluckError:
        """Deploy and serve until the epoch is over; returns why it is, or never began."""
        deploying = asyncio.create_task(self._deploy())
        try:
            either: set[asyncio.Future[Any]] = {deploying, over}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if deploying.done() and not over.done():
                deploying.result()
                if first is not None and not first.done():
                    first.set_result(None)
            return EngineError(await over)
        except PotluckError as error:
            return error
        except Exception as error:  # noqa: BLE001 - nobody else would ever try again
            _log.exception("%s could not be deployed", self.record.model_id)
            return EngineError(f"{type(error).__name__}: {error}")
        finally:
            deploying.cancel()
            await asyncio.gather(deploying, return_exceptions=True)

    async def _deploy(self) -> None:
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
            cost_of=self._cost_of,
        )
        unmapped = [each.unit_id for each in planned.stages if not each.plan.size.is_mapped]
        if self._size.is_mapped and unmapped:
            units = ", ".join(unmapped)
            _log.warning("weights are loaded, not mapped, where %s computes", units)
        # Only now: a coordinator that is cut off and finds no plan must not outrun its successor.
        self._next_epoch()
        self._say(reason=self._because("loading"), **placement_fields(planned))
        self._size = replace(self._size, quantization=planned.quantization)
        stages = await load_stages(
            self._membership, self.record, self._size, self._say_progress, self._say_loaded
        )
        outgoing, incoming = await connect_stages(
            self._membership, self._credentials, self._listen_host, self.record, self._size, stages
        )
        loop = asyncio.get_running_loop()
        epoch = self.record.epoch

        def lost(error: PotluckError) -> None:
            loop.call_soon_threadsafe(self._end_epoch, error.message, epoch)

        def start_pipeline(on_outcome: OnOutcome) -> RemotePipeline:
            self._pipeline = RemotePipeline(
                outgoing, incoming, on_outcome, lost, step_seconds=self._step_seconds
            )
            return self._pipeline

        limits = SchedulerLimits(
            num_blocks=self._size.num_blocks,
            context_tokens=self._size.context_tokens,
            max_step_tokens=self._size.max_step_tokens,
            max_step_sequences=self._size.max_step_sequences,
            max_steps_in_flight=len(stages),
        )
        self._dispatcher = Dispatcher(limits, start_pipeline)
        self._outages = ()
        self._say(state=DeploymentState.READY, reason="")

    def _next_epoch(self) -> None:
        epoch = Epoch(number=self.record.epoch.number + 1, coordinator=self._membership.node_id)
        self.record = msgspec.structs.replace(self.record, epoch=epoch, revision=0)

    def _end_epoch(self, reason: str, epoch: Epoch | None = None) -> None:
        """The present epoch is over (unless ``epoch`` is another one)."""
        is_present = epoch is None or epoch == self.record.epoch
        if is_present and self._over is not None and not self._over.done():
            _log.warning("%s: %s", self.record.model_id, reason)
            self._over.set_result(reason)

    async def _tear_down(self, reason: PotluckError) -> None:
        """End the dispatcher and stop every stage of this epoch, wherever it can be reached."""
        dispatcher, self._dispatcher, self._pipeline = self._dispatcher, None, None
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
            prefill=loaded.prefill,
            read_bytes=loaded.read_bytes,
            load_seconds=loaded.seconds,
        )
        self._say(stages=tuple(stages))
