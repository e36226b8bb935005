"""The size of a deployment, and its plan as its record has it."""

from __future__ import annotations

from dataclasses import dataclass

from potluck.cluster.calls import DeploymentRecord, RejectionRecord, StageRecord
from potluck.cluster.edges.edge import EdgeLimits
from potluck.cluster.steps import edge_limits
from potluck.placement.planned import PlannedModel
from potluck.scheduling import MAX_STEP_SEQUENCES, MAX_STEP_TOKENS
from potluck.scheduling.blocks import blocks_for
from potluck.types.arithmetic import Arithmetic
from potluck.types.model import ModelConfig
from potluck.types.placement import Preferences
from potluck.types.quantization import Quantization
from potluck.types.stage import StageSize
from potluck.weights.report import remark_lines

_EXPECTED_TOKENS = 512
"""That a sequence has, and a prompt, where nothing is known of those to come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentSize:
    """What every stage of a deployment allocates, and what frames between them may hold."""

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
        """The same for one stage; ``placement.sizes.on_unit`` says where."""
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
    """The size that a deployment's record asks for; not quantized, and exact, where that is to be
    seen.
    """
    num_blocks = blocks_for(max(record.cache_tokens, record.context_tokens))
    max_step_tokens = min(MAX_STEP_TOKENS, record.context_tokens)
    max_step_sequences = min(MAX_STEP_SEQUENCES, max_step_tokens)
    return DeploymentSize(
        context_tokens=record.context_tokens,
        num_blocks=num_blocks,
        num_states=record.num_states,
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
            num_states=record.num_states,
        ),
    )


def preferences_of(record: DeploymentRecord) -> Preferences:
    """Return what plans of a deployment are made for."""
    return Preferences(
        objective=record.objective,
        num_streams=record.num_streams,
        layout=record.layout,
        context_tokens=min(_EXPECTED_TOKENS, record.context_tokens),
        prompt_tokens=min(_EXPECTED_TOKENS, record.context_tokens),
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
        "prediction": planned.prediction,
        "rejections": tuple(
            RejectionRecord(node_id=each.node_id, unit_id=each.unit_id, reason=each.reason)
            for each in planned.rejections
        ),
    }
