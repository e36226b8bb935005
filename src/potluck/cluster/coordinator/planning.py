"""From reports and a model to a plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from potluck.cluster.calls import DeploymentRecord, RejectionRecord, StageRecord
from potluck.cluster.coordinator.keeping import Holding, is_of_size
from potluck.cluster.edges.edge import EdgeLimits
from potluck.cluster.steps import edge_limits
from potluck.cluster.worker.plan import plan_worker
from potluck.engines.costs import CostOf, cost_of
from potluck.scheduling import MAX_STEP_SEQUENCES, MAX_STEP_TOKENS
from potluck.scheduling.blocks import blocks_for
from potluck.types.arithmetic import Arithmetic
from potluck.types.cluster import NodeId, Plan, Rejection, UnitId
from potluck.types.model import ModelConfig
from potluck.types.node import NodeReport, UnitReport
from potluck.types.profile import ModelProfile
from potluck.types.quantization import Quantization
from potluck.types.stage import StagePlan, StageSize
from potluck.types.unit import NATIVE
from potluck.weights.report import remark_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentSize:
    """What every stage of a deployment allocates, and what frames between them may hold."""

    context_tokens: int
    num_blocks: int
    max_step_tokens: int
    max_step_sequences: int
    quantization: Quantization
    is_mapped: bool
    arithmetic: Arithmetic
    edge_limits: EdgeLimits

    @property
    def of_stage(self) -> StageSize:
        """The same for one stage; ``on_unit`` says where."""
        return StageSize(
            context_tokens=self.context_tokens,
            num_blocks=self.num_blocks,
            max_step_tokens=self.max_step_tokens,
            num_threads=1,
            quantization=self.quantization,
            is_mapped=self.is_mapped,
            arithmetic=self.arithmetic,
        )


def on_unit(size: StageSize, unit: UnitReport) -> StageSize:
    """``size`` for a stage on ``unit``. What only the native backend does is left out elsewhere:
    weights are loaded, not mapped, and no arithmetic is asked for.
    """
    return replace(
        size,
        num_threads=unit.num_threads,
        backend=unit.backend,
        is_on_device=not unit.is_shared,
        is_mapped=size.is_mapped and unit.backend == NATIVE,
        arithmetic=size.arithmetic if unit.backend == NATIVE else Arithmetic.EXACT,
    )


def size_of(config: ModelConfig, record: DeploymentRecord) -> DeploymentSize:
    """The size that a deployment's record asks for; not quantized, and exact, where that is to be
    seen.
    """
    num_blocks = blocks_for(max(record.cache_tokens, record.context_tokens))
    max_step_tokens = min(MAX_STEP_TOKENS, record.context_tokens)
    max_step_sequences = min(MAX_STEP_SEQUENCES, max_step_tokens)
    return DeploymentSize(
        context_tokens=record.context_tokens,
        num_blocks=num_blocks,
        max_step_tokens=max_step_tokens,
        max_step_sequences=max_step_sequences,
        quantization=Quantization.NONE if record.may_quantize else record.quantization,
        is_mapped=record.is_mapped,
        arithmetic=record.arithmetic or Arithmetic.EXACT,
        edge_limits=edge_limits(
            hidden_size=config.hidden_size,
            context_tokens=record.context_tokens,
            max_step_tokens=max_step_tokens,
            max_step_sequences=max_step_sequences,
            num_blocks=num_blocks,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """Where a model goes, how it is quantized and computed, and what each stage takes there.

    ``held`` are the stages that workers held of it when it was planned. Those of them that are not
    in the plan have to be released before it is loaded, if it ``needs_room``.
    """

    quantization: Quantization
    arithmetic: Arithmetic
    arithmetic_note: str
    stages: tuple[PlannedStage, ...]
    rejections: tuple[Rejection, ...]
    needs_room: bool = False
    held: tuple[Holding, ...] = ()

    @property
    def kept(self) -> tuple[Holding, ...]:
        """The held stages that are stages of the plan."""
        return tuple(each for each in self.held if self._has(each))

    def _has(self, holding: Holding) -> bool:
        held = holding.stage
        return any(
            holding.unit == (stage.node_id, stage.unit_id)
            and (held.start_layer, held.end_layer) == (shard.start_layer, shard.end_layer)
            and (held.has_embedding, held.has_head) == (shard.has_embedding, shard.has_head)
            and is_of_size(held, stage.plan.size)
            for stage in self.stages
            for shard in (stage.plan.shard,)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """A stage on a unit; its worker counts the same."""

    node_id: NodeId
    unit_id: UnitId
    plan: StagePlan


def planned_model(
    profile: ModelProfile,
    plan: Plan,
    size: DeploymentSize,
    reports: Sequence[NodeReport],
    rejections: Iterable[Rejection],
    cost_of: CostOf = cost_of,
) -> PlannedModel:
    """``plan`` counted stage by stage, each as it is on its unit."""
    units = {(report.node_id, unit.unit_id): unit for report in reports for unit in report.units}
    stages = []
    for placed in plan.stages:
        unit = units[placed.node_id, placed.unit_id]
        own_size = on_unit(size.of_stage, unit)
        counted = plan_worker(
            profile,
            placed.shard,
            replace(own_size, is_mapped=own_size.is_mapped or placed.is_mapped),
            cost=cost_of(unit.backend),
        )
        stages.append(PlannedStage(node_id=placed.node_id, unit_id=placed.unit_id, plan=counted))
    return PlannedModel(
        quantization=size.quantization,
        arithmetic=size.arithmetic,
        arithmetic_note="",
        stages=tuple(stages),
        rejections=(*plan.rejections, *rejections),
    )


def as_mapped(
    profile: ModelProfile, stages: Sequence[PlannedStage]
) -> tuple[PlannedStage | None, ...]:
    """The same stages with their weights mapped; None where the backend cannot."""
    return tuple(
        replace(
            stage,
            plan=plan_worker(profile, stage.plan.shard, replace(stage.plan.size, is_mapped=True)),
        )
        if stage.plan.size.backend == NATIVE
        else None
        for stage in stages
    )


def placement_fields(planned: PlannedModel) -> dict[str, object]:
    """The fields of a deployment's record that say where it is placed."""
    remarks = (remark for stage in planned.stages for remark in stage.plan.remarks)
    return {
        "quantization": planned.quantization,
        "remarks": tuple(remark_lines(remarks)),
        "arithmetic": planned.arithmetic,
        "arithmetic_note": planned.arithmetic_note,
        "stages": tuple(
            StageRecord(
                node_id=stage.node_id,
                unit_id=stage.unit_id,
                start_layer=stage.plan.shard.start_layer,
                end_layer=stage.plan.shard.end_layer,
                memory=stage.plan.memory,
            )
            for stage in planned.stages
        ),
        "rejections": tuple(
            RejectionRecord(node_id=each.node_id, unit_id=each.unit_id, reason=each.reason)
            for each in planned.rejections
        ),
    }
