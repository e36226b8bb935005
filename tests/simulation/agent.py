"""An agent around the coordinator's own code: its deployments, its registry, its clients.

What is played here is what has real sockets, files or processes; ``Deployment``, ``Answering``, the
state machine, claims, plans around what is held, the scheduler, the ledger and the registry are
those that run in production.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from simulation.history import VOCAB_SIZE, Answer, History
from simulation.network import Process
from simulation.stages import (
    NUM_LAYERS,
    Check,
    Frame,
    Result,
    StageHost,
    Switches,
    ToyPipeline,
    epoch_of,
)

from potluck.catalog import ModelDescription
from potluck.cluster.agent.registry import Registry
from potluck.cluster.calls import (
    CPU_UNIT,
    Claim,
    ClaimAnswer,
    ConnectStage,
    DeploymentRecord,
    DeploymentState,
    Generate,
    GenerateAnswer,
    GenerateFailure,
    HeldStage,
    ModelFingerprint,
    StageLost,
    Tokens,
    Vacate,
    decode,
    encode,
)
from potluck.cluster.coordinator.answering import OnOver, OpenPipeline
from potluck.cluster.coordinator.attempt import Attempt, Surroundings
from potluck.cluster.coordinator.claiming import Grant, Refusal
from potluck.cluster.coordinator.deployment import Deployment
from potluck.cluster.coordinator.keeping import Holding, is_of_size, keep_and_fill, kept
from potluck.cluster.coordinator.left_out import NodeUnitId
from potluck.cluster.coordinator.planning import PlannedModel, PlannedStage
from potluck.cluster.worker.messages import Connect, Peer
from potluck.errors import (
    CallError,
    EngineError,
    MovedError,
    NodeLostError,
    PotluckError,
)
from potluck.loading import StagePlan
from potluck.placement import place
from potluck.serving.pipeline import OnOutcome, StepOutcome
from potluck.types.cluster import DeploymentId, Epoch, ModelCost, NodeId, UnitOffer
from potluck.types.memory import MemoryPlan
from potluck.types.quantization import Quantization
from potluck.types.sequence import (
    NOTHING_COMMITTED,
    CommittedToken,
    Continuation,
    SequenceRequest,
)

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
_SETTLE_SECONDS = 0.2
_TURN_SECONDS = 0.5
_LOOK_SECONDS = 0.5
_DRAIN_SECONDS = 5.0
"""For clients of a node that leaves; what cannot be placed without it is not finished at all."""

_DESCRIPTION = cast(
    ModelDescription,
    SimpleNamespace(
        config=SimpleNamespace(
            vocab_size=VOCAB_SIZE, hidden_size=8, num_layers=NUM_LAYERS, max_context_tokens=256
        )
    ),
)


class ReportOfNode(msgspec.Struct, frozen=True, kw_only=True):
    """As much of a node's report as a plan asks for."""

    usable_bytes: int
    is_draining: bool
    held: tuple[HeldStage, ...]


def new_record(
    deployment: str, coordinator: NodeId, *, recovery_wait_seconds: float
) -> DeploymentRecord:
    """Of a deployment that is about to be made."""
    return DeploymentRecord(
        deployment=DeploymentId(deployment),
        epoch=Epoch(number=0, coordinator=coordinator),
        revision=0,
        model="toy",
        model_id=deployment,
        created=0,
        context_tokens=256,
        cache_tokens=384,
        num_layers=NUM_LAYERS,
        quantization=Quantization.NONE,
        may_quantize=False,
        is_mapped=False,
        state=DeploymentState.LOADING,
        recovery_wait_seconds=recovery_wait_seconds,
    )


