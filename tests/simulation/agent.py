"""An agent around the coordinator's own code: its deployments, its registry, its clients.

What is played here is what has real sockets, files or processes; ``Deployment``, ``RequestQueue``,
the state machine, claims, plans around what is held, the scheduler, the ledger and the registry are
those that run in production.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from simulation.history import VOCAB_SIZE, Answer, History, next_token
from simulation.stages import (
    NUM_LAYERS,
    STEP_SECONDS_PER_LAYER,
    Check,
    Frame,
    Result,
    Slice,
    StageHost,
    Switches,
    ToyPipeline,
    epoch_of,
)
from simulation.weights import Disks, Hub, ToyFiles, ToyWeights
from support.cluster.calls import a_record, changed
from support.cluster.played_cluster import PlayedAgent
from support.cluster.played_network import Process
from support.scheduling.drafters import CheckedDrafter, InstantSource
from support.scheduling.updates import tokens_of

from potluck.catalog import ModelDescription
from potluck.cluster.agent.coordination import Coordination
from potluck.cluster.agent.weights import ReadModel
from potluck.cluster.coordinator.attempt import Attempt, DeploymentDependencies
from potluck.cluster.coordinator.claiming import Grant, Refusal
from potluck.cluster.coordinator.deployment import Deployment
from potluck.cluster.coordinator.request_queue import OnOver, OpenPipeline
from potluck.cluster.wire.calls import Claim, ClaimAnswer, ConnectStage, decode, encode
from potluck.cluster.wire.worker_messages import Connect, Peer
from potluck.errors import CallError, EngineError, PotluckError
from potluck.placement.model_counting import counting_of
from potluck.placement.planned import PlannedModel, PlannedStage
from potluck.placement.proportional import place
from potluck.placement.rebalancing import PlanComparison, RebalancePolicy
from potluck.placement.stage_reuse import Holding, is_of_size, keep_and_fill, kept
from potluck.scheduling.ledger import Ledger
from potluck.scheduling.pipeline import OnOutcome, StepOutcome
from potluck.scheduling.scheduler import Scheduler
from potluck.types.choices import Rebalance
from potluck.types.cluster import DeploymentId, Epoch, NodeId, NodeUnitId
from potluck.types.deployment import (
    DeploymentRecord,
    DeploymentState,
    ModelFingerprint,
)
from potluck.types.drafting import Drafter
from potluck.types.groups import GroupPart
from potluck.types.held_stage import HeldStage
from potluck.types.memory import MemoryPlan
from potluck.types.node import CPU_UNIT
from potluck.types.placement import ModelCost, PlacedStage, Prediction, UnitOffer
from potluck.types.profile import ModelProfile
from potluck.types.program import Shard
from potluck.types.sequence import SequenceRequest
from potluck.types.stage import StagePlan
from potluck.types.step import SequenceId

COST = ModelCost(
    layer_bytes=(10,) * NUM_LAYERS,
    embedding_bytes=2,
    head_bytes=2,
    shared_bytes=0,
    scratch_bytes=1,
    process_bytes=1,
    lone_embedding_bytes=4,
    lone_head_bytes=4,
)

_PROFILE = cast(
    ModelProfile,
    SimpleNamespace(
        config=SimpleNamespace(
            vocab_size=VOCAB_SIZE,
            hidden_size=8,
            no_cuts=frozenset(),
            num_layers=NUM_LAYERS,
            max_context_tokens=256,
            has_logits=True,
        )
    ),
)

HOP_SECONDS = 0.002
"""About what the network takes from one node to another."""

_FINGERPRINT = ModelFingerprint(digest="toy")
_READ = ReadModel(description=cast(ModelDescription, None), fingerprint=_FINGERPRINT, weights=None)


class ReportOfNode(msgspec.Struct, frozen=True, kw_only=True):
    """As much of a node's report as a plan asks for."""

    usable_bytes: int
    is_draining: bool
    held: tuple[HeldStage, ...]
    layer_seconds: float


def new_record(
    deployment: str,
    coordinator: NodeId,
    *,
    recovery_wait_seconds: float,
    rebalance: Rebalance = Rebalance.NEVER,
    num_states: int = 0,
) -> DeploymentRecord:
    """Return the record of a deployment that is about to be made."""
    return changed(
        a_record(0, coordinator, state=DeploymentState.LOADING),
        deployment=DeploymentId(deployment),
        model_id=deployment,
        model="toy",
        recovery_wait_seconds=recovery_wait_seconds,
        rebalance=rebalance,
        num_layers=NUM_LAYERS,
        context_tokens=256,
        cache_tokens=384,
        num_states=num_states,
    )


