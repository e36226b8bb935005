"""From reports and a model to a plan: pure, but for reading the model's headers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from potluck.catalog import ModelDescription, canonical_source, open_tensors
from potluck.cluster.calls import DeploymentRecord, NodeReport, RejectionRecord, StageRecord
from potluck.cluster.edges.edge import EdgeLimits
from potluck.cluster.steps import edge_limits
from potluck.models.program import build_program
from potluck.models.rope import rope_table, rope_table_bytes
from potluck.scheduling import MAX_STEP_SEQUENCES, MAX_STEP_TOKENS
from potluck.scheduling.blocks import blocks_for
from potluck.types.cluster import ModelCost, Plan, UnitOffer
from potluck.types.program import Program, Shard
from potluck.weights.budget import weights_bytes

PROCESS_BYTES = 64 * 2**20
"""A worker without weights, cache and scratch (measured: 40 MiB), and some of the buffer that it
loads through, which is gone before cache and scratch are touched."""

HEADROOM_BYTES = 64 * 2**20
"""Of a machine's usable memory, what no plan counts on: the workers look again when they load, and
by then the rest of the machine may have taken some. If it took more, the next epoch is planned with
what is left."""


def offers(
    reports: Sequence[NodeReport], candidates: Sequence[NodeReport]
) -> tuple[UnitOffer, ...]:
    """What the working units of ``candidates`` may use; nodes that drain are out.

    Units that have a machine's own memory, of whichever of its agents, share equally what is left
    of it after all the agents' stages: ``reports`` are of every agent, so that a promise made by
    one of them binds the others.
    """
    taking = [
        (report, unit)
        for report in candidates
        if not report.is_draining
        for unit in report.units
        if not unit.problem
    ]
    num_sharing = Counter(report.host_id for report, unit in taking if unit.is_shared)
    untaken_bytes: Counter[str] = Counter()
    for report in reports:
        untaken_bytes[report.host_id] += report.untaken_bytes
    return tuple(
        UnitOffer(
            node_id=report.node_id,
            unit_id=unit.unit_id,
            usable_bytes=min(
                unit.usable_bytes,
                (report.host_available_bytes - untaken_bytes[report.host_id] - HEADROOM_BYTES)
                // num_sharing[report.host_id],
            )
            if unit.is_shared
            else unit.usable_bytes,
        )
        for report, unit in taking
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentSize:
    """What every stage of a deployment allocates, and what frames between them may hold."""

    context_tokens: int
    num_blocks: int
    max_step_tokens: int
    max_step_sequences: int
    edge_limits: EdgeLimits


def size_of(description: ModelDescription, record: DeploymentRecord) -> DeploymentSize:
    """The size that a deployment's record asks for."""
    num_blocks = blocks_for(max(record.cache_tokens, record.context_tokens))
    max_step_tokens = min(MAX_STEP_TOKENS, record.context_tokens)
    max_step_sequences = min(MAX_STEP_SEQUENCES, max_step_tokens)
    return DeploymentSize(
        context_tokens=record.context_tokens,
        num_blocks=num_blocks,
        max_step_tokens=max_step_tokens,
        max_step_sequences=max_step_sequences,
        edge_limits=edge_limits(
            hidden_size=description.config.hidden_size,
            context_tokens=record.context_tokens,
            max_step_tokens=max_step_tokens,
            max_step_sequences=max_step_sequences,
            num_blocks=num_blocks,
        ),
    )


def model_cost(
    description: ModelDescription, size: DeploymentSize, *, num_threads: int
) -> ModelCost:
    """What each part of the model takes. Reads the headers of its files.

    Raises ``ModelFileError`` or ``UnsupportedModelError`` if the files do not fit the model, and
    ``EngineError`` where the compiled core, which knows, cannot be loaded.
    """
    # An agent that plans nothing does without the core, and starts where there is none.
    from potluck.engines.native import cache_bytes, scratch_bytes

    config = description.config
    context_tokens = size.context_tokens
    rope = rope_table(config, context_tokens)

    def program(start: int, end: int, *, embedding: bool = False, head: bool = False) -> Program:
        shard = Shard(
            start_layer=start,
            end_layer=end,
            num_layers=config.num_layers,
            has_embedding=embedding,
            has_head=head,
        )
        return build_program(config, shard, context_tokens=context_tokens, rope=rope)

    with closing(open_tensors(description.files)) as tensors:

        def stored_bytes(part: Program) -> int:
            source = canonical_source(description, tensors, part)
            return weights_bytes(part, source, path=str(description.files.path))

        layers = [program(layer, layer + 1) for layer in range(config.num_layers)]
        return ModelCost(
            layer_bytes=tuple(
                stored_bytes(layer) + cache_bytes(layer, size.num_blocks) for layer in layers
            ),
            embedding_bytes=stored_bytes(program(0, 0, embedding=True)),
            head_bytes=stored_bytes(program(config.num_layers, config.num_layers, head=True)),
            is_head_tied=config.tied_head,
            scratch_bytes=scratch_bytes(
                program(0, config.num_layers, embedding=True, head=True),
                size.max_step_tokens,
                num_threads=num_threads,
            ),
            process_bytes=PROCESS_BYTES + 2 * rope_table_bytes(config, context_tokens),
        )


def stage_records(plan: Plan) -> dict[str, object]:
    """The fields of a deployment's record that say where it is placed."""
    return {
        "stages": tuple(
            StageRecord(
                node_id=stage.node_id,
                unit_id=stage.unit_id,
                start_layer=stage.shard.start_layer,
                end_layer=stage.shard.end_layer,
                num_bytes=stage.num_bytes,
            )
            for stage in plan.stages
        ),
        "rejections": tuple(
            RejectionRecord(node_id=each.node_id, unit_id=each.unit_id, reason=each.reason)
            for each in plan.rejections
        ),
    }