class ToyAttempt(Attempt):
    """An attempt that plans on toy reports and connects toy stages; it claims and loads as ever."""

    def __init__(self, agent: Agent, around: Surroundings, record: DeploymentRecord) -> None:
        super().__init__(around, record, _DESCRIPTION, ModelFingerprint(digest="toy"))
        self._agent = agent
        self._is_connected = False

    async def plan(
        self, without: Collection[NodeId], left_out: Mapping[NodeUnitId, str]
    ) -> PlannedModel:
        """As ``plan_model``: around what is held, or anew."""
        process = self._agent.process
        nodes = sorted(process.nodes() | {process.node_id})
        reports: dict[NodeId, ReportOfNode] = {}

        async def ask(node: NodeId) -> None:
            try:
                answer = await process.call(node, "toy.report", b"")
            except CallError:
                return
            report = decode(answer, ReportOfNode)
            if not report.is_draining and node not in without and (node, CPU_UNIT) not in left_out:
                reports[node] = report

        await asyncio.gather(*(ask(node) for node in nodes))
        held = [
            Holding(node_id=node, stage=stage)
            for node in sorted(reports)
            for stage in reports[node].held
            if stage.deployment == self.record.deployment
        ]
        size = self.size.of_stage
        keeping = kept([each for each in held if is_of_size(each.stage, size)], NUM_LAYERS)
        for needs_room in (False, True):
            freed = [each for each in held if each not in keeping] if needs_room else []
            plan = keep_and_fill(keeping, self._offers(reports, freed), COST)
            if plan is not None:
                return self._planned_model(plan.stages, size, held, needs_room=needs_room)
        plan = place(self._offers(reports, held), COST)
        return self._planned_model(plan.stages, size, held, needs_room=bool(held))

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
        if not self._agent.switches.has_quorum:
            may_be_alone = True
        result = await super().claim(above, may_be_alone=may_be_alone)
        self._agent.note(f"claim above {above.number}: {result}")
        return result

    async def connect(self) -> None:
        """Have the stages connected, each to the one before and the one after."""
        process = self._agent.process
        own, stages = process.node_id, self.record.stages
        nodes = [own, *(stage.node_id for stage in stages), own]

        async def connect(index: int) -> None:
            request = ConnectStage(
                deployment=self.record.deployment,
                connect=Connect(
                    epoch=self.record.epoch,
                    index=index,
                    preceding=Peer(node_id=nodes[index]),
                    following=Peer(node_id=nodes[index + 2]),
                ),
            )
            try:
                await process.call(
                    stages[index].node_id, "stage.connect", encode(request), timeout_seconds=10.0
                )
            except CallError as error:
                raise EngineError(f"stage {index}: {error.message}") from error

        await asyncio.gather(*(connect(index) for index in range(len(stages))))
        self._is_connected = True

    def pipeline_opener(self, on_first_result: Callable[[], None]) -> OpenPipeline:
        """Open the toy pipeline."""
        agent, record = self._agent, self.record
        assert self._is_connected

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