class ToyAttempt(Attempt):
    """An attempt that plans on toy reports and connects toy stages; it claims and loads as ever."""

    def __init__(
        self, deployment: ToyDeployment, around: DeploymentDependencies, record: DeploymentRecord
    ) -> None:
        counting = counting_of(_PROFILE, around.cost_of)
        weights = cast(Any, around).weights
        super().__init__(around, record, _PROFILE.config, counting, _FINGERPRINT, weights)
        self._deployment = deployment
        self._is_connected = False

    def _agent(self) -> Agent:
        return self._deployment.agent

    async def plan(
        self,
        without: Collection[NodeId],
        left_out: Mapping[NodeUnitId, str],
        *,
        is_first: bool = False,  # which only matters to layouts, and nobody here writes one
    ) -> PlannedModel:
        """As ``plan_model``: around what is held, or anew."""
        everything = await self._reports()
        reports = _usable(everything, without, left_out)
        held = self._held(reports)
        size = self.size
        keeping = kept([each for each in held if is_of_size(each.stage, size)], NUM_LAYERS)
        for needs_room in (False, True):
            freed = [each for each in held if each not in keeping] if needs_room else []
            plan = keep_and_fill(keeping, self._offers(reports, freed), COST)
            if plan is not None:
                return self._planned_model(plan.stages, size, held, needs_room=needs_room)
        offers = self._offers(reports, held)
        stages = place(offers, COST).stages
        if self._agent().switches.has_groups:
            stages = tuple(_grouped(stages, offers))
        return self._planned_model(stages, size, held, needs_room=bool(held))

    async def _reports(self) -> dict[NodeId, ReportOfNode]:
        process = self._agent().process
        nodes = sorted(process.nodes() | {process.node_id})
        reports: dict[NodeId, ReportOfNode] = {}

        async def ask(node: NodeId) -> None:
            with suppress(CallError):
                reports[node] = decode(await process.call(node, "toy.report", b""), ReportOfNode)

        await asyncio.gather(*(ask(node) for node in nodes))
        return reports

    def _held(self, reports: Mapping[NodeId, ReportOfNode]) -> list[Holding]:
        return [
            Holding(node_id=node, stage=stage)
            for node in sorted(reports)
            for stage in reports[node].held
            if stage.deployment == self.record.deployment
        ]

    async def alternative(
        self, without: Collection[NodeId], left_out: Mapping[NodeUnitId, str]
    ) -> PlanComparison | None:
        """The fastest nodes filled up, one after the other; a hop takes as long for all."""
        everything = await self._reports()
        reports = _usable(everything, without, left_out)
        if any(stage.node_id not in everything for stage in self.record.stages):
            return None
        held = self._held(reports)
        room = {
            offer.node_id: (offer.usable_bytes - 6) // 10 for offer in self._offers(reports, held)
        }
        stages: list[PlacedStage] = []
        start = 0
        for node in sorted(room, key=lambda each: (reports[each].layer_seconds, each)):
            count = min(room[node], NUM_LAYERS - start)
            if count > 0:
                stages.append(_placed(node, start, start + count))
                start += count
        if start < NUM_LAYERS:
            return None
        planned = self._planned_model(stages, self.size, held, needs_room=False)
        kept = {
            (each.node_id, each.stage.shard.start_layer, each.stage.shard.end_layer)
            for each in planned.kept
        }
        fits = all(
            stage.num_bytes <= reports[stage.node_id].usable_bytes
            for stage in stages
            if (stage.node_id, stage.shard.start_layer, stage.shard.end_layer) not in kept
        )
        return PlanComparison(
            planned=replace(planned, needs_room=not fits),
            predicted=_prediction(
                [
                    (everything[each.node_id], each.shard.end_layer - each.shard.start_layer)
                    for each in stages
                ]
            ),
            in_force=_prediction(
                [
                    (everything[each.node_id], each.end_layer - each.start_layer)
                    for each in self.record.stages
                ]
            ),
        )

    def _offers(
        self, reports: Mapping[NodeId, ReportOfNode], freed: list[Holding]
    ) -> list[UnitOffer]:
        return [
            UnitOffer(
                node_id=node,
                unit_id=CPU_UNIT,
                usable_bytes=report.usable_bytes
                + sum(each.stage.num_bytes for each in freed if each.node_id == node),
            )
            for node, report in sorted(reports.items())
        ]

    def _planned_model(
        self, stages: Any, size: Any, held: list[Holding], *, needs_room: bool
    ) -> PlannedModel:
        self._planned = PlannedModel(
            quantization=self.size.quantization,
            arithmetic=self.size.arithmetic,
            arithmetic_note="",
            stages=tuple(
                PlannedStage(
                    node_id=stage.node_id,
                    unit_id=stage.unit_id,
                    plan=StagePlan(
                        shard=stage.shard,
                        size=size,
                        memory=MemoryPlan(
                            weights=(("toy", stage.num_bytes),),
                            cache_bytes=0,
                            rope_bytes=0,
                            scratch_bytes=0,
                            staging_bytes=0,
                        ),
                        read_bytes=stage.num_bytes,
                        product_formats=frozenset(),
                    ),
                )
                for stage in stages
            ),
            rejections=(),
            needs_room=needs_room,
            held=tuple(held),
        )
        return self._planned

    async def claim(self, above: Epoch, *, may_be_alone: bool) -> Grant | Refusal:
        """As ever, and noted."""
        if not self._agent().switches.has_quorum:
            may_be_alone = True
        result = await super().claim(above, may_be_alone=may_be_alone)
        if isinstance(result, Grant) and not self._agent().switches.has_quorum:
            result = self._grant = replace(result, has_quorum=True)
            self.record = msgspec.structs.replace(self.record, has_quorum=True)
        self._agent().note(f"claim above {above.number}: {result}")
        return result

    async def connect(self) -> None:
        """Have the stages connected, each to the one before and the one after."""
        process = self._agent().process
        own, stages, groups = process.node_id, self.record.stages, self.record.groups
        nodes = [own, *(stages[group[0]].node_id for group in groups), own]

        async def connect(number: int, member: int) -> None:
            group = groups[number]
            index = group[member]
            members = tuple(Peer(node_id=stages[each].node_id) for each in group)
            request = ConnectStage(
                deployment=self.record.deployment,
                connect=Connect(
                    epoch=self.record.epoch,
                    index=index,
                    preceding=Peer(node_id=nodes[number]),
                    following=Peer(node_id=nodes[number + 2]),
                    members=members if len(members) > 1 else (),
                    member=member,
                ),
            )
            try:
                await process.call(
                    stages[index].node_id, "stage.connect", encode(request), timeout_seconds=10.0
                )
            except CallError as error:
                raise EngineError(f"stage {index}: {error.message}") from error

        await asyncio.gather(
            *(
                connect(number, member)
                for number, group in enumerate(groups)
                for member in range(len(group))
            )
        )
        self._is_connected = True

    def pipeline_opener(self, on_first_result: Callable[[], None]) -> OpenPipeline:
        """Open the toy pipeline."""
        agent, record = self._agent(), self.record
        assert self._is_connected
        if not agent.switches.has_ledger:
            self._deployment.forget_sequences()

        def open_pipeline(on_outcome: OnOutcome, on_lost: OnOver) -> Any:
            has_result = False

            def watched(outcome: StepOutcome) -> None:
                nonlocal has_result
                on_outcome(outcome)
                if outcome.error is None and not has_result:
                    has_result = True
                    on_first_result()

            nodes = [stage.node_id for stage in record.stages]
            pipeline = ToyPipeline(
                agent.process,
                record.deployment,
                record.epoch,
                nodes,
                watched,
                on_lost,
                agent.disturb,
            )
            agent.pipelines[record.deployment, record.epoch] = pipeline
            return pipeline

        return open_pipeline


