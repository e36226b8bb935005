"""A plan with each stage counted as its worker will count it, and the fields of a record for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from potluck.engines.loading.sizes import on_unit
from potluck.placement.candidates import PlaceRequest
from potluck.placement.costs import Counting
from potluck.placement.offering import units_by_id
from potluck.placement.stage_reuse import Holding, reserved
from potluck.scheduling.blocks import blocks_for
from potluck.scheduling.frame_limits import (
    MAX_STEP_TOKENS,
    EdgeLimits,
    edge_limits,
    sequences_in_step,
)
from potluck.types.arithmetic import Arithmetic
from potluck.types.choices import Quantization
from potluck.types.cluster import NodeId, OnUnit, UnitId
from potluck.types.deployment import DeploymentRecord, PlanRecord, StageRecord
from potluck.types.memory import MemoryPlan
from potluck.types.model import ModelConfig
from potluck.types.node import NodeReport
from potluck.types.placement import PlacedStage, Plan, Prediction, Preferences, Rejection
from potluck.types.stage import StagePlan, StageSize
from potluck.weights.load import remark_lines

_EXPECTED_TOKENS = 512
"""The assumed length of a sequence, and of a prompt, if future ones are unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """The placement of a model, its quantization and arithmetic, and the memory plan of each stage.

    ``held`` are the stages of it that workers held when it was planned. If it ``needs_room``, those
    that are not in the plan must be released before it is loaded. ``plan`` was chosen for
    ``request``, which is kept for explanations, and ``reports`` are what the nodes reported then.
    Nodes that are not among ``own_files`` do not have the files of the model at its path, and fetch
    them by content.
    """

    quantization: Quantization
    arithmetic: Arithmetic
    arithmetic_note: str
    stages: tuple[PlannedStage, ...]
    rejections: tuple[Rejection, ...]
    needs_room: bool = False
    prediction: Prediction | None = None
    request: PlaceRequest | None = None
    plan: Plan | None = None
    held: tuple[Holding, ...] = ()
    reports: tuple[NodeReport, ...] = ()
    own_files: tuple[NodeId, ...] = ()

    @property
    def kept(self) -> tuple[Holding, ...]:
        """Return the held stages that are stages of the plan."""
        return tuple(
            holding
            for holding in self.held
            if any(each.is_held_as(holding) for each in self.stages)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage(OnUnit):
    """A stage on a unit; its worker arrives at the same count."""

    node_id: NodeId
    unit_id: UnitId
    plan: StagePlan

    def is_held_as(self, holding: Holding) -> bool:
        """Return whether it is already loaded as this holding."""
        return holding.is_stage(self.unit, self.plan.shard, self.plan.size)


def planned_stages(
    stages: Iterable[PlacedStage],
    size: StageSize,
    reports: Sequence[NodeReport],
    counting: Counting,
) -> Iterator[PlannedStage]:
    """Yield each of ``stages``, counted on its unit."""
    units = units_by_id(reports)
    for placed in stages:
        unit = units[placed.unit]
        own_size = on_unit(size, unit, counting.abilities(unit.backend))
        counted = counting.stage(
            placed.shard, replace(own_size, is_mapped=own_size.is_mapped or placed.is_mapped)
        )
        yield PlannedStage(node_id=placed.node_id, unit_id=placed.unit_id, plan=counted)


def mapped_memory(
    stages: Sequence[PlannedStage], counting: Counting
) -> tuple[MemoryPlan | None, ...]:
    """Return the memory of each stage with mapped weights; None if its backend cannot map them."""
    return tuple(
        counting.stage(stage.plan.shard, replace(stage.plan.size, is_mapped=True)).memory
        if counting.abilities(stage.plan.size.backend).maps_weights
        else None
        for stage in stages
    )


def size_of(config: ModelConfig, record: DeploymentRecord) -> StageSize:
    """Return the size of every stage that a deployment's record asks for; ``sizes.on_unit`` adapts
    it to a unit.

    It is not quantized, and exact, if these are undecided. Raise ``ParameterError`` if steps would
    be too large for one frame.
    """
    status = record.status
    size = StageSize(
        context_tokens=status.context_tokens,
        num_blocks=blocks_for(max(status.cache_tokens, status.context_tokens)),
        num_states=status.num_states,
        max_step_tokens=min(MAX_STEP_TOKENS, status.context_tokens),
        num_threads=1,
        quantization=record.spec.quantization or Quantization.NONE,
        is_mapped=record.spec.is_mapped,
        arithmetic=status.plan.arithmetic or Arithmetic.EXACT,
    )
    limits_of(config, size)
    return size


def limits_of(config: ModelConfig, size: StageSize) -> EdgeLimits:
    """Return the limits of frames between stages of this size. Raise as ``edge_limits`` does."""
    return edge_limits(
        hidden_size=config.hidden_size,
        context_tokens=size.context_tokens,
        max_step_tokens=size.max_step_tokens,
        max_step_sequences=sequences_in_step(size.max_step_tokens),
        num_blocks=size.num_blocks,
        num_states=size.num_states,
    )


def preferences_of(record: DeploymentRecord) -> Preferences:
    """Return what plans of a deployment are optimized for."""
    return Preferences(
        objective=record.spec.objective,
        num_streams=record.spec.num_streams,
        tensor_parallel=record.spec.tensor_parallel,
        layout=record.spec.layout,
        context_tokens=min(_EXPECTED_TOKENS, record.status.context_tokens),
        prompt_tokens=min(_EXPECTED_TOKENS, record.status.context_tokens),
    )


def without_memory_of(
    stages: Sequence[StageRecord], reports: Sequence[NodeReport]
) -> list[NodeReport]:
    """Return the reports as they would be if the memory of ``stages`` were promised to them."""
    return [
        reserved(
            report,
            [(stage.unit_id, stage.memory) for stage in stages if stage.node_id == report.node_id],
        )
        for report in reports
    ]


def plan_record(planned: PlannedModel) -> PlanRecord:
    """Return a plan as the record of a deployment has it."""
    remarks = (remark for stage in planned.stages for remark in stage.plan.remarks)
    return PlanRecord(
        quantization=planned.quantization,
        remarks=tuple(remark_lines(remarks)),
        arithmetic=planned.arithmetic,
        arithmetic_note=planned.arithmetic_note,
        stages=tuple(
            StageRecord(
                node_id=stage.node_id,
                unit_id=stage.unit_id,
                start_layer=stage.plan.shard.start_layer,
                end_layer=stage.plan.shard.end_layer,
                memory=stage.plan.memory,
                part=stage.plan.shard.part,
            )
            for stage in planned.stages
        ),
        prediction=planned.prediction,
        rejections=tuple(planned.rejections),
    )
