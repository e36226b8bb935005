"""One attempt of a deployment to serve: from its plan to a pipeline over the plan's stages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec

from potluck.cluster.coordinator.claiming import Grant, Refusal, claim
from potluck.cluster.coordinator.overdue import OverdueSteps
from potluck.cluster.coordinator.pipeline import RemotePipeline
from potluck.cluster.coordinator.request_queue import OnOver, OpenPipeline
from potluck.cluster.coordinator.spares import SpareCandidate
from potluck.cluster.coordinator.starting import connect_stages, doing_of, load_stages, stage_spec
from potluck.cluster.coordinator.survey import plan_model
from potluck.cluster.coordinator.ways import ANY_WAY, checked_reachability, known_reachability
from potluck.cluster.coordinator.weights import ModelWeights, is_lacked, prepare_weights
from potluck.cluster.network.edges.edge import IncomingEdge, OutgoingEdge
from potluck.cluster.network.edges.listener import EdgeEndpoint
from potluck.cluster.network.membership import Membership
from potluck.cluster.wire.worker_messages import Loaded, Peer, Progress
from potluck.engines.backends import CostOf
from potluck.placement.costs import Counting
from potluck.placement.links import LinkTable
from potluck.placement.planned import (
    PlannedModel,
    limits_of,
    mapped_memory,
    plan_record,
    size_of,
)
from potluck.placement.rebalancing import PlanComparison, RebalancePolicy, compared
from potluck.placement.stage_reuse import Holding
from potluck.scheduling.frame_limits import sequences_in_step
from potluck.scheduling.limits import SchedulerLimits
from potluck.scheduling.pipeline import OnOutcome, StepOutcome
from potluck.types.arithmetic import Arithmetic
from potluck.types.choices import Objective
from potluck.types.cluster import DeploymentId, Epoch, NodeId, NodeUnitId
from potluck.types.deployment import (
    DeploymentRecord,
    LoadingStage,
    ModelFingerprint,
    StageRecord,
    TransferRecord,
    Verification,
)
from potluck.types.model import ModelConfig
from potluck.types.sequence import Cancel, OnUpdate, SequenceRequest
from potluck.types.stage import StageSize

_log = logging.getLogger(__name__)


StartDraft = Callable[[DeploymentId, SequenceRequest, OnUpdate], Cancel]
"""Lets a small model continue a sequence; for use in the agent's loop. Raises ``PotluckError``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentDependencies:
    """The dependencies of every deployment of an agent.

    For ``step_seconds`` see ``AgentConfig``. ``cost_of`` returns the memory cost of engines.
    Deployments move to better plans according to the ``rebalance_policy``. ``start_draft`` requests
    text from another deployment.
    """

    membership: Membership
    endpoint: EdgeEndpoint
    step_seconds: float
    cost_of: CostOf
    start_draft: StartDraft | None = None
    rebalance_policy: RebalancePolicy = field(default_factory=RebalancePolicy)


