"""What a deployment does, as its coordinator can tell."""

from __future__ import annotations

import asyncio

from potluck.cluster.calls import DeploymentRecord, StageScope, StageStats, decode, encode
from potluck.cluster.coordinator.pipeline import SentTotals
from potluck.cluster.membership import Membership
from potluck.cluster.worker.messages import Stats
from potluck.errors import PotluckError
from potluck.serving.dispatcher import Load
from potluck.types.cluster import NodeId
from potluck.types.gateway import EdgeMetrics, ModelMetrics, StageMetrics

_SECONDS = 2.0


async def deployment_metrics(
    membership: Membership,
    record: DeploymentRecord,
    load: Load,
    sent: SentTotals,
    *,
    num_blocks: int,
    num_spares: int,
    num_moves: int = 0,
    last_gain: float | None = None,
) -> ModelMetrics:
    """Ask the stages of ``record``; one whose node does not answer in time is left out."""
    stats = await stage_stats(membership, record)
    nodes = [stage.node_id for stage in record.stages]
    own = membership.node_id
    edges = [
        EdgeMetrics(
            edge=0,
            sender=own,
            receiver=nodes[0],
            num_frames=sent.num_frames,
            num_bytes=sent.num_bytes,
            send_seconds=sent.send_seconds,
        )
    ]
    edges += [
        EdgeMetrics(
            edge=index + 1,
            sender=node,
            receiver=receiver,
            num_frames=stats[index].num_steps,
            num_bytes=stats[index].num_sent_bytes,
            send_seconds=stats[index].send_seconds,
        )
        for index, (node, receiver) in enumerate(zip(nodes, [*nodes[1:], own], strict=True))
        if index in stats
    ]
    return ModelMetrics(
        model_id=record.model_id,
        num_waiting=load.num_waiting,
        num_running=load.num_running,
        num_blocks=num_blocks,
        num_free_blocks=load.num_free_blocks,
        epoch=record.epoch.number,
        num_recoveries=record.num_recoveries,
        recovery_seconds=record.recovery_seconds,
        num_spares=num_spares,
        num_moves=num_moves,
        last_gain=last_gain,
        stages=tuple(
            StageMetrics(
                stage=index,
                node_id=node,
                num_steps=stats[index].num_steps,
                compute_seconds=stats[index].compute_seconds,
                memory_bytes=stats[index].resident_bytes,
                num_dropped_frames=stats[index].num_dropped_frames,
                slowdown=stats[index].slowdown,
            )
            for index, node in enumerate(nodes)
            if index in stats
        ),
        edges=tuple(edges),
    )


async def stage_stats(membership: Membership, record: DeploymentRecord) -> dict[int, Stats]:
    """Return totals by stage; without those whose nodes do not answer in time."""
    scope = encode(StageScope(deployment=record.deployment, epoch=record.epoch))
    stats: dict[int, Stats] = {}

    async def ask(node: NodeId) -> None:
        try:
            answer = await membership.call(node, "stage.stats", scope, timeout_seconds=_SECONDS)
            stats.update(decode(answer, StageStats).stages)
        except PotluckError:
            return

    await asyncio.gather(*(ask(node) for node in {stage.node_id for stage in record.stages}))
    return stats
