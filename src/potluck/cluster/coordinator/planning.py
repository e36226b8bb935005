"""The size of a deployment, the fields of its record that describe its plan, and its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from potluck.cluster.edges.edge import EdgeLimits
from potluck.cluster.steps import edge_limits
from potluck.placement.keeping import reserved
from potluck.placement.planned import PlannedModel
from potluck.scheduling.blocks import blocks_for
from potluck.scheduling.step_limits import MAX_STEP_SEQUENCES, MAX_STEP_TOKENS
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentSize:
    """What every stage of a deployment allocates, and the maximum size of frames between them."""

    context_tokens: int
    num_blocks: int
    num_states: int
    max_step_tokens: int
    max_step_sequences: int
    quantization: Quantization
    is_mapped: bool
    arithmetic: Arithmetic
    edge_limits: EdgeLimits

    @property
    def of_stage(self) -> StageSize:
        """Return the size of one stage; ``placement.sizes.on_unit`` adapts it to a unit."""
        return StageSize(
            context_tokens=self.context_tokens,
            num_blocks=self.num_blocks,
            num_states=self.num_states,
            max_step_tokens=self.max_step_tokens,
            num_threads=1,
            quantization=self.quantization,
            is_mapped=self.is_mapped,
            arithmetic=self.arithmetic,
        )


def size_of(config: ModelConfig, record: DeploymentRecord) -> DeploymentSize:
    """Return the size that a deployment's record asks for: not quantized, and exact, if
    undecided.
    """
    num_blocks = blocks_for(max(record.status.cache_tokens, record.status.context_tokens))
    max_step_tokens = min(MAX_STEP_TOKENS, record.status.context_tokens)
    max_step_sequences = min(MAX_STEP_SEQUENCES, max_step_tokens)
    return DeploymentSize(
        context_tokens=record.status.context_tokens,
        num_blocks=num_blocks,
        num_states=record.status.num_states,
        max_step_tokens=max_step_tokens,
        max_step_sequences=max_step_sequences,
        quantization=record.spec.quantization or Quantization.NONE,
        is_mapped=record.spec.is_mapped,
        arithmetic=record.status.plan.arithmetic or Arithmetic.EXACT,
        edge_limits=edge_limits(
            hidden_size=config.hidden_size,
            context_tokens=record.status.context_tokens,
            max_step_tokens=max_step_tokens,
            max_step_sequences=max_step_sequences,
            num_blocks=num_blocks,
            num_states=record.status.num_states,
        ),
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