def _usable(
    reports: Mapping[NodeId, ReportOfNode],
    without: Collection[NodeId],
    left_out: Mapping[NodeUnitId, str],
) -> dict[NodeId, ReportOfNode]:
    return {
        node: report
        for node, report in reports.items()
        if not report.is_draining and node not in without and (node, CPU_UNIT) not in left_out
    }


def _grouped(stages: Sequence[PlacedStage], offers: Sequence[UnitOffer]) -> Iterator[PlacedStage]:
    """Have neighbours hold their layers together, if both have room for half of them."""
    room = {each.node_id: each.usable_bytes for each in offers}
    rest = list(stages)
    while rest:
        pair = rest[:2]
        half = sum(each.num_bytes for each in pair) // 2 + COST.process_bytes
        if len(pair) < 2 or any(room[each.node_id] < half for each in pair):
            yield rest.pop(0)
            continue
        first, last = pair
        whole = replace(first.shard, end_layer=last.shard.end_layer, has_head=last.shard.has_head)
        for member, each in enumerate(pair):
            part = GroupPart(member=member, shares=(1, 1))
            yield replace(each, shard=replace(whole, part=part), num_bytes=half)
        del rest[:2]


def _placed(node: NodeId, start: int, end: int) -> PlacedStage:
    shard = Shard(
        start_layer=start,
        end_layer=end,
        num_layers=NUM_LAYERS,
        has_embedding=start == 0,
        has_head=end == NUM_LAYERS,
    )
    ends = COST.embedding_bytes * (start == 0) + COST.head_bytes * (end == NUM_LAYERS)
    fixed = COST.scratch_bytes + COST.process_bytes
    return PlacedStage(
        node_id=node,
        unit_id=CPU_UNIT,
        shard=shard,
        num_bytes=sum(COST.layer_bytes[start:end]) + ends + fixed,
    )


