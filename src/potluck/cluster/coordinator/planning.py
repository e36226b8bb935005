"""From reports and a model to a plan: pure, but for reading the model's headers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass

from potluck.catalog import ModelDescription, open_headers
from potluck.cluster.calls import DeploymentRecord, NodeReport, RejectionRecord, StageRecord
from potluck.cluster.coordinator.sharing import Pool, fair_shares
from potluck.cluster.edges.edge import EdgeLimits
from potluck.cluster.steps import edge_limits
from potluck.cluster.worker.plan import plan_worker
from potluck.loading import StagePlan, StageSize
from potluck.scheduling import MAX_STEP_SEQUENCES, MAX_STEP_TOKENS
from potluck.scheduling.blocks import blocks_for
from potluck.types.cluster import ModelCost, NodeId, Plan, Rejection, UnitId, UnitOffer
from potluck.types.program import Shard
from potluck.types.quantization import Quantization

_MAX_HEADROOM_BYTES = 64 * 2**20
_HEADROOM_SHARE = 32


def headroom_bytes(limit_bytes: int) -> int:
    """Of memory that is shared, what no plan counts on: a 32nd, at most 64 MiB.

    The workers look again when they load, and by then others may have taken some: the rest of the
    machine, or in a control group its agent. If they took more, the next epoch is planned with
    what is left.
    """
    return min(_MAX_HEADROOM_BYTES, limit_bytes // _HEADROOM_SHARE)


def offers(
    reports: Sequence[NodeReport], candidates: Sequence[NodeReport]
) -> tuple[UnitOffer, ...]:
    """What the working units of ``candidates`` may use; nodes that drain are out.

    Units that draw on the same memory, of whichever agents (those of one machine, those of one
    control group), share fairly what is left of it after all the agents' stages: ``reports`` are
    of every agent, so that a promise made by one of them binds the others.
    """
    taking = [
        (report, unit)
        for report in candidates
        if not report.is_draining
        for unit in report.units
        if not unit.problem
    ]
    pools = []
    for pool in {pool.pool_id: pool for report in reports for pool in report.pools}.values():
        drawing = [report for report in reports if pool.pool_id in report.pool_ids]
        # Reports are not of one moment: the least that anybody saw counts.
        seen = min(p.available_bytes for r in drawing for p in r.pools if p.pool_id == pool.pool_id)
        left = seen - headroom_bytes(pool.limit_bytes) - sum(r.untaken_bytes for r in drawing)
        members = frozenset(
            index
            for index, (report, unit) in enumerate(taking)
            if unit.is_shared and pool.pool_id in report.pool_ids
        )
        pools.append(Pool(left_bytes=left, members=members))
    shares = fair_shares([unit.usable_bytes for _, unit in taking], pools)
    return tuple(
        UnitOffer(node_id=report.node_id, unit_id=unit.unit_id, usable_bytes=share)
        for (report, unit), share in zip(taking, shares, strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentSize:
    """What every stage of a deployment allocates, and what frames between them may hold."""

    context_tokens: int
    num_blocks: int
    max_step_tokens: int
    max_step_sequences: int
    quantization: Quantization
    is_mapped: bool
    edge_limits: EdgeLimits

    def of_stage(self, num_threads: int) -> StageSize:
        """The same for one stage on a unit with ``num_threads``."""
        return StageSize(
            context_tokens=self.context_tokens,
            num_blocks=self.num_blocks,
            max_step_tokens=self.max_step_tokens,
            num_threads=num_threads,
            quantization=self.quantization,
            is_mapped=self.is_mapped,
        )


def size_of(description: ModelDescription, record: DeploymentRecord) -> DeploymentSize:
    """The size that a deployment's record asks for; not quantized where that is to be seen."""
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
        edge_limits=edge_limits(
            hidden_size=description.config.hidden_size,
            context_tokens=record.context_tokens,
            max_step_tokens=max_step_tokens,
            max_step_sequences=max_step_sequences,
            num_blocks=num_blocks,
        ),
    )


def model_cost(description: ModelDescription, size: StageSize) -> ModelCost:
    """What each part of the model takes. Reads the headers of its files.

    Raises ``ModelFileError`` or ``UnsupportedModelError`` if the files do not fit the model, and
    ``EngineError`` where the compiled core, which knows, cannot be loaded.
    """
    last = description.config.num_layers
    with closing(open_headers(description)) as tensors:

        def count(start: int, end: int, *, embedding: bool = False, head: bool = False) -> _Cost:
            shard = Shard(
                start_layer=start,
                end_layer=end,
                num_layers=last,
                has_embedding=embedding,
                has_head=head,
            )
            memory = plan_worker(description, tensors, shard, size).memory
            return _Cost(
                held=memory.weights_bytes + memory.cache_bytes,
                scratch=memory.scratch_bytes + memory.staging_bytes + memory.rope_bytes,
                process=memory.process_bytes,
                total=memory.total_bytes,
            )

        layers = [count(layer, layer + 1) for layer in range(last)]
        middle = count(0, last)
        first = count(0, last, embedding=True)
        final = count(0, last, head=True)
        whole = count(0, last, embedding=True, head=True)
        # Embedding and head are counted with what they make larger: the buffers that they are
        # loaded through, the logits. Buffers that are shared are counted twice then, not missed.
        embedding_bytes = first.held - middle.held + max(0, first.scratch - middle.scratch)
        head_bytes = final.held - middle.held + max(0, final.scratch - middle.scratch)
        return ModelCost(
            layer_bytes=tuple(layer.held for layer in layers),
            embedding_bytes=embedding_bytes,
            head_bytes=head_bytes,
            shared_bytes=first.held + final.held - middle.held - whole.held,
            scratch_bytes=middle.scratch,
            process_bytes=middle.process,
            lone_embedding_bytes=count(0, 0, embedding=True).total,
            lone_head_bytes=count(last, last, head=True).total,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cost:
    """``held``: weights and cache; ``scratch``: what they are computed and loaded through."""

    held: int
    scratch: int
    process: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """Where a model goes, how it is quantized, and what exactly each stage takes there."""

    quantization: Quantization
    stages: tuple[PlannedStage, ...]
    rejections: tuple[Rejection, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """A stage on a unit; its worker counts the same."""

    node_id: NodeId
    unit_id: UnitId
    plan: StagePlan


def planned_model(
    description: ModelDescription,
    plan: Plan,
    size: DeploymentSize,
    reports: Sequence[NodeReport],
    rejections: Iterable[Rejection],
) -> PlannedModel:
    """``plan`` counted stage by stage, each with the threads of its unit. Reads headers."""
    threads = {
        (report.node_id, unit.unit_id): unit.num_threads
        for report in reports
        for unit in report.units
    }
    with closing(open_headers(description)) as tensors:
        stages = tuple(
            PlannedStage(
                node_id=stage.node_id,
                unit_id=stage.unit_id,
                plan=plan_worker(
                    description,
                    tensors,
                    stage.shard,
                    size.of_stage(threads[stage.node_id, stage.unit_id]),
                ),
            )
            for stage in plan.stages
        )
    return PlannedModel(
        quantization=size.quantization,
        stages=stages,
        rejections=(*plan.rejections, *rejections),
    )


def placement_fields(planned: PlannedModel) -> dict[str, object]:
    """The fields of a deployment's record that say where it is placed."""
    return {
        "quantization": planned.quantization,
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
