"""Metrics of a deployment, as known to its coordinator, and how fast its stages are."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import msgspec

from potluck.cluster.coordinator.pipeline import SentTotals
from potluck.cluster.network.membership import Membership
from potluck.cluster.wire.calls import StageScope
from potluck.cluster.wire.methods import STAGE_STATS
from potluck.cluster.wire.worker_messages import Stats
from potluck.host.log_rate import LogRateFilter
from potluck.scheduling.limits import Load
from potluck.types.cluster import NodeId
from potluck.types.deployment import DeploymentRecord
from potluck.types.documents.cluster import StageTimes, TokenSpeed
from potluck.types.engine import ExpertUse
from potluck.types.gateway import EdgeMetrics, GenerationTotals, ModelMetrics, StageMetrics
from potluck.types.placement import Prediction
from potluck.types.speed import StepTime

_log = logging.getLogger(__name__)
_log.addFilter(LogRateFilter(600.0))


CHANGE = 1.5
"""A stage whose steps take this many times as long as expected (or as short) triggers a search for
a better plan; so does every further change of this factor."""

Slowdowns = Mapping[tuple[int, str], float]
"""How many times as long as expected steps take: by stage, and by the kind of expectation."""


def own_metrics(
    record: DeploymentRecord,
    load: Load,
    speed: TokenSpeed,
    *,
    num_blocks: int,
    num_spares: int,
    slot_bytes: int = 0,
    num_moves: int = 0,
    last_gain: float | None = None,
    generated: GenerationTotals,
) -> ModelMetrics:
    """Return what the coordinator of ``record`` knows without asking its stages.

    ``slot_bytes`` is the size of a state slot on all of them together.
    """
    return ModelMetrics(
        model_id=record.model_id,
        num_waiting=load.num_waiting,
        num_running=load.num_running,
        num_blocks=num_blocks,
        num_free_blocks=load.num_free_blocks,
        num_kept_blocks=load.num_kept_blocks,
        prefix=load.prefix,
        drafts=load.drafts,
        states=replace(load.states, slot_bytes=slot_bytes),
        generated=generated,
        epoch=record.epoch.number,
        num_recoveries=record.status.num_recoveries,
        recovery_seconds=record.status.recovery_seconds,
        num_spares=num_spares,
        num_moves=num_moves,
        last_gain=last_gain,
        speed=speed,
        prediction=record.status.plan.prediction,
    )


async def with_stages(
    membership: Membership, record: DeploymentRecord, metrics: ModelMetrics, sent: SentTotals
) -> ModelMetrics:
    """Return ``metrics`` with those of the stages; stages that do not answer in time are left out.

    ``sent`` is what was sent over the edge to the first one.
    """
    stats = await stage_stats(membership, record)
    nodes = [stage.node_id for stage in record.stages]
    leaders = [group[0] for group in record.groups]
    following = [*leaders[1:], len(nodes)]
    own = membership.node_id
    loaded = loaded_sequences(record.status.plan.prediction)
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
            edge=end,
            sender=nodes[index],
            receiver=[*nodes, own][end],
            num_frames=stats[index].num_steps,
            num_bytes=stats[index].num_sent_bytes,
            send_seconds=stats[index].send_seconds,
        )
        for index, end in zip(leaders, following, strict=True)
        if index in stats
    ]
    return replace(
        metrics,
        stages=tuple(
            StageMetrics(
                stage=index,
                node_id=nodes[index],
                num_steps=each.num_steps,
                compute_seconds=each.compute_seconds,
                cpu_seconds=each.cpu_seconds,
                memory_bytes=each.resident_bytes,
                num_dropped_frames=each.num_dropped_frames,
                slowdown=each.slowdown,
                experts=ExpertUse(
                    num_used=each.num_experts_used, num_in_memory=each.num_experts_in_memory
                ),
                num_exchanges=each.num_exchanges,
                exchange_seconds=each.exchange_seconds,
                times=stage_times(each.step_times, loaded),
            )
            for index, each in stats.items()
        ),
        edges=tuple(edges),
    )


async def stage_stats(membership: Membership, record: DeploymentRecord) -> dict[int, Stats]:
    """Return totals by stage, without implausible ones."""
    scope = StageScope(deployment=record.deployment, epoch=record.epoch)
    nodes = {stage.node_id for stage in record.stages}
    answers = await STAGE_STATS.call_all(membership, dict.fromkeys(nodes, scope))
    return {
        index: _plausible(stage.node_id, answers[stage.node_id].stages[index])
        for index, stage in enumerate(record.stages)
        if stage.node_id in answers and index in answers[stage.node_id].stages
    }


def _plausible(node: NodeId, stats: Stats) -> Stats:
    times = tuple(each for each in stats.step_times if each.is_plausible)
    if len(times) < len(stats.step_times):
        _log.warning("node %s reports implausible step times, which are ignored", node)
    return msgspec.structs.replace(stats, step_times=times)


def loaded_sequences(prediction: Prediction | None) -> int | None:
    """Return how many sequences a step has when the streams of the plan decode."""
    if prediction is None or min(prediction.num_streams, prediction.steps_in_flight) < 1:
        return None
    return math.ceil(prediction.num_streams / prediction.steps_in_flight)


def stage_times(times: Iterable[StepTime], loaded_sequences: int | None) -> StageTimes:
    """Return the latest times of one stage, as used by predictions."""
    latest_first = sorted(times, key=lambda each: each.age_seconds)
    decode: dict[int, float] = {}
    for each in latest_first:
        if each.num_tokens == each.num_sequences:
            decode.setdefault(each.num_sequences, each.seconds)
    prefills = [each for each in latest_first if each.num_tokens > each.num_sequences]
    longest = max(prefills, key=lambda each: each.num_tokens, default=None)
    return StageTimes(
        decode_seconds=decode.get(1),
        loaded_seconds=None if loaded_sequences is None else decode.get(loaded_sequences),
        prefill_seconds_per_token=None if longest is None else longest.seconds / longest.num_tokens,
    )


def slowdowns_of(stats: Mapping[int, Stats], prediction: Prediction | None) -> Slowdowns:
    """Return the slowdown of every stage, as far as it is known, from the stages' measurements."""
    predicted = () if prediction is None else prediction.stages
    found: dict[tuple[int, str], float] = {}
    for index, each in stats.items():
        if each.slowdown is not None and 0 < each.slowdown < math.inf:
            found[index, "before"] = each.slowdown
        measured = stage_times(each.step_times, None).decode_seconds
        if measured is not None and index < len(predicted) and predicted[index].decode_seconds > 0:
            found[index, "predicted"] = measured / predicted[index].decode_seconds
    return found


def have_changed(before: Slowdowns, now: Slowdowns) -> bool:
    """Return whether the slowdown of any stage has changed enough for another search.

    An unknown one counts as unchanged. At first, everything is expected to be as predicted.
    """
    return any(
        max(new, before.get(key, 1.0)) >= CHANGE * min(new, before.get(key, 1.0))
        for key, new in now.items()
    )
