"""The cluster as seen by one agent, for ``/cluster`` and ``potluck ps``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

import msgspec

from potluck.cluster.coordinator.claiming import is_quorum
from potluck.placement.views import (
    fields_in_force,
    placed_fields,
    prediction_view,
    stage_predictions,
)
from potluck.types.cluster import WIRE_VERSION, NodeId
from potluck.types.deployment import DeploymentRecord, DeploymentState
from potluck.types.document import document_of
from potluck.types.documents.cluster import (
    ClusterDeployment,
    ClusterDocument,
    DeployDocument,
    DrainingNode,
    IncompatibleNode,
    LinkDocument,
    MeasuredStage,
    NodeStage,
    ReadyNode,
    RefusingNode,
    SilentNode,
    SlowStage,
    Spare,
    SpeedDocument,
    StageDocument,
    StageTimes,
    TokenSpeed,
    TransferDocument,
    UnitDocument,
)
from potluck.types.gateway import GenerationTotals, ModelMetrics
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
) -> ClusterDocument:
    """Return the cluster. ``metrics`` show slow stages."""
    metrics_of = {each.model_id: each for each in metrics}
    return ClusterDocument(
        node_id=own,
        wire_version=WIRE_VERSION,
        nodes=(
            *(_node(report) for report in reports),
            *(SilentNode(node_id=node_id) for node_id in silent),
        ),
        incompatible=tuple(
            IncompatibleNode(node_id=node_id, wire_version=version)
            for node_id, version in sorted(incompatible.items())
        ),
        links=tuple(link for report in reports for link in _links(report)),
        deployments=tuple(
            _cluster_deployment(record, reports, metrics_of.get(record.model_id))
            for record in deployments
        ),
    )


def _cluster_deployment(
    record: DeploymentRecord, reports: Sequence[NodeReport], metrics: ModelMetrics | None
) -> ClusterDeployment:
    shown = deployment_view(record)
    return document_of(
        ClusterDeployment,
        shown,
        stages=tuple(
            document_of(MeasuredStage, stage, measured=times)
            for stage, times in zip(shown.stages, _stage_times(record, metrics), strict=True)
        ),
        measured=_speed(record, metrics),
        slow_stages=tuple(_slow_stages(record, metrics)),
        refused=tuple(
            RefusingNode(node_id=report.node_id, reason=report.refused[record.deployment])
            for report in reports
            if record.deployment in report.refused
        ),
        spares=tuple(
            document_of(Spare, held, held.shard, node_id=node_id)
            for node_id, held in _spares(record, reports)
        ),
    )


def _links(report: NodeReport) -> Iterator[LinkDocument]:
    """Yield the links from a node as it has measured them, without impossible figures."""
    for link in report.links:
        figures = (link.latency_seconds, link.bytes_per_second, link.age_seconds)
        if all(math.isfinite(each) and each >= 0 for each in figures):
            yield document_of(LinkDocument, link, source=report.node_id, target=link.node_id)


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
    used = Counter(stage.place for stage in record.stages)
    for report in reports:
        for held in report.held:
            if held.deployment != record.deployment:
                continue
            shard = held.shard
            place = (report.node_id, held.unit_id, shard.start_layer, shard.end_layer, shard.part)
            if used[place] > 0:
                used[place] -= 1
            else:
                yield report.node_id, held


def _speed(record: DeploymentRecord, metrics: ModelMetrics | None) -> SpeedDocument:
    """Return the measured speed of a deployment as a whole; nothing of an earlier epoch.

    ``first_token_seconds`` is the mean over the ``num_first_tokens`` sequences that were given
    their first token since the coordinator started, so it may include those of earlier epochs.
    """
    speed = TokenSpeed()
    generated = GenerationTotals()
    if metrics is not None and metrics.epoch == record.epoch.number:
        speed, generated = metrics.speed, metrics.generated
    number = generated.num_first_tokens
    return document_of(
        SpeedDocument,
        speed,
        first_token_seconds=generated.first_token_seconds / number if number else None,
        num_first_tokens=number or None,
    )


def _stage_times(record: DeploymentRecord, metrics: ModelMetrics | None) -> Sequence[StageTimes]:
    """Return the measured times of each stage of ``record`` in the current epoch."""
    times: dict[int, StageTimes] = {}
    if metrics is not None and metrics.epoch == record.epoch.number:
        times = {each.stage: each.times for each in metrics.stages}
    return [times.get(index, StageTimes()) for index in range(len(record.stages))]


def _slow_stages(record: DeploymentRecord, metrics: ModelMetrics | None) -> Iterator[SlowStage]:
    """Yield the stages whose steps take much longer than they used to."""
    if metrics is None or metrics.epoch != record.epoch.number:
        return
    for stage in metrics.stages:
        if stage.slowdown is not None and stage.slowdown >= SLOW:
            yield document_of(SlowStage, stage)


def deployment_view(record: DeploymentRecord) -> DeployDocument:
    """Return one deployment: what was asked for, replaced by what is in force."""
    status, plan, files = record.status, record.status.plan, record.status.files
    return document_of(
        DeployDocument,
        status,
        **(msgspec.structs.asdict(record.spec) | fields_in_force(record)),
        deployment=record.deployment,
        model_id=record.model_id,
        epoch=record.epoch,
        has_quorum=record.has_quorum,
        created=record.created,
        verification=files.verification,
        transfers=tuple(
            document_of(TransferDocument, each.transfer, node_id=each.node_id)
            for each in files.transfers
        ),
        prediction=prediction_view(plan.prediction),
        stages=tuple(
            document_of(
                StageDocument,
                stage,
                **placed_fields(index, stage),
                predicted=predicted,
            )
            for index, (stage, predicted) in enumerate(
                zip(record.stages, stage_predictions(record), strict=True)
            )
        ),
        rejections=plan.rejections,
    )


def _node(report: NodeReport) -> ReadyNode:
    return document_of(
        DrainingNode if report.is_draining else ReadyNode,
        report,
        held=tuple(document_of(NodeStage, held, held.shard) for held in report.held),
        units=tuple(document_of(UnitDocument, unit) for unit in report.units),
    )