class ToyDeployment(Deployment):
    """The deployment of production, with attempts on toy stages."""

    agent: Agent

    def _new_attempt(self) -> Attempt:
        return ToyAttempt(self.agent, self._around, self.record)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Of all agents of a run."""

    history: History
    switches: Switches
    duplicates: float  # the share of frames and results that come twice


class Agent:
    """One process of one node, from its start to its end."""

    def __init__(self, process: Process, rules: Rules, *, capacity: int, seed: str) -> None:
        self.process = process
        self.node_id = process.node_id
        self.rules = rules
        self.switches = rules.switches
        self.history = rules.history
        self.registry = Registry()
        self.coordinated: dict[DeploymentId, Deployment] = {}
        self.is_draining = False
        self._draws = random.Random(seed)
        self.pipelines: dict[tuple[DeploymentId, Epoch], ToyPipeline] = {}
        self.stages = StageHost(process, capacity, rules.history, rules.switches, self.disturb)
        self.num_clients = 0
        self._promised: dict[DeploymentId, Epoch] = {}
        self._awaiting: set[DeploymentId] = set()
        process.on_join, process.on_leave = self._joined, self._left
        process.take = self._take
        process.handlers |= {
            "toy.report": self._on_report,
            "toy.sees": self._on_sees,
            "deployment.put": self._on_put,
            "deployment.claim": self._on_claim,
            "deployment.vacate": self._on_vacate,
            "stage.lost": self._on_stage_lost,
        }
        process.streams |= {
            "deployment.generate": self._on_generate,
            "toy.relay": self._on_relay,
        }

    def note(self, line: str) -> None:
        """Tell the history."""
        self.history.note(self.process.network.loop.time(), f"{self.node_id}: {line}")

    def disturb(self) -> float:
        """After how many seconds something comes once more; 0: never."""
        if self._draws.random() >= self.rules.duplicates:
            return 0.0
        return self._draws.choice((0.001, 0.02, 0.3, 1.5))

    async def deploy(self, record: DeploymentRecord) -> None:
        """Deploy here."""
        deployment = self._make(record)
        self.coordinated[record.deployment] = deployment
        await deployment.start()

    def _make(self, record: DeploymentRecord) -> Deployment:
        around = cast(Surroundings, SimpleNamespace(membership=self.process, step_seconds=3.0))
        made = type("Made", (ToyDeployment,), {"agent": self})
        deployment: Deployment = made(
            record,
            _DESCRIPTION,
            ModelFingerprint(digest="toy"),
            around,
            publish=self._publish,
            heard=self.heard,
            clock=self.process.network.loop.time,
        )
        cast(Any, deployment)._answering._clock = self.process.network.loop.time
        return deployment

    # Records.

    def heard(self, record: DeploymentRecord) -> None:
        """News of a deployment."""
        registry = self.registry.put(record)
        if registry is self.registry:
            return
        self.registry = registry
        mine = self.coordinated.get(record.deployment)
        if (
            mine is not None
            and record.epoch.coordinator != self.node_id
            and record.supersedes(mine.record)
        ):
            self.note(f"gives way to {record.epoch}")
            del self.coordinated[record.deployment]
            self._spawn(mine.close(MovedError("another node goes on")))
        self.stages.supersede(record.deployment, record.epoch)
        self._look_for_orphans()

    def _publish(self, record: DeploymentRecord) -> None:
        self.note(f"{record.epoch.number}.{record.revision} {record.state.value} {record.reason}")
        self.heard(record)
        payload = encode(record)
        for node in sorted(self.process.nodes()):
            self._spawn(self._tell(node, payload))

    async def _tell(self, node: NodeId, payload: bytes) -> None:
        try:
            await self.process.call(node, "deployment.put", payload)
        except CallError:
            return

    async def _on_put(self, caller: NodeId, payload: bytes) -> bytes:
        self.heard(decode(payload, DeploymentRecord))
        return b""

    # Claims and takeovers.

    async def _on_claim(self, caller: NodeId, payload: bytes) -> bytes:
        claim = decode(payload, Claim)
        return encode(self._answer_to(claim))

    def _answer_to(self, claim: Claim) -> ClaimAnswer:
        record = self.registry.records.get(claim.deployment)
        promised = self._promised.get(claim.deployment)
        seen = [] if record is None else [record.epoch]
        if promised is not None and promised != claim.epoch:  # it may ask again
            seen.append(promised)
        highest = max(seen, default=None)
        if not self.switches.has_quorum:
            return ClaimAnswer(is_granted=True, highest=highest)
        later = record if record is not None and record.epoch > claim.known else None
        if highest is not None and claim.epoch <= highest:
            return ClaimAnswer(
                is_granted=False, reason="a higher epoch is known", highest=highest, record=later
            )
        if record is not None:
            coordinator = record.epoch.coordinator
            is_seen = coordinator in self.process.nodes() or (
                coordinator == self.node_id and claim.deployment in self.coordinated
            )
            if is_seen and coordinator != claim.epoch.coordinator:
                return ClaimAnswer(
                    is_granted=False,
                    reason=f"node {coordinator} coordinates it",
                    highest=highest,
                    record=later,
                )
        self._promised[claim.deployment] = claim.epoch
        return ClaimAnswer(is_granted=True, highest=highest)

    def _look_for_orphans(self) -> None:
        for record in self.registry.live():
            if self._is_orphan(record) and record.deployment not in self._awaiting:
                self._awaiting.add(record.deployment)
                self._spawn(self._await_turn(record.deployment))

    def _is_orphan(self, record: DeploymentRecord | None) -> bool:
        if record is None or record.state is DeploymentState.REMOVED or self.is_draining:
            return False
        if record.deployment in self.coordinated:
            return False
        return record.epoch.coordinator not in self.process.nodes()

    async def _await_turn(self, deployment: DeploymentId) -> None:
        try:
            turn = sum(node < self.node_id for node in self.process.nodes())
            await asyncio.sleep(_SETTLE_SECONDS + turn * _TURN_SECONDS)
            while True:
                record = self.registry.records.get(deployment)
                if record is None or not self._is_orphan(record):
                    return
                if not await self._is_seen_by_others(record.epoch.coordinator):
                    break
                await asyncio.sleep(_LOOK_SECONDS)
            record = self.registry.records[deployment]
            if not self._is_orphan(record):
                return
            self.note("takes over")
            candidate = self._make(record)
            self.coordinated[deployment] = candidate
            candidate.resume()
            while candidate.record.epoch == record.epoch:
                await asyncio.sleep(_LOOK_SECONDS)
                if self.coordinated.get(deployment) is not candidate:
                    return
                coordinator = candidate.record.epoch.coordinator
                if coordinator != self.node_id and await self._is_seen_by_others(coordinator):
                    self._withdraw(deployment, candidate)
                    return
        finally:
            self._awaiting.discard(deployment)
            self.process.network.loop.call_later(
                _LOOK_SECONDS, self.process.run, self._look_for_orphans
            )

    def _withdraw(self, deployment: DeploymentId, candidate: Deployment) -> None:
        if self.coordinated.get(deployment) is candidate:
            self.note("withdraws")
            del self.coordinated[deployment]
            self._spawn(candidate.close(MovedError("its coordinator is back")))

    async def _is_seen_by_others(self, coordinator: NodeId) -> bool:
        async def ask(node: NodeId) -> bool:
            try:
                answer = await self.process.call(
                    node, "toy.sees", coordinator.encode(), timeout_seconds=1.0
                )
            except CallError:
                return False
            return answer == b"yes"

        if coordinator == self.node_id:
            return False  # it was this one, before it was started anew
        if coordinator in self.process.nodes():
            return True
        answers = await asyncio.gather(*(ask(node) for node in sorted(self.process.nodes())))
        return any(answers)

    async def _on_sees(self, caller: NodeId, payload: bytes) -> bytes:
        return b"yes" if NodeId(payload.decode()) in self.process.nodes() else b"no"

    # Members.

    def _joined(self, node: NodeId) -> None:
        for key, deployment in list(self.coordinated.items()):
            coordinator = deployment.record.epoch.coordinator
            if coordinator == node:
                self._withdraw(key, deployment)  # it never had an epoch of its own
            else:
                deployment.node_joined()
        for record in self.registry.records.values():
            self._spawn(self._tell(node, encode(record)))

    def _left(self, node: NodeId) -> None:
        self.note(f"{node} left")
        self.stages.left(node)
        for deployment in list(self.coordinated.values()):
            deployment.node_left(node)
        self._look_for_orphans()

    async def _on_report(self, caller: NodeId, payload: bytes) -> bytes:
        return encode(
            ReportOfNode(
                usable_bytes=self.stages.free_bytes,
                is_draining=self.is_draining,
                held=tuple(self.stages.held()),
            )
        )

    async def _on_stage_lost(self, caller: NodeId, payload: bytes) -> bytes:
        lost = decode(payload, StageLost)
        deployment = self.coordinated.get(lost.deployment)
        if deployment is not None:
            deployment.stage_lost(lost)
        return b""

    async def _on_vacate(self, caller: NodeId, payload: bytes) -> bytes:
        request = decode(payload, Vacate)
        deployment = self.coordinated.get(request.deployment)
        if deployment is not None:
            await deployment.vacate(request.node_id)
        return b""

    async def drain(self) -> None:
        """Let the others go on without this node; return when they do."""
        self.is_draining = True
        for record in self.registry.live():
            if record.epoch.coordinator == self.node_id:
                continue
            try:
                await self.process.call(
                    record.epoch.coordinator,
                    "deployment.vacate",
                    encode(Vacate(deployment=record.deployment, node_id=self.node_id)),
                    timeout_seconds=90.0,
                )
            except CallError:
                continue
        deadline = self.process.network.loop.time() + _DRAIN_SECONDS
        while self.num_clients and self.process.network.loop.time() < deadline:
            await asyncio.sleep(0.1)

    def _take(self, message: object) -> None:
        match message:
            case Frame():
                self.stages.take(message)
            case Result():
                pipeline = self.pipelines.get((message.deployment, message.epoch))
                if pipeline is not None:
                    pipeline.take(message.step, message.sampled)
            case Check():
                self.stages.check()

    # Clients, and other gateways.

    async def serve(self, deployment: DeploymentId, answer: Answer) -> None:
        """Answer a client of this node, wherever the model is coordinated, to the end."""
        self.num_clients += 1
        now = self.process.network.loop.time
        request, output, num_scored = answer.request, list[int](), 0
        waiting_since: float | None = None
        try:
            while True:
                record = self.registry.records.get(deployment)
                continuation = Continuation(output_tokens=tuple(output), num_scored=num_scored)
                try:
                    stream = self._tokens_of(record, deployment, request, continuation)
                    async with aclosing(stream):
                        async for token in stream:
                            waiting_since = None
                            self.history.given(
                                answer,
                                (token.position, token.token, token.logprob),
                                epoch_of(token),
                            )
                            if token.position < len(request.prompt_tokens):
                                num_scored += 1
                            else:
                                output.append(token.token)
                            if token.finish_reason is not None:
                                self.history.ended(answer, "complete", now())
                                return
                except (MovedError, NodeLostError):
                    pass
                except PotluckError as error:
                    self.history.ended(answer, error.message, now())
                    return
                if not self.switches.has_ledger:
                    output, num_scored = [], 0
                waiting_since = now() if waiting_since is None else waiting_since
                wait = 60.0 if record is None else record.recovery_wait_seconds
                if now() - waiting_since > wait:
                    self.history.ended(answer, "no coordinator is in reach", now())
                    return
                await asyncio.sleep(0.1)
        finally:
            self.num_clients -= 1

    async def _tokens_of(
        self,
        record: DeploymentRecord | None,
        deployment: DeploymentId,
        request: SequenceRequest,
        continuation: Continuation,
    ) -> AsyncGenerator[CommittedToken, None]:
        mine = self.coordinated.get(deployment)
        if mine is not None:
            async with aclosing(mine.generate(request, continuation)) as stream:
                async for token in stream:
                    yield token
            return
        if record is None:
            raise MovedError("nobody coordinates it")
        payload = encode(
            Generate(deployment=deployment, request=request, continuation=continuation)
        )
        coordinator, method = record.epoch.coordinator, "deployment.generate"
        target = coordinator
        if coordinator not in self.process.nodes():
            target = await self._relay_to(coordinator)
            method = "toy.relay"
        async with aclosing(self.process.call_stream(target, method, payload)) as parts:
            async for part in parts:
                answer: GenerateAnswer = decode(part, GenerateAnswer)
                if isinstance(answer, GenerateFailure):
                    raise answer.error()
                for token in answer.tokens:
                    yield token

    async def _relay_to(self, coordinator: NodeId) -> NodeId:
        for node in sorted(self.process.nodes()):
            try:
                answer = await self.process.call(
                    node, "toy.sees", coordinator.encode(), timeout_seconds=1.0
                )
            except CallError:
                continue
            if answer == b"yes":
                return node
        raise MovedError("the coordinator is out of reach")

    async def _on_generate(self, caller: NodeId, payload: bytes) -> AsyncGenerator[bytes, None]:
        request = decode(payload, Generate)
        deployment = self.coordinated.get(request.deployment)
        continuation = request.continuation if self.switches.has_ledger else NOTHING_COMMITTED
        try:
            if deployment is None:
                raise MovedError("it is not coordinated here")
            async with aclosing(deployment.generate(request.request, continuation)) as stream:
                async for token in stream:
                    yield encode(Tokens(tokens=(token,)))
        except PotluckError as error:
            yield encode(GenerateFailure.of(error))

    async def _on_relay(self, caller: NodeId, payload: bytes) -> AsyncGenerator[bytes, None]:
        request = decode(payload, Generate)
        record = self.registry.records.get(request.deployment)
        try:
            if record is None:
                raise MovedError("it is not known here")
            stream = self.process.call_stream(
                record.epoch.coordinator, "deployment.generate", payload
            )
            async with aclosing(stream):
                async for part in stream:
                    yield part
        except NodeLostError:
            yield encode(GenerateFailure.of(MovedError("the coordinator is lost")))

    def _spawn(self, work: Any) -> None:
        asyncio.get_running_loop().create_task(work)