def _prediction(stages: list[tuple[ReportOfNode, int]]) -> Prediction:
    """What stages of so many layers do on these nodes, at present."""
    seconds = sum(report.layer_seconds * count for report, count in stages)
    seconds += HOP_SECONDS * (len(stages) + 1)
    return Prediction(
        stages=(),
        entry_seconds=HOP_SECONDS,
        token_seconds=seconds,
        tokens_per_second=1 / seconds,
        first_token_seconds=seconds,
        prompt_tokens=64,
        num_streams=8,
        total_tokens_per_second=1 / seconds,
        steps_in_flight=1,
        bottleneck=None,
        margin=0.1,
    )


class ToyDrafts(InstantSource):
    """Drafters that know the toy model, and err more or less often by the seed of the request."""

    def open(self, sequence_id: SequenceId, request: SequenceRequest) -> Drafter:
        """See ``DraftSource``."""
        seed = request.sampling.seed
        draws = random.Random(f"{sequence_id} {seed}")
        return CheckedDrafter(
            partial(next_token, seed), draws, error=draws.choice((0.0, 0.1, 0.3, 1.0))
        )


class ToyDeployment(Deployment):
    """The deployment of production, with attempts on toy stages."""

    agent: Agent

    def _new_attempt(self) -> Attempt:
        return ToyAttempt(self, self._dependencies, self.record)

    def forget_sequences(self) -> None:
        """Lose the ledger, and the scheduler with it."""
        dispatcher = cast(Any, self._requests)._dispatcher
        dispatcher._ledger = Ledger()
        dispatcher._scheduler = Scheduler(dispatcher._limits, dispatcher._drafts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Of all agents of a run."""

    history: History
    switches: Switches
    duplicates: float  # the share of frames and results that come twice
    rebalance_policy: RebalancePolicy
    has_drafts: bool
    hub: Hub | None = None  # from where nodes get the weights, which none has
    disks: Disks = field(default_factory=dict)


async def _read_nothing(
    model: str, record: DeploymentRecord | None = None
) -> tuple[ReadModel, ModelProfile]:
    await asyncio.sleep(0.01)
    return _READ, _PROFILE


class ToyCoordination(Coordination):
    """The coordination of production, of toy deployments."""

    def __init__(self, agent: Agent, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.agent = agent
        cast(Any, self.planner).read = _read_nothing
        records = cast(Any, self.records)
        records.publish = partial(agent.publish, records.publish)
        records.claimed = partial(agent.claimed, records.claimed)

    def _make(self, record: DeploymentRecord, read: ReadModel, profile: ModelProfile) -> Deployment:
        clock = self.agent.clock
        around = cast(
            DeploymentDependencies,
            SimpleNamespace(
                membership=self.agent.process,
                cost_of=None,  # toy plans count nothing
                start_draft=None,
                rebalance_policy=self.agent.rebalance_policy,
                weights=None if self.agent.rules.hub is None else ToyWeights(),
            ),
        )
        deployment = ToyDeployment(
            record,
            profile,
            read.fingerprint,
            around,
            publish=self.records.publish,
            on_record=self.records.learn,
            clock=clock,
        )
        deployment.agent = self.agent
        requests = cast(Any, deployment)._requests
        dispatcher = requests._dispatcher
        requests._clock = dispatcher._clock = clock
        dispatcher._drafts = self.agent.drafts
        dispatcher._scheduler = Scheduler(dispatcher._limits, dispatcher._drafts)
        return deployment


class Agent(PlayedAgent):
    """One process of one node, from its start to its end."""

    def __init__(self, process: Process, rules: Rules, *, capacity: int, seed: str) -> None:
        self.rules = rules
        self.switches = rules.switches
        self.history = rules.history
        self.clock = process.network.loop.time
        self.pipelines: dict[tuple[DeploymentId, Epoch], ToyPipeline] = {}
        self.rebalance_policy = rules.rebalance_policy
        self.drafts = ToyDrafts() if rules.has_drafts else None
        self._duplicates = rules.duplicates
        self._draws = random.Random(seed)
        files = None
        if rules.hub is not None:
            files = ToyFiles(process, rules.disks.setdefault(process.node_id, set()), rules.hub)
        self.stages = StageHost(
            process,
            capacity,
            rules.history,
            rules.switches,
            self.disturb,
            None if files is None else files.get,
        )
        super().__init__(process, self.stages, partial(ToyCoordination, self))
        process.methods.register("toy.report", self._on_report)
        process.take = self._take

    def note(self, line: str) -> None:
        """Tell the history."""
        self.history.note(self.clock(), f"{self.node_id}: {line}")

    def disturb(self) -> float:
        """After how many seconds something comes once more; 0: never."""
        if self._draws.random() >= self._duplicates:
            return 0.0
        return self._draws.choice((0.001, 0.02, 0.3, 1.5))

    async def deploy(self, record: DeploymentRecord) -> None:
        """Deploy here."""
        deployment = self.coordination._make(record, _READ, _PROFILE)
        self.coordination.coordinated[record.deployment] = deployment
        await deployment.start()

    async def drain(self) -> None:
        """Let the others go on without this node; return when they do."""
        await self.leaving.drain()

    async def close(self) -> None:
        """End what is coordinated here, as an agent does that leaves."""
        await self.coordination.close()

    def publish(
        self,
        publish: Callable[[DeploymentRecord, bool], None],
        record: DeploymentRecord,
        is_progress: bool = False,
    ) -> None:
        status = record.status
        self.note(f"{record.epoch.number}.{record.revision} {status.state.value} {status.reason}")
        publish(record, is_progress)

    def claimed(self, claimed: Callable[[Claim], ClaimAnswer], claim: Claim) -> ClaimAnswer:
        """As ever, unless everything is agreed to."""
        return claimed(claim) if self.switches.has_quorum else ClaimAnswer(is_granted=True)

    def _left(self, node: NodeId) -> None:
        self.note(f"{node} left")
        self.stages.left(node)
        super()._left(node)

    async def _on_report(self, payload: bytes) -> bytes:
        return encode(
            ReportOfNode(
                usable_bytes=self.stages.free_bytes,
                is_draining=self.coordination.is_draining,
                held=tuple(self.stages.held()),
                layer_seconds=STEP_SECONDS_PER_LAYER * self.stages.slowness,
            )
        )

    def _take(self, message: object) -> None:
        match message:
            case Frame():
                self.stages.take(message)
            case Result():
                pipeline = self.pipelines.get((message.deployment, message.epoch))
                if pipeline is not None:
                    pipeline.take(message.outcome)
            case Slice():
                self.stages.take_slice(message)
            case Check():
                self.stages.check()

    async def serve(self, deployment: DeploymentId, answer: Answer) -> None:
        """Answer a client of this node, wherever the model is coordinated, to the end.

        A client that is refused because the node leaves has lost its gateway.
        """
        changes = self.coordination.records.changes
        while (record := self.coordination.records.get(deployment)) is None:
            await changes.wait()
        try:
            stream = tokens_of(partial(self.relaying.start, record, answer.request))
            async with aclosing(stream):
                async for token in stream:
                    given = (token.position, token.token, token.logprob)
                    self.history.given(answer, given, epoch_of(token))
            self.history.ended(answer, "complete", self.clock())
        except PotluckError as error:
            is_leaving = self.coordination.is_draining and not answer.tokens
            self.history.ended(
                answer, "gateway lost" if is_leaving else error.message, self.clock()
            )
