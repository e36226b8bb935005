"""Stages that compute a toy model, the host of a node's stages, and the pipeline over them.

A stage remembers which token was written where in its cache. What it passes on is spoilt when its
cache does not hold the sequence that the step says, so that a token is right only if every stage
had all tokens before it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import msgspec
from simulation.history import History, next_token, score
from support.cluster.played_network import Network, Process
from support.scheduling.stateful_pipeline import State, state_after

from potluck.cluster.agent.deployment_calls import report_lost
from potluck.cluster.network.membership import Membership
from potluck.cluster.wire.calls import (
    ConnectStage,
    ReleaseStages,
    StageEnds,
    StageLost,
    StageScope,
    StageStats,
    StartEvent,
)
from potluck.cluster.wire.methods import (
    CONNECT_STAGE,
    END_STAGES,
    RELEASE_STAGES,
    STAGE_STATS,
    START_STAGE,
    STOP_STAGES,
)
from potluck.cluster.wire.worker_messages import Loaded, Progress, StageSpec, Stats
from potluck.errors import CallError, EngineError, PotluckError
from potluck.scheduling.pipeline import OnOutcome, StepOutcome
from potluck.types.cluster import DeploymentId, Epoch, NodeId
from potluck.types.held_stage import HeldStage
from potluck.types.memory import MemoryPlan
from potluck.types.sequence import CommittedToken
from potluck.types.step import (
    KV_BLOCK_TOKENS,
    SampledToken,
    SequenceId,
    SequenceSlice,
    Step,
    TokenLogprob,
)

NUM_LAYERS = 6
LOAD_SECONDS_PER_LAYER = 0.2
STEP_SECONDS_PER_LAYER = 0.004
STEP_DEADLINE_SECONDS = 3.0
_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 1.0
"""For a worker to say that it is ready for other edges; then it is killed."""
_MAX_LATE_FRAMES = 8
_SPOILT = 7919
_NOTHING: State = (0, 0)
_UNKNOWN: State = (-1, 0)

Holding = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """What can be turned off, to show that the checks notice."""

    has_fencing: bool = True
    has_idempotence: bool = True
    has_ledger: bool = True
    has_quorum: bool = True
    has_groups: bool = False
    """Neighbouring stages are held by groups. Not on as a rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A step on its way through the stages; ``spoilt`` as soon as one of them was wrong.

    That goes for its ``spoilt_parts`` where a stage did not have the whole sequence.
    """

    deployment: DeploymentId
    epoch: Epoch
    index: int
    step: Step
    layer: int = 0
    spoilt: int = 0
    spoilt_parts: frozenset[SequenceId] = frozenset()
    is_skipped: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """What the last stage sends to the coordinator."""

    deployment: DeploymentId
    epoch: Epoch
    outcome: StepOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What a member of a group sends its leader, stage ``index``, for a step."""

    deployment: DeploymentId
    epoch: Epoch
    index: int
    member: int
    step: Step
    spoilt: int
    spoilt_parts: frozenset[SequenceId]


@dataclass(frozen=True, slots=True)
class Check:
    """Asks a node to see whether its workers make progress."""


