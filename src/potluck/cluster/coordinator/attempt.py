"""One attempt of a deployment to serve: from its plan to a pipeline over the stages of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from potluck.cluster.calls import DeploymentRecord, ModelFingerprint, StageRecord
from potluck.cluster.coordinator.alternatives import Alternative, compared
from potluck.cluster.coordinator.answering import OnOver, OpenPipeline
from potluck.cluster.coordinator.claiming import Grant, Refusal, claim
from potluck.cluster.coordinator.edges import StageAddress
from potluck.cluster.coordinator.left_out import NodeUnitId
from potluck.cluster.coordinator.overdue import OverdueSteps
from potluck.cluster.coordinator.pipeline import RemotePipeline
from potluck.cluster.coordinator.planning import (
    DeploymentSize,
    placement_fields,
    preferences_of,
    size_of,
)
from potluck.cluster.coordinator.spares import Sparing
from potluck.cluster.coordinator.starting import connect_stages, load_stages, stage_spec
from potluck.cluster.coordinator.survey import plan_model
from potluck.cluster.edges.edge import IncomingEdge, OutgoingEdge
from potluck.cluster.membership import Membership
from potluck.cluster.trust.credentials import Credentials
from potluck.cluster.worker.messages import Loaded
from potluck.engines.costs import CostOf
from potluck.placement.counting import Counting
from potluck.placement.keeping import Holding
from potluck.placement.planned import PlannedModel, as_mapped
from potluck.placement.rebalancing import RebalancePolicy
from potluck.scheduling import SchedulerLimits
from potluck.serving.pipeline import OnOutcome, StepOutcome
from potluck.types.cluster import Epoch, NodeId
from potluck.types.model import ModelConfig
from potluck.types.placement import Objective

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What every deployment of an agent works with.

    ``step_seconds``: see ``AgentConfig``. ``cost_of`` knows what engines take. Deployments move to
    better plans by the ``rebalance_policy``.
    """

    membership: Membership
    credentials: Credentials
    listen_host: str
    step_seconds: float
    cost_of: CostOf
    rebalance_policy: RebalancePolicy = field(default_factory=RebalancePolicy)


