"""The cluster as seen by one agent, as JSON for ``/cluster`` and ``potluck ps``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

import msgspec

from potluck.cluster.agent.speed_view import (
    prediction_view,
    speed_view,
    stage_predictions,
    stage_times,
)
from potluck.cluster.coordinator.claiming import is_quorum
from potluck.types.cluster import WIRE_VERSION, Epoch, NodeId
from potluck.types.deployment import DeploymentRecord, DeploymentState, StageRecord
from potluck.types.gateway import ModelMetrics
from potluck.types.groups import GroupPart
from potluck.types.held_stage import HeldStage
from potluck.types.node import NodeReport

SLOW = 2.0
"""A stage is shown as slow if its steps take this many times as long as before. Other work on the
machine usually costs less."""


def cluster_view(
    own: NodeId,
    reports: Sequence[NodeReport],
    silent: Iterable[NodeId],
    incompatible: Mapping[NodeId, int],
    deployments: Sequence[DeploymentRecord],
    metrics: Iterable[ModelMetrics] = (),
) -> dict[str, object]:
    """Return the document of schema ``potluck.cluster/1``. ``metrics`` show slow stages."""
    metrics_of = {each.model_id: each for each in metrics}
    measured_of = {each.deployment: metrics_of.get(each.model_id) for each in deployments}
    nodes: list[dict[str, object]] = [_node(report) for report in reports]
    nodes += [{"node_id": node_id, "state": "silent"} for node_id in silent]
    return {
        "schema": "potluck.cluster/1",
        "node_id": own,
        "wire_version": WIRE_VERSION,
        "nodes": nodes,
        "incompatible": [
            {"node_id": node_id, "wire_version": version}
            for node_id, version in sorted(incompatible.items())
        ],
        "links": [link for report in reports for link in _links(report)],
        "deployments": [
            {
                **deployment_view(record),
                "refused": [
                    {"node_id": report.node_id, "reason": report.refused[record.deployment]}
                    for report in reports
                    if record.deployment in report.refused
                ],
                "spares": [
                    {"node_id": node_id, **_held_view(held)}
                    for node_id, held in _spares(record, reports)
                ],
                "slow_stages": list(_slow_stages(record, measured_of[record.deployment])),
                "measured": speed_view(record, measured_of[record.deployment]),
                "stages": [
                    {**stage, "measured": times}
                    for stage, times in zip(
                        _stage_views(record),
                        stage_times(record, measured_of[record.deployment]),
                        strict=True,
                    )
                ],
            }
            for record in deployments
        ],
    }


def _links(report: NodeReport) -> Iterator[dict[str, object]]:
    """Yield the links from a node as it has measured them, without impossible figures."""
    for link in report.links:
        figures = (link.latency_seconds, link.bytes_per_second, link.age_seconds)
        if all(math.isfinite(each) and each >= 0 for each in figures):
            yield {
                "from": report.node_id,
                "to": link.node_id,
                "latency_seconds": link.latency_seconds,
                "bytes_per_second": link.bytes_per_second,
                "num_samples": link.num_samples,
                "age_seconds": link.age_seconds,
            }


def as_seen(record: DeploymentRecord, alive: Set[NodeId]) -> DeploymentRecord:
    """Return ``record``, or a degraded version of it if its coordinator is not among ``alive``.

    Those that are alive include this node. If they are too few to agree on another coordinator,
    this node is probably the one that is cut off.
    """
    coordinator = record.epoch.coordinator
    if not record.is_ready or coordinator in alive:
        return record
    reason = f"node {coordinator}, its coordinator, is lost; another node takes over"
    if not is_quorum(record, alive):
        reason = "partitioned: most nodes that knew of this deployment are unreachable from here"
    return record.with_status(state=DeploymentState.DEGRADED, reason=reason)


def _spares(
    record: DeploymentRecord, reports: Iterable[NodeReport]
) -> Iterator[tuple[NodeId, HeldStage]]:
    """Return the stages that are held but not used by the current plan."""
    used = Counter(
        (stage.node_id, stage.unit_id, stage.start_layer, stage.end_layer, stage.part)
        for stage in record.stages
    )
    for report in reports:
        for held in report.held:
            if held.deployment != record.deployment:
                continue
            place = (report.node_id, held.unit_id, held.start_layer, held.end_layer, held.part)
            if used[place] > 0:
                used[place] -= 1
            else:
                yield report.node_id, held


def _slow_stages(
    record: DeploymentRecord, metrics: ModelMetrics | None
) -> Iterator[dict[str, object]]:
    """Return the stages whose steps take much longer than they used to."""
    if metrics is None or metrics.epoch != record.epoch.number:
        return
    for stage in metrics.stages:
        if stage.slowdown is not None and stage.slowdown >= SLOW:
            yield {"stage": stage.stage, "node_id": stage.node_id, "slowdown": stage.slowdown}


def _held_view(held: HeldStage) -> dict[str, object]:
    return {
        "unit_id": held.unit_id,
        "start_layer": held.start_layer,
        "end_layer": held.end_layer,
        "part": part_view(held.part),
        "epoch": _epoch_view(held.epoch),
        "num_bytes": held.num_bytes,
        "device_bytes": held.device_bytes,
        "is_mapped": held.is_mapped,
    }


def _epoch_view(epoch: Epoch) -> dict[str, object]:
    return {"number": epoch.number, "coordinator": epoch.coordinator}


def part_view(part: GroupPart | None) -> dict[str, object] | None:
    """Return the part of a stage that a member of a group has; None if one unit has all of it."""
    return None if part is None else {"member": part.member, "shares": list(part.shares)}


def placed_view(index: int, stage: StageRecord) -> dict[str, object]:
    """Return where a stage is placed, and its memory."""
    memory = stage.memory
    return {
        "stage": index,
        "node_id": stage.node_id,
        "unit_id": stage.unit_id,
        "start_layer": stage.start_layer,
        "end_layer": stage.end_layer,
        "part": part_view(stage.part),
        "num_bytes": memory.total_bytes,
        "memory": {
            "weights": dict(memory.weights),
            "cache_bytes": memory.cache_bytes,
            "state_bytes": memory.state_bytes,
            "rope_bytes": memory.rope_bytes,
            "scratch_bytes": memory.scratch_bytes,
            "staging_bytes": memory.staging_bytes,
            "process_bytes": memory.process_bytes,
            "is_on_device": memory.is_on_device,
        },
    }


def _stage_views(record: DeploymentRecord) -> list[dict[str, object]]:
    return [
        {
            **placed_view(index, stage),
            "read_bytes": stage.read_bytes,
            "load_seconds": stage.load_seconds,
            "progress": msgspec.to_builtins(stage.progress),
            "predicted": predicted,
        }
        for index, (stage, predicted) in enumerate(
            zip(record.stages, stage_predictions(record), strict=True)
        )
    ]


def deployment_view(record: DeploymentRecord) -> dict[str, object]:
    """Return one deployment: what was asked for, replaced by what is in force."""
    status, plan, files = record.status, record.status.plan, record.status.files
    return {
        **msgspec.to_builtins(record.spec),
        "deployment": record.deployment,
        "model_id": record.model_id,
        "state": status.state.value,
        "reason": status.reason,
        "epoch": _epoch_view(record.epoch),
        "has_quorum": record.has_quorum,
        "created": record.created,
        "context_tokens": status.context_tokens,
        "cache_tokens": status.cache_tokens,
        "num_states": status.num_states,
        "num_layers": record.facts.num_layers,
        "quantization": plan.quantization.value,
        "remarks": list(plan.remarks),
        "arithmetic": None if plan.arithmetic is None else plan.arithmetic.value,
        "arithmetic_note": plan.arithmetic_note,
        "done_bytes": status.done_bytes,
        "total_bytes": status.total_bytes,
        "num_recoveries": status.num_recoveries,
        "recovery_seconds": status.recovery_seconds,
        "rebalance_note": status.rebalance_note,
        "verification": None if files.verification is None else files.verification.value,
        "transfers": [
            {"node_id": each.node_id, **msgspec.to_builtins(each.transfer)}
            for each in files.transfers
        ],
        "prediction": prediction_view(plan.prediction),
        "stages": _stage_views(record),
        "rejections": msgspec.to_builtins(plan.rejections),
    }


def _node(report: NodeReport) -> dict[str, object]:
    return {
        "node_id": report.node_id,
        "state": "draining" if report.is_draining else "ready",
        "name": report.name,
        "address": report.address,
        "http_address": report.http_address,
        "version": report.version,
        "host_id": report.host_id,
        "available_bytes": report.available_bytes,
        "available_reason": report.available_reason,
        "memory_limit_bytes": report.memory_limit_bytes,
        "held": [{"deployment": held.deployment, **_held_view(held)} for held in report.held],
        "units": [
            {
                "unit_id": unit.unit_id,
                "backend": unit.backend,
                "description": unit.description,
                "role": unit.role.value,
                "reason": unit.reason,
                "usable_bytes": unit.usable_bytes,
                "is_shared": unit.is_shared,
                "num_threads": unit.num_threads,
                "rates": msgspec.to_builtins(unit.rates),
                "arithmetics": [each.value for each in unit.arithmetics],
            }
            for unit in report.units
        ],
        "hardware": msgspec.to_builtins(report.hardware),
    }