@dataclass(slots=True, kw_only=True)
class Worker:
    """A stage in a process of its own."""

    number: int
    spec: StageSpec
    requested_epoch: Epoch  # the last epoch that asked for it
    is_loaded: bool = False
    is_frozen: bool = False
    is_ended: bool = False
    epoch: Epoch | None = None
    index: int = 0
    following: NodeId | None = None
    preceding: NodeId | None = None
    members: tuple[NodeId, ...] = ()
    member: int = 0
    slices: dict[int, dict[int, Slice]] = field(default_factory=dict)
    waiting: Frame | None = None
    is_last: bool = False
    next_step: int = 0
    is_busy: bool = False
    queue: deque[Frame] = field(default_factory=deque)
    cancelled: set[int] = field(default_factory=set)
    seen: list[Frame] = field(default_factory=list)
    cache: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    states: dict[int, State] = field(default_factory=dict)
    opened: dict[SequenceId, tuple[int, list[int]]] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        return self.spec.num_bytes

    @property
    def holding(self) -> Holding:
        """What it holds: all of the specification that does not change with the epoch."""
        return _holding(self.spec)

    def held(self) -> HeldStage:
        """As its node reports it."""
        epoch = self.spec.epoch if self.epoch is None else self.epoch
        return msgspec.structs.replace(self.spec, epoch=epoch).held

    @property
    def is_sampling(self) -> bool:
        """Whether it is the last stage, or leads it."""
        return self.is_last and self.member == 0

    def following_index(self, index: int) -> int:
        """The index of the next stage, after all members of this one."""
        return index - self.member + max(1, len(self.members))

    def run(self, frame: Frame) -> tuple[Frame, tuple[SampledToken, ...]]:
        """Compute a step: what the next stage is sent, and what the last one samples."""
        spoilt, spoilt_parts = frame.spoilt, set(frame.spoilt_parts)
        if frame.layer != self.spec.shard.start_layer:
            spoilt = _SPOILT
        for copy in frame.step.copies:
            for offset in range(KV_BLOCK_TOKENS):
                row = self.cache.get((copy.source, offset))
                if row is not None:
                    self.cache[copy.target, offset] = row
        for state_copy in frame.step.state_copies:
            self.states[state_copy.target] = self.states.get(state_copy.source, _UNKNOWN)
        for opening in frame.step.opened:
            known = [*opening.prompt_tokens, *opening.output_tokens]
            self.opened[opening.sequence_id] = (opening.sampling.seed, known)
        sampled: list[SampledToken] = []
        for part in frame.step.slices:
            history = self._write(part)
            if history is None:
                spoilt_parts.add(part.sequence_id)
                history = []
            if self.is_sampling and part.wanted and self.is_reached(part):
                is_spoilt = spoilt or part.sequence_id in spoilt_parts
                sampled += self._sample(part, history, _SPOILT if is_spoilt else 0, frame.epoch)
        for sequence_id in frame.step.closed:
            self.opened.pop(sequence_id, None)
        passed_on = replace(
            frame,
            index=self.following_index(frame.index),
            layer=self.spec.shard.end_layer,
            spoilt=spoilt,
            spoilt_parts=frozenset(spoilt_parts),
        )
        return passed_on, tuple(sampled)

    def is_reached(self, part: SequenceSlice) -> bool:
        """Whether the first draft of a slice of drafts is the token sampled last."""
        if not part.num_drafts or not part.begins_with_draft:
            return True
        known = self.opened.get(part.sequence_id, (_SPOILT, []))[1]
        return len(known) == part.start_position + 1 and known[-1] == part.tokens[0]

    def _write(self, part: SequenceSlice) -> list[int] | None:
        """Write a slice, and return its sequence as the cache has it; None if anything lacks.

        If there are states, the slice's must be of the same sequence.
        """
        table, cache = part.block_table, self.cache
        for position, token in enumerate(part.tokens, part.start_position):
            cache[table[position // KV_BLOCK_TOKENS], position % KV_BLOCK_TOKENS] = position, token
        history = []
        for position in range(part.start_position + len(part.tokens)):
            written = cache.get((table[position // KV_BLOCK_TOKENS], position % KV_BLOCK_TOKENS))
            if written is None or written[0] != position:
                return None
            history.append(written[1])
        if part.state is None:
            return None if self.spec.num_states else history
        before = _NOTHING if part.start_position == 0 else self.states.get(part.state, _UNKNOWN)
        state = self.states[part.state] = state_after(part.tokens, before)
        return history if state == state_after(history) else None

    def _sample(
        self, part: SequenceSlice, history: list[int], spoilt: int, epoch: Epoch
    ) -> list[SampledToken]:
        mark = marked(epoch)
        seed, known = self.opened.get(part.sequence_id, (_SPOILT, []))
        samples = []
        for index in part.wanted:
            position = part.start_position + index + 1
            before, token = history[:position], part.known_after(index)
            if token is None:
                # Penalties go by what the last stage was told and has sampled since.
                is_right = known == before
                token = next_token(seed + spoilt, before if is_right else [*known, _SPOILT])
                known.append(token)
                samples.append(
                    SampledToken(
                        sequence_id=part.sequence_id, position=position, token=token, top=mark
                    )
                )
                if index + 1 < len(part.tokens) and part.tokens[index + 1] != token:
                    break  # a wrong draft, which only now is known
            else:
                samples.append(
                    SampledToken(
                        sequence_id=part.sequence_id,
                        position=position,
                        token=token,
                        logprob=score(before, token) - spoilt,
                        top=mark,
                    )
                )
        return samples


def marked(epoch: Epoch) -> tuple[TokenLogprob, ...]:
    """Return what says, in a token, in which epoch it was computed."""
    return (TokenLogprob(token=epoch.number, logprob=float(epoch.coordinator[1:])),)


def epoch_of(token: CommittedToken) -> Epoch:
    """Return the epoch that a token was computed in."""
    (mark,) = token.top
    return Epoch(number=mark.token, coordinator=NodeId(f"n{int(mark.logprob)}"))


def _holding(spec: StageSpec) -> Holding:
    return (
        spec.deployment,
        spec.unit_id,
        spec.shard,
        spec.context_tokens,
        spec.num_blocks,
        spec.num_states,
        spec.quantization,
        spec.is_mapped,
        spec.arithmetic,
    )


class StageHost:
    """A node's stages: kept while nobody uses them, and obedient to the highest epoch that
    connected them.
    """

    def __init__(
        self,
        process: Process,
        capacity: int,
        history: History,
        switches: Switches,
        disturb: Callable[[], float],
        get_chunk: Callable[[DeploymentId, int], Awaitable[None]] | None = None,
    ) -> None:
        self._get_chunk = get_chunk
        self.workers: list[Worker] = []
        self.capacity = capacity
        self.slowness = 1.0
        self.cannot_load = False
        self._process = process
        self._network: Network = process.network
        self._history = history
        self._switches = switches
        self._disturb = disturb
        self._highest: dict[DeploymentId, Epoch] = {}
        self._started: dict[tuple[DeploymentId, Epoch, int], Worker] = {}
        START_STAGE.serve(process.methods, self._on_start)
        CONNECT_STAGE.serve(process.methods, self._on_connect)
        RELEASE_STAGES.serve(process.methods, self._on_release)
        STOP_STAGES.serve(process.methods, self._on_stop)
        END_STAGES.serve(process.methods, self._on_end)
        STAGE_STATS.serve(process.methods, self._on_stats)

    @property
    def free_bytes(self) -> int:
        """What stages that are not yet may take."""
        return self.capacity - sum(worker.num_bytes for worker in self.workers)

    def held(self) -> list[HeldStage]:
        """Every loaded stage."""
        return [worker.held() for worker in self.workers if worker.is_loaded]

    async def supersede(self, deployment: DeploymentId, epoch: Epoch) -> None:
        """A higher epoch is in force: none below it computes here any more."""
        self._fence(deployment, epoch)

    async def stop(self, scope: StageScope) -> None:
        """End a deployment's stages."""
        for worker in list(self.workers):
            if worker.spec.deployment == scope.deployment:
                self._end(worker)

    async def coordinator_left(self, node_id: NodeId) -> None:
        """Hold what is loaded; end what its coordinator was having loaded."""
        for worker in list(self.workers):
            if not worker.is_loaded and worker.spec.epoch.coordinator == node_id:
                self._end(worker)

    def _fence(self, deployment: DeploymentId, epoch: Epoch) -> None:
        self._highest[deployment] = max(self._highest.get(deployment, epoch), epoch)
        if not self._switches.has_fencing:
            return
        for worker in self.workers:
            of_it = worker.spec.deployment == deployment
            if of_it and worker.epoch is not None and worker.epoch < epoch:
                _disconnect(worker)

    def take(self, frame: Frame) -> None:
        """A frame arrives from the stage before, or from the coordinator."""
        switches = self._switches
        for worker in self.workers:
            if worker.spec.deployment != frame.deployment or worker.index != frame.index:
                continue
            if worker.epoch is None or (worker.epoch != frame.epoch and switches.has_fencing):
                continue
            if frame.step.step_id != worker.next_step and switches.has_idempotence:
                self._history.num_dropped_frames += 1
                continue
            worker.next_step = frame.step.step_id + 1
            worker.queue.append(frame)
            worker.cancelled.update(frame.step.cancels)
            if len(worker.seen) < _MAX_LATE_FRAMES:
                worker.seen.append(frame)
            self._next(worker)
            return
        self._history.num_dropped_frames += 1

    def _pass_on(self, worker: Worker, frame: Frame) -> None:
        """The leader of a group sends on what it receives."""
        for member, node in enumerate(worker.members):
            if member > worker.member == 0:
                of_member = replace(frame, index=frame.index + member)
                self._network.send(self._process, node, partial(_taken, of_member))

    def take_slice(self, slice_: Slice) -> None:
        """A slice arrives at the leader of a group, perhaps before the leader has computed."""
        for worker in self.workers:
            if (worker.spec.deployment, worker.epoch, worker.index) == (
                slice_.deployment,
                slice_.epoch,
                slice_.index,
            ):
                step_id = slice_.step.step_id
                worker.slices.setdefault(step_id, {})[slice_.member] = slice_
                if worker.waiting is not None and worker.waiting.step.step_id == step_id:
                    self._computed(worker, worker.waiting)

    def freeze(self, worker: Worker) -> None:
        """The worker's process is stopped: it answers nothing."""
        worker.is_frozen = True

    def thaw(self, worker: Worker) -> None:
        """It goes on."""
        worker.is_frozen = False
        if worker.waiting is not None:
            self._computed(worker, worker.waiting)
        self._next(worker)

    def check(self) -> None:
        """Kill workers that make no progress."""
        for worker in [each for each in self.workers if each.is_frozen]:
            self.kill(worker)

    def kill(self, worker: Worker) -> None:
        """The worker's process ends; its node says so to the coordinator."""
        if worker not in self.workers:
            return
        self._end(worker)
        self._tell_lost(worker, "its worker was killed")

    def left(self, node_id: NodeId) -> None:
        """A node is gone: edges to it are, too."""
        for worker in self.workers:
            neighbours = (worker.preceding, worker.following, *worker.members)
            if worker.epoch is not None and node_id in neighbours:
                self._tell_lost(worker, "its edge was cut")
                _disconnect(worker)

    def _tell_lost(self, worker: Worker, message: str) -> None:
        epoch = worker.epoch or worker.spec.epoch
        lost = StageLost(
            deployment=worker.spec.deployment,
            epoch=epoch,
            index=worker.index if worker.epoch else worker.spec.index,
            node_id=self._process.node_id,
            message=message,
        )
        membership = cast(Membership, self._process)
        asyncio.get_running_loop().create_task(report_lost(membership, lost))

    def _next(self, worker: Worker) -> None:
        if worker.is_busy or worker.is_frozen or worker.is_ended or not worker.queue:
            return
        frame = worker.queue.popleft()
        is_cancelled = frame.step.step_id in worker.cancelled and frame.step.can_be_skipped
        if frame.is_skipped or (is_cancelled and worker.member == 0):
            self._history.num_skipped_steps += 1
            skipped = replace(frame, is_skipped=True)
            self._pass_on(worker, skipped)
            following = worker.following_index(frame.index)
            self._send_on(worker, replace(skipped, index=following), ())
            self._next(worker)
            return
        self._pass_on(worker, frame)
        worker.is_busy = True
        layers = worker.spec.shard.end_layer - worker.spec.shard.start_layer
        self._network.loop.call_later(
            layers * STEP_SECONDS_PER_LAYER * self.slowness,
            self._process.run,
            self._computed,
            worker,
            frame,
        )

    def _computed(self, worker: Worker, frame: Frame) -> None:
        if worker.is_ended:
            return
        if worker.is_frozen and worker.waiting is not None:
            return
        if worker.is_frozen:
            worker.is_busy = False
            worker.queue.appendleft(frame)
            return
        missing = len(worker.members) - 1 - len(worker.slices.get(frame.step.step_id, {}))
        if worker.epoch == frame.epoch and worker.member == 0 and worker.members and missing:
            worker.waiting = frame
            return
        worker.is_busy, worker.waiting = False, None
        is_stale = worker.epoch != frame.epoch
        if is_stale and self._switches.has_fencing:
            self._next(worker)
            return
        self._history.computed(worker.number, frame.deployment, frame.epoch, frame.step.step_id)
        slices = worker.slices.pop(frame.step.step_id, {}).values()
        passed_on, sampled = worker.run(
            replace(
                frame,
                spoilt=max([frame.spoilt, *(each.spoilt for each in slices)]),
                spoilt_parts=frame.spoilt_parts.union(*(each.spoilt_parts for each in slices)),
            )
        )
        self._send_on(worker, passed_on, sampled)
        self._next(worker)

    def _send_on(self, worker: Worker, passed_on: Frame, sampled: tuple[SampledToken, ...]) -> None:
        if worker.member:
            self._send_slice(worker, passed_on)
        elif worker.is_last:
            outcome = StepOutcome(
                step=passed_on.step, sampled=sampled, is_skipped=passed_on.is_skipped
            )
            self._network.send(
                self._process,
                passed_on.epoch.coordinator,
                lambda process: process.take(
                    Result(passed_on.deployment, passed_on.epoch, outcome)
                ),
            )
        elif worker.following is not None:
            self._network.send(
                self._process,
                worker.following,
                lambda process: process.take(passed_on),
            )

    def _send_slice(self, worker: Worker, computed: Frame) -> None:
        """A member that does not lead tells the leader of its part."""
        part = Slice(
            deployment=computed.deployment,
            epoch=computed.epoch,
            index=worker.index - worker.member,
            member=worker.member,
            step=computed.step,
            spoilt=computed.spoilt,
            spoilt_parts=computed.spoilt_parts,
        )
        if not computed.is_skipped:
            self._network.send(self._process, worker.members[0], lambda process: process.take(part))

    async def _on_start(self, spec: StageSpec) -> AsyncGenerator[StartEvent, None]:
        self._require(spec.deployment, spec.epoch)
        key = (spec.deployment, spec.epoch, spec.index)
        for worker in self.workers:
            if worker.holding == _holding(spec) and worker.is_loaded:
                if worker.is_frozen:
                    await asyncio.sleep(_ANSWER_SECONDS)
                if worker.is_frozen:
                    self.kill(worker)
                    break
                self._started[key] = worker
                worker.requested_epoch = spec.epoch
                yield _loaded(worker, is_kept=True)
                return
        if spec.num_bytes > self.free_bytes:
            raise CallError(
                f"no room for {spec.num_bytes} bytes on {self._process.node_id}:"
                f" {self.free_bytes} are free"
            )
        if self.cannot_load:
            raise CallError(f"the weights cannot be read on {self._process.node_id}")
        number = next(self._history.worker_numbers)
        worker = Worker(number=number, spec=spec, requested_epoch=spec.epoch)
        self.workers.append(worker)
        try:
            layers = spec.shard.end_layer - spec.shard.start_layer
            for done in range(layers):
                yield Progress(done_bytes=done, total_bytes=layers)
                if spec.files is not None and self._get_chunk is not None:
                    await self._get_chunk(spec.deployment, spec.shard.start_layer + done)
                await asyncio.sleep(LOAD_SECONDS_PER_LAYER)
                if worker.is_ended or self.cannot_load:
                    raise CallError("the worker ended while it loaded")
                self._require(spec.deployment, spec.epoch)
            worker.is_loaded = True
            self._started[key] = worker
            yield _loaded(worker, is_kept=False)
        finally:
            if not worker.is_loaded:
                self._end(worker)

    async def _on_connect(self, request: ConnectStage) -> None:
        deployment, connect = request.deployment, request.connect
        epoch = connect.epoch
        self._require(deployment, epoch)
        worker = self._started.get((deployment, epoch, connect.index))
        if worker is None or worker.is_ended or worker.is_frozen:
            raise CallError("there is no such stage")
        self._highest[deployment] = epoch
        worker.epoch, worker.index = epoch, connect.index
        worker.members = tuple(each.node_id for each in connect.members)
        worker.member = connect.member
        worker.preceding = worker.following = None
        if worker.member == 0:
            worker.preceding = connect.preceding.node_id
            worker.following = connect.following.node_id
        worker.is_last = worker.spec.shard.end_layer == NUM_LAYERS
        worker.next_step = 0
        worker.queue.clear()
        worker.slices.clear()
        if worker.waiting is not None:
            worker.is_busy, worker.waiting = False, None
        worker.cancelled.clear()
        worker.cache.clear()
        worker.states.clear()
        worker.opened.clear()
        for frame in worker.seen:  # what a network may still deliver of the epoch before
            again = self._disturb()
            if again:
                self._network.loop.call_later(again, self._process.run, self.take, frame)
        worker.seen.clear()
        self._history.connected(worker.number, deployment, epoch)
        own, loop = self._process.node_id, self._network.loop
        deadline = loop.time() + _CONNECT_SECONDS
        while not all(
            self._network.hears(own, peer) and self._network.hears(peer, own)
            for peer in (worker.preceding, worker.following, *worker.members)
            if peer not in (None, own)
        ):
            if loop.time() > deadline or worker.epoch != epoch or worker.is_ended:
                raise CallError("the edges could not be made")
            await asyncio.sleep(0.1)

    async def _on_release(self, request: ReleaseStages) -> None:
        highest = self._highest.get(request.deployment)
        if highest is not None and request.epoch < highest:
            return
        keep = {_identity(each) for each in request.keep}
        for worker in list(self.workers):
            is_over = (
                worker.spec.deployment == request.deployment
                and worker.requested_epoch <= request.epoch
            )
            if is_over and (not worker.is_loaded or _identity(worker.held()) not in keep):
                self._end(worker)

    async def _on_stop(self, scope: StageScope) -> StageEnds:
        await self.stop(scope)
        return StageEnds()

    async def _on_end(self, scope: StageScope) -> StageEnds:
        """Close the edges up to an epoch, and open none of them later."""
        following = Epoch(
            number=scope.epoch.number, coordinator=NodeId(scope.epoch.coordinator + "!")
        )
        self._fence(scope.deployment, following)
        return StageEnds()

    async def _on_stats(self, scope: StageScope) -> StageStats:
        return StageStats(
            stages={
                worker.index: Stats(
                    num_steps=0,
                    num_tokens=0,
                    compute_seconds=0.0,
                    send_seconds=0.0,
                    num_sent_bytes=0,
                    resident_bytes=0,
                    slowdown=self.slowness,
                )
                for worker in self.workers
                if worker.epoch == scope.epoch
            }
        )

    def _require(self, deployment: DeploymentId, epoch: Epoch) -> None:
        highest = self._highest.get(deployment)
        if highest is not None and epoch < highest and self._switches.has_fencing:
            raise CallError(f"epoch {epoch.number} is over")

    def _end(self, worker: Worker) -> None:
        worker.is_ended = True
        worker.queue.clear()
        if worker in self.workers:
            self.workers.remove(worker)


def _disconnect(worker: Worker) -> None:
    worker.epoch = None
    worker.queue.clear()
    if worker.waiting is not None:
        worker.is_busy, worker.waiting = False, None


def _taken(frame: Frame, process: Any) -> None:
    process.take(frame)


def _identity(stage: HeldStage) -> Holding:
    return (stage.unit_id, stage.shard, stage.num_blocks)


def _loaded(worker: Worker, *, is_kept: bool) -> Loaded:
    memory = MemoryPlan(
        weights=(("toy", worker.num_bytes),),
        cache_bytes=0,
        rope_bytes=0,
        scratch_bytes=0,
        staging_bytes=0,
    )
    return Loaded(
        host="toy",
        port=1,
        memory=memory,
        read_bytes=0 if is_kept else worker.num_bytes,
        seconds=0.0,
        mapped_file=None,
        is_kept=is_kept,
    )


class ToyPipeline:
    """Sends steps to the first stage; what the last one answers comes to :meth:`take`."""

    sent = None

    def __init__(
        self,
        process: Process,
        deployment: DeploymentId,
        epoch: Epoch,
        nodes: list[NodeId],
        on_outcome: OnOutcome,
        on_lost: Callable[[PotluckError], None],
        disturb: Callable[[], float],
    ) -> None:
        self._process = process
        self._network = process.network
        self._deployment = deployment
        self._epoch = epoch
        self._nodes = nodes
        self._on_outcome = on_outcome
        self._on_lost = on_lost
        self._disturb = disturb
        self._awaited: dict[int, float] = {}
        self._is_closed = False
        self._is_watching = False

    def submit(self, step: Step) -> None:
        """Send a step; perhaps again later, as a network may."""
        frame = Frame(deployment=self._deployment, epoch=self._epoch, index=0, step=step)
        loop = self._network.loop
        self._awaited[step.step_id] = loop.time() + STEP_DEADLINE_SECONDS

        def send() -> None:
            self._network.send(
                self._process,
                self._nodes[0],
                lambda process: process.take(frame),
            )

        send()
        again = self._disturb()
        if again:
            loop.call_later(again, send)
        if not self._is_watching:
            self._watch()

    def take(self, outcome: StepOutcome) -> None:
        """A step is through; also one that is late, or was there before."""
        self._awaited.pop(outcome.step.step_id, None)
        self._on_outcome(outcome)
        again = self._disturb()
        if again:
            self._network.loop.call_later(again, self._on_outcome, outcome)

    def close(self) -> None:
        """As of a real one; what is on its way still arrives."""
        self._is_closed = True

    def _watch(self) -> None:
        self._is_watching = False
        if self._is_closed or not self._awaited:
            return
        oldest = min(self._awaited.values())
        if oldest > self._network.loop.time():
            self._is_watching = True
            self._network.loop.call_at(oldest + 1e-3, self._process.run, self._watch)
            return
        self._is_closed = True
        self._on_lost(EngineError("a step is overdue"))
        for node in sorted(set(self._nodes)):
            self._network.send(
                self._process,
                node,
                lambda process: process.take(Check()),
            )