class Attempt:
    """One attempt to serve. Call its methods in the order in which they appear here, each once.

    ``record`` is the deployment's record from before the attempt, and after :meth:`claim` the
    record with the new epoch and the stages of the plan.
    """

    def __init__(
        self,
        dependencies: DeploymentDependencies,
        record: DeploymentRecord,
        config: ModelConfig,
        counting: Counting,
        fingerprint: ModelFingerprint,
        weights: ModelWeights | None,
    ) -> None:
        self.record = record
        self._weights = weights
        self._dependencies = dependencies
        self._counting = counting
        self._fingerprint = fingerprint
        self.size: StageSize = size_of(config, record)
        self._edge_limits = limits_of(config, self.size)
        self._planned: PlannedModel | None = None
        self._grant: Grant | None = None
        self._addresses: list[Peer] = []
        self._kept_blocks: dict[int, str] = {}
        self._ways = ANY_WAY
        self._edges: tuple[OutgoingEdge, IncomingEdge] | None = None

    @property
    def limits(self) -> SchedulerLimits:
        """Return the limits for the scheduler of the pipeline."""
        return SchedulerLimits(
            num_blocks=self.size.num_blocks,
            num_states=self.size.num_states,
            context_tokens=self.size.context_tokens,
            max_step_tokens=self.size.max_step_tokens,
            max_step_sequences=sequences_in_step(self.size.max_step_tokens),
            max_steps_in_flight=self._steps_in_flight,
            has_prefix_cache=self.record.spec.prefix_cache,
            target_step_seconds=self.record.spec.target_step_ms / 1000,
            disk_salt=_disk_salt(self.record, self._kept_blocks, self._fingerprint),
        )

    @property
    def _steps_in_flight(self) -> int:
        """Return one per stage, whether or not its unit holds several; for a plan for several
        streams, the number that is best for them.
        """
        prediction = self.record.status.plan.prediction
        if self.record.spec.objective is Objective.THROUGHPUT and prediction is not None:
            return max(1, prediction.steps_in_flight)
        return len(self.record.groups) if self._addresses else 1

    async def plan(
        self,
        without: Collection[NodeId],
        left_out: Mapping[NodeUnitId, str],
        *,
        is_first: bool = False,
    ) -> PlannedModel:
        """Place the model on the available nodes. Raises the same errors as ``plan_model``.

        A deployment that has not served yet (``is_first``) never departs from the user's layout or
        from a distribution by memory, even if stages of an earlier attempt cannot stay then.
        """
        record = self.record
        is_prescribed = bool(record.spec.layout) or record.spec.objective is Objective.MEMORY
        planned = await self._make_plan(
            without,
            left_out,
            self.size,
            may_quantize=record.spec.quantization is None,
            from_scratch=is_first and is_prescribed,
        )
        if record.status.plan.arithmetic is Arithmetic.EXACT:
            # The gain of another arithmetic is shown by plans, not by deployments that do not want
            # it.
            planned = replace(planned, arithmetic_note="")
        self._planned = planned
        return planned

    def adopt(self, planned: PlannedModel) -> None:
        """Use a plan that was just made for this deployment, instead of :meth:`plan`."""
        self._planned = planned

    async def alternative(
        self, without: Collection[NodeId], left_out: Mapping[NodeUnitId, str]
    ) -> PlanComparison | None:
        """Return the best plan as if nothing was loaded; None if it cannot be compared.

        Weights and arithmetic do not change. Raises the same errors as ``plan_model``.
        """
        size = replace(self.size, quantization=self.record.status.plan.quantization)
        planned = await self._make_plan(
            without, left_out, size, may_quantize=False, from_scratch=True
        )
        return compared(planned, self.record)

    async def _make_plan(
        self,
        without: Collection[NodeId],
        left_out: Mapping[NodeUnitId, str],
        size: StageSize,
        *,
        may_quantize: bool,
        from_scratch: bool,
    ) -> PlannedModel:
        return await plan_model(
            self._dependencies.membership,
            self.record,
            self._counting,
            self._fingerprint,
            size,
            may_quantize=may_quantize,
            left_out=left_out,
            leaving=without,
            from_scratch=from_scratch,
            weights=self._weights,
        )

    async def claim(self, above: Epoch, *, may_be_alone: bool) -> Grant | Refusal:
        """Claim an epoch for the plan."""
        planned = self._the_plan
        result = await claim(
            self._dependencies.membership,
            self.record,
            above=above,
            required={stage.node_id for stage in planned.stages},
            may_be_alone=may_be_alone,
        )
        if isinstance(result, Grant):
            self._grant = result
            self.size = replace(
                self.size, quantization=planned.quantization, arithmetic=planned.arithmetic
            )
            record = self.record.with_status(plan=plan_record(planned))
            self.record = msgspec.structs.replace(
                record.with_files(own_files=planned.own_files, transfers=()),
                epoch=result.epoch,
                voters=result.voters,
                has_quorum=result.has_quorum,
            )
        return result

    async def load(
        self, on_progress: Callable[[str, int, int], None], on_loaded: Callable[[], None]
    ) -> None:
        """Load every stage that is not held.

        Before that, nodes that fetch files by content receive the sources. Raises the same errors
        as ``load_stages`` and ``prepare_weights``, and those of hashing the model's files.
        """
        await self._prepare(on_progress)

        def loaded(index: int, stage: Loaded) -> None:
            self._kept_blocks[index] = stage.kept_blocks
            # Nothing is transferred for it any more, but its node's last report is older than the
            # last chunk. If another stage of the node is still loading, it reports again.
            node_id = self.record.stages[index].node_id
            transfers = tuple(
                each for each in self.record.status.files.transfers if each.node_id != node_id
            )
            self.record = self.record.with_files(transfers=transfers).with_stage(
                index,
                memory=stage.memory,
                read_bytes=stage.read_bytes,
                load_seconds=stage.seconds,
                progress=None,
            )
            on_loaded()

        self._addresses = await load_stages(
            self._dependencies.membership,
            self.record,
            self.size,
            on_progress,
            loaded,
            self._progressed,
        )
        without = _stage_without_disk(self.record, self._kept_blocks)
        if _wants_disk(self.record) and without is not None:
            _log.warning(
                "%s stores no cache blocks on disk, because node %s does not",
                self.record.model_id,
                without.node_id,
            )

    async def _prepare(self, on_progress: Callable[[str, int, int], None]) -> None:
        weights, planned = self._weights, self._the_plan
        stages = self.record.stages
        if weights is None or all(stage.node_id in planned.own_files for stage in stages):
            return
        if self.record.status.files.manifest is None:
            manifest = await weights.manifest(partial(on_progress, "hashing"))
            self.record = self.record.with_files(manifest=manifest)
        lacking = [
            (stage.node_id, self.record.shard(index))
            for index, (stage, planned_stage) in enumerate(zip(stages, planned.stages, strict=True))
            if stage.node_id not in planned.own_files
            and not any(map(planned_stage.is_held_as, planned.held))
        ]
        if lacking:
            self.record = self.record.with_files(verification=Verification.PENDING)
        await prepare_weights(
            self._dependencies.membership, self.record, weights, lacking, self.links
        )

    async def identify_files(self) -> bool:
        """Hash the model's files if a member can answer clients only with files of others.

        Return whether the record has changed. Raises the errors of hashing.
        """
        if self._weights is None or self.record.status.files.manifest is not None:
            return False
        if not await is_lacked(self._dependencies.membership, self.record):
            return False
        manifest = await self._weights.manifest()
        self.record = self.record.with_files(manifest=manifest)
        return True

    def note_transfers(self, transfers: tuple[TransferRecord, ...]) -> None:
        """Record how much of the model's files nodes fetched in total."""
        self.record = self.record.with_files(transfers=transfers)

    def note_verification(self, verification: Verification) -> None:
        """Record what is known about the integrity of the model's files."""
        self.record = self.record.with_files(verification=verification)

    def _progressed(self, index: int, progress: Progress) -> None:
        """Take note of how far a stage is, and its node with files that it gets by content."""
        node_id, transfers = self.record.stages[index].node_id, self.record.status.files.transfers
        if progress.transfer is not None:
            others = [each for each in transfers if each.node_id != node_id]
            own = TransferRecord(node_id=node_id, transfer=progress.transfer)
            transfers = tuple(sorted((*others, own), key=lambda each: each.node_id))
        loading = LoadingStage(
            doing=doing_of(progress),
            done_bytes=progress.done_bytes,
            total_bytes=progress.total_bytes,
        )
        self.record = self.record.with_files(transfers=transfers).with_stage(
            index, progress=loading
        )

    @property
    def links(self) -> LinkTable:
        """Return the links that the plan is based on."""
        request = self._the_plan.request
        return LinkTable() if request is None else request.links

    async def connect(self) -> None:
        """Connect the stages: from here on, no lower epoch computes."""
        dependencies = self._dependencies
        if any(node != dependencies.membership.node_id for node in self._nodes):
            self._ways = await known_reachability(dependencies.membership, self._nodes)
        self._edges = await connect_stages(
            dependencies.membership,
            dependencies.endpoint,
            self.record,
            self._edge_limits,
            self._addresses,
            ways=self._ways,
        )

    async def closed_ways(self) -> tuple[str, ...]:
        """Return why :meth:`connect` failed, one line for each pair of nodes.

        The nodes try to connect to each other now. A pair that was known before explains nothing.
        """
        ways = await checked_reachability(self._dependencies.membership, self._nodes)
        found = ways.closed - self._ways.closed
        return tuple(f"node {a} cannot connect to node {b}" for a, b in sorted(found))

    @property
    def _nodes(self) -> list[NodeId]:
        """Return the nodes between which there are edges, each once."""
        own = self._dependencies.membership.node_id
        return sorted({own, *(stage.node_id for stage in self.record.stages)})

    def pipeline_opener(self, on_first_result: Callable[[], None]) -> OpenPipeline:
        """Return what opens the pipeline over the edges and then owns them; for use in the loop.

        ``on_first_result`` is called once, on a thread of the pipeline.
        """
        if self._edges is None:
            raise RuntimeError("the stages are not connected")
        (outgoing, incoming), self._edges = self._edges, None

        def open_pipeline(on_outcome: OnOutcome, on_lost: OnOver) -> RemotePipeline:
            has_result = False

            def watched(outcome: StepOutcome) -> None:
                nonlocal has_result
                on_outcome(outcome)
                if outcome.error is None and not has_result:
                    has_result = True
                    on_first_result()

            overdue = OverdueSteps(self._dependencies.membership, self.record, on_lost)
            step_seconds = self._dependencies.step_seconds
            return RemotePipeline(
                outgoing, incoming, watched, on_lost, overdue.ask, step_seconds=step_seconds
            )

        return open_pipeline

    def close(self) -> None:
        """Close the edges unless a pipeline owns them. Idempotent."""
        edges, self._edges = self._edges, None
        for edge in edges or ():
            edge.close()

    def placed(self, record: DeploymentRecord) -> DeploymentRecord:
        """Return ``record`` with the epoch and the stages of this attempt, if an epoch was
        claimed.
        """
        if self._grant is None:
            return record
        own = self.record
        is_same = record.epoch == own.epoch
        successor = record.status.successor if is_same else None
        return msgspec.structs.replace(
            record.with_status(plan=own.status.plan, files=own.status.files, successor=successor),
            epoch=own.epoch,
            revision=record.revision if is_same else 0,
            voters=record.voters if is_same else own.voters,
            has_quorum=own.has_quorum,
        )

    @property
    def kept(self) -> tuple[Holding, ...]:
        """Return the stages of the plan that workers already hold."""
        return self._the_plan.kept

    @property
    def stages(self) -> tuple[Holding, ...]:
        """Return every stage of the plan as its worker holds it."""
        return tuple(
            Holding(
                node_id=stage.node_id,
                stage=stage_spec(self.record, self.size, index).held,
            )
            for index, stage in enumerate(self.record.stages)
        )

    async def sparings(self) -> tuple[SpareCandidate, ...]:
        """Return every stage of the plan with the ways in which other nodes can hold a spare of
        it.
        """
        planned = self._the_plan.stages
        mapped = await asyncio.to_thread(mapped_memory, planned, self._counting)
        return tuple(
            SpareCandidate(stage=holding, memory=stage.plan.memory, mapped=memory)
            for holding, stage, memory in zip(self.stages, planned, mapped, strict=True)
        )

    @property
    def _the_plan(self) -> PlannedModel:
        if self._planned is None:
            raise RuntimeError("no plan has been made yet")
        return self._planned


def _wants_disk(record: DeploymentRecord) -> bool:
    return record.spec.cache_disk_bytes > 0 and record.spec.prefix_cache


def _stage_without_disk(
    record: DeploymentRecord, kept_blocks: Mapping[int, str]
) -> StageRecord | None:
    """Return the first stage that does not store cache blocks on disk, or is not loaded."""
    stages = enumerate(record.stages)
    return next((stage for index, stage in stages if not kept_blocks.get(index)), None)


def _disk_salt(
    record: DeploymentRecord, kept_blocks: Mapping[int, str], fingerprint: ModelFingerprint
) -> bytes | None:
    """Return what determines the content of cache blocks apart from tokens, if all stages store
    them.

    This includes what the stages before a stage compute, which the node of a stage does not know.
    ``kept_blocks`` has the key of each stage's blocks, by its index.
    """
    without = _stage_without_disk(record, kept_blocks)
    if not _wants_disk(record) or not record.stages or without is not None:
        return None
    stages = [
        (stage.start_layer, stage.end_layer, kept_blocks[index], stage.part)
        for index, stage in enumerate(record.stages)
    ]
    model = (fingerprint.digest, fingerprint.weights, record.status.plan.quantization)
    return msgspec.msgpack.encode((model, stages))