class Attempt:
    """Its methods are called in the order in which they stand here, each once.

    ``record`` is the deployment's as it was before, and after :meth:`claim` with the epoch that was
    taken and the stages of the plan.
    """

    def __init__(
        self,
        around: Surroundings,
        record: DeploymentRecord,
        config: ModelConfig,
        counting: Counting,
        fingerprint: ModelFingerprint,
    ) -> None:
        self.record = record
        self._around = around
        self._counting = counting
        self._fingerprint = fingerprint
        self.size: DeploymentSize = size_of(config, record)
        self._planned: PlannedModel | None = None
        self._grant: Grant | None = None
        self._addresses: list[StageAddress] = []
        self._kept_blocks: dict[int, str] = {}
        self._edges: tuple[OutgoingEdge, IncomingEdge] | None = None

    @property
    def limits(self) -> SchedulerLimits:
        """For the scheduler of the pipeline."""
        return SchedulerLimits(
            num_blocks=self.size.num_blocks,
            num_states=self.size.num_states,
            context_tokens=self.size.context_tokens,
            max_step_tokens=self.size.max_step_tokens,
            max_step_sequences=self.size.max_step_sequences,
            max_steps_in_flight=self._steps_in_flight,
            has_prefix_cache=self.record.prefix_cache,
            target_step_seconds=self.record.target_step_ms / 1000,
            disk_salt=self._disk_salt,
        )

    @property
    def _disk_salt(self) -> bytes | None:
        """What the content of cache blocks depends on besides tokens, if all stages keep them.

        Also on what the stages before a stage compute: its node knows nothing of that.
        """
        record = self.record
        if not self._wants_disk or not record.stages or self._stage_without_disk is not None:
            return None
        stages = [
            (stage.start_layer, stage.end_layer, self._kept_blocks[index])
            for index, stage in enumerate(record.stages)
        ]
        model = (self._fingerprint.digest, self._fingerprint.weights, record.quantization)
        return msgspec.msgpack.encode((model, stages))

    @property
    def _wants_disk(self) -> bool:
        return self.record.cache_disk_bytes > 0 and self.record.prefix_cache

    @property
    def _stage_without_disk(self) -> StageRecord | None:
        """The first stage that keeps no cache blocks on disk, or is not loaded."""
        stages = enumerate(self.record.stages)
        return next((stage for index, stage in stages if not self._kept_blocks.get(index)), None)

    @property
    def _steps_in_flight(self) -> int:
        """One for each stage; where a plan is for several streams, as many as are best for them."""
        prediction = self.record.prediction
        if self.record.objective is Objective.THROUGHPUT and prediction is not None:
            return max(1, prediction.steps_in_flight)
        return max(1, len(self._addresses))

    async def plan(
        self, without: Collection[NodeId], left_out: Mapping[NodeUnitId, str]
    ) -> PlannedModel:
        """Place the model on the nodes that are there. Raises as ``plan_model``."""
        record = self.record
        self._planned = await plan_model(
            self._around.membership,
            record.model,
            self._counting,
            self._fingerprint,
            self.size,
            may_quantize=record.may_quantize,
            arithmetic=record.arithmetic,
            preferences=preferences_of(record),
            left_out=left_out,
            record=record,
            leaving=without,
        )
        return self._planned

    def adopt(self, planned: PlannedModel) -> None:
        """Take a plan that was made for this deployment a moment ago, instead of :meth:`plan`."""
        self._planned = planned

    async def alternative(
        self, without: Collection[NodeId], left_out: Mapping[NodeUnitId, str]
    ) -> Alternative | None:
        """Return the best plan as if nothing was loaded; None where that cannot be compared.

        Weights and arithmetic stay what they are. Raises as ``plan_model``.
        """
        record = self.record
        planned = await plan_model(
            self._around.membership,
            record.model,
            self._counting,
            self._fingerprint,
            replace(self.size, quantization=record.quantization),
            may_quantize=False,
            arithmetic=record.arithmetic,
            preferences=preferences_of(record),
            left_out=left_out,
            record=record,
            leaving=without,
            is_anew=True,
        )
        return compared(planned, record)

    async def claim(self, above: Epoch, *, may_be_alone: bool) -> Grant | Refusal:
        """Take an epoch for the plan."""
        planned = self._the_plan
        result = await claim(
            self._around.membership,
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
            self.record = msgspec.structs.replace(
                self.record,
                epoch=result.epoch,
                holders=result.holders,
                has_quorum=result.has_quorum,
                **placement_fields(planned),
            )
        return result

    async def load(
        self, on_progress: Callable[[str, int, int], None], on_loaded: Callable[[], None]
    ) -> None:
        """Have every stage loaded that is not held. Raises as ``load_stages``."""

        def loaded(index: int, stage: Loaded) -> None:
            self._kept_blocks[index] = stage.kept_blocks
            stages = list(self.record.stages)
            stages[index] = msgspec.structs.replace(
                stages[index],
                memory=stage.memory,
                read_bytes=stage.read_bytes,
                load_seconds=stage.seconds,
            )
            self.record = msgspec.structs.replace(self.record, stages=tuple(stages))
            on_loaded()

        self._addresses = await load_stages(
            self._around.membership, self.record, self.size, on_progress, loaded
        )
        without = self._stage_without_disk
        if self._wants_disk and without is not None:
            _log.warning(
                "%s keeps no cache blocks on disk: node %s does not",
                self.record.model_id,
                without.node_id,
            )

    async def connect(self) -> None:
        """Have the stages connected: from here on, no lower epoch computes."""
        around = self._around
        self._edges = await connect_stages(
            around.membership,
            around.credentials,
            around.listen_host,
            self.record,
            self.size,
            self._addresses,
        )

    def pipeline_opener(self, on_first_result: Callable[[], None]) -> OpenPipeline:
        """What opens the pipeline over the edges, which it then owns; for use in the loop.

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

            overdue = OverdueSteps(self._around.membership, self.record, on_lost)
            step_seconds = self._around.step_seconds
            return RemotePipeline(
                outgoing, incoming, watched, on_lost, overdue.ask, step_seconds=step_seconds
            )

        return open_pipeline

    def close(self) -> None:
        """Close edges that no pipeline owns. Idempotent."""
        edges, self._edges = self._edges, None
        for edge in edges or ():
            edge.close()

    def placed(self, record: DeploymentRecord) -> DeploymentRecord:
        """``record`` with the epoch and the stages of this attempt, if an epoch was taken."""
        if self._grant is None:
            return record
        own = self.record
        is_same = record.epoch == own.epoch
        return msgspec.structs.replace(
            record,
            epoch=own.epoch,
            revision=record.revision if is_same else 0,
            holders=record.holders if is_same else own.holders,
            successor=record.successor if is_same else None,
            has_quorum=own.has_quorum,
            quantization=own.quantization,
            remarks=own.remarks,
            arithmetic=own.arithmetic,
            arithmetic_note=own.arithmetic_note,
            stages=own.stages,
            rejections=own.rejections,
            prediction=own.prediction,
        )

    @property
    def kept(self) -> tuple[Holding, ...]:
        """The stages of the plan that workers hold already."""
        return self._the_plan.kept

    @property
    def stages(self) -> tuple[Holding, ...]:
        """Every stage of the plan as its worker holds it."""
        return tuple(
            Holding(
                node_id=stage.node_id,
                stage=stage_spec(self.record, self.size, index).held,
            )
            for index, stage in enumerate(self.record.stages)
        )

    async def sparings(self) -> tuple[Sparing, ...]:
        """Every stage of the plan as it can be held by further nodes."""
        planned = self._the_plan.stages
        mapped = await asyncio.to_thread(as_mapped, planned, self._counting)
        return tuple(
            Sparing(
                stage=holding,
                memory=stage.plan.memory,
                mapped=None if variant is None else variant.plan.memory,
            )
            for holding, stage, variant in zip(self.stages, planned, mapped, strict=True)
        )

    @property
    def _the_plan(self) -> PlannedModel:
        if self._planned is None:
            raise RuntimeError("nothing is planned yet")
        return self._planned
