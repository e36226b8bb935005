"""The size of a deployment's stages, and the fields of its record that describe its plan."""

from __future__ import annotations

from collections.abc import Sequence

from potluck.placement.keeping import reserved
from potluck.placement.planned import PlannedModel
from potluck.scheduling.blocks import blocks_for
from potluck.scheduling.frame_limits import (
    MAX_STEP_TOKENS,
    EdgeLimits,
    edge_limits,
    sequences_in_step,
)
from potluck.types.arithmetic import Arithmetic
from potluck.types.choices import Quantization
from potluck.types.deployment import DeploymentRecord, PlanRecord, StageRecord
from potluck.types.model import ModelConfig
from potluck.types.node import NodeReport
from potluck.types.placement import Preferences
from potluck.types.stage import StageSize
from potluck.weights.report import remark_lines

_EXPECTED_TOKENS = 512
"""The assumed length of a sequence, and of a prompt, if future ones are unknown."""


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
