"""A plan as JSON, as shown by ``potluck plan``.

Used for a running cluster and for machines described in a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from potluck.cluster.agent.speed_view import prediction_view, stage_predictions
from potluck.cluster.agent.view import deployment_view, part_view, placed_view
from potluck.placement.explain import ADDED_NODE, Alternative, Explanation
from potluck.placement.layout import layout_nodes, written_layout
from potluck.placement.side_by_side import Pipeline
from potluck.types.cluster import NodeId
from potluck.types.deployment import DeploymentRecord
from potluck.types.groups import LayoutStage
from potluck.types.node import NodeReport
from potluck.types.placement import PlacedStage, Prediction

_SHARED = (
    "model",
    "context_tokens",
    "cache_tokens",
    "num_states",
    "num_layers",
    "quantization",
    "is_mapped",
    "remarks",
    "arithmetic",
    "arithmetic_note",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOutcome:
    """A planned deployment, the reports of the nodes that it was planned on, and an explanation.

    ``explanation`` is None if the plan was made without predictions. ``draft`` is the deployment
    of its draft model, if it has one, planned first or ``is_draft_deployed`` already.
    """

    record: DeploymentRecord
    reports: Sequence[NodeReport]
    explanation: Explanation | None
    draft: DeploymentRecord | None = None
    is_draft_deployed: bool = False


def plan_view(outcome: PlanOutcome, coordinator: NodeId) -> dict[str, object]:
    """Return the document of schema ``potluck.plan/1``, without its ``schema`` field."""
    record, reports, explanation = outcome.record, outcome.reports, outcome.explanation
    view = deployment_view(record)
    usable = {
        (report.node_id, unit.unit_id): unit.usable_bytes
        for report in reports
        for unit in report.units
    }
    stages = [
        {
            **placed_view(index, stage),
            "usable_bytes": usable.get((stage.node_id, stage.unit_id)),
            "predicted": predicted,
        }
        for index, (stage, predicted) in enumerate(
            zip(record.stages, stage_predictions(record), strict=True)
        )
    ]
    added = {} if explanation is None else explanation.added_seconds
    return {
        **{name: view[name] for name in _SHARED},
        "objective": record.spec.objective.value,
        "num_streams": record.spec.num_streams,
        "has_layout": bool(record.spec.layout),
        "coordinator": coordinator,
        "nodes": [{"node_id": report.node_id, "name": report.name} for report in reports],
        "stages": stages,
        "draft": _draft_view(outcome),
        "prediction": prediction_view(record.status.plan.prediction),
        "link_basis": _link_basis(record.status.plan.prediction),
        "one_unit_fewer": None if explanation is None else _view(explanation.one_unit_fewer),
        "one_unit_more": None if explanation is None else _view(explanation.one_unit_more),
        "side_by_side": None
        if explanation is None
        else _side_by_side(explanation.side_by_side, reports),
        "in_groups": None if explanation is None else _pipeline_view(explanation.in_groups),
        "without_groups": None
        if explanation is None
        else _pipeline_view(explanation.without_groups),
        "rejections": [
            {
                "node_id": each.node_id,
                "unit_id": each.unit_id,
                "reason": each.reason,
                "added_seconds": added.get((each.node_id, each.unit_id)),
            }
            for each in record.status.plan.rejections
        ],
    }


def _draft_view(outcome: PlanOutcome) -> dict[str, object] | None:
    """Return the draft model, and what its stages take."""
    draft = outcome.draft
    if draft is None:
        return None
    return {
        "model": draft.spec.model,
        "is_deployed": outcome.is_draft_deployed,
        "stages": [
            {
                "node_id": stage.node_id,
                "unit_id": stage.unit_id,
                "start_layer": stage.start_layer,
                "end_layer": stage.end_layer,
                "part": part_view(stage.part),
                "num_bytes": stage.memory.total_bytes,
            }
            for stage in draft.stages
        ],
    }


def _link_basis(prediction: Prediction | None) -> str | None:
    """Return the basis of the hop times if it widens the margin; else None."""
    if prediction is None or prediction.link_basis is None:
        return None
    return prediction.link_basis.value


def _side_by_side(
    pipelines: Sequence[Pipeline], reports: Sequence[NodeReport]
) -> dict[str, object] | None:
    """Return several pipelines, each with the layout that deploys it."""
    if not pipelines:
        return None
    nodes = layout_nodes(reports)
    return {
        "total_tokens_per_second": sum(
            each.prediction.total_tokens_per_second for each in pipelines
        ),
        "pipelines": [
            {
                "layout": written_layout(_layout(each.stages), nodes),
                "stages": [
                    {
                        "node_id": stage.node_id,
                        "unit_id": stage.unit_id,
                        "start_layer": stage.shard.start_layer,
                        "end_layer": stage.shard.end_layer,
                    }
                    for stage in each.stages
                ],
                "num_streams": each.prediction.num_streams,
                "token_seconds": each.prediction.token_seconds,
                "first_token_seconds": each.prediction.first_token_seconds,
                "total_tokens_per_second": each.prediction.total_tokens_per_second,
            }
            for each in pipelines
        ],
    }


def _pipeline_view(pipeline: Pipeline | None) -> dict[str, object] | None:
    """Return a pipeline that was not chosen."""
    if pipeline is None:
        return None
    predicted = zip(pipeline.stages, pipeline.prediction.stages, strict=True)
    return {
        "stages": [
            {
                "node_id": stage.node_id,
                "unit_id": stage.unit_id,
                "start_layer": stage.shard.start_layer,
                "end_layer": stage.shard.end_layer,
                "part": part_view(stage.shard.part),
            }
            for stage in pipeline.stages
        ],
        "token_seconds": pipeline.prediction.token_seconds,
        "exchange_seconds": sum(
            each.exchange_seconds for stage, each in predicted if not stage.shard.is_led
        ),
        "first_token_seconds": pipeline.prediction.first_token_seconds,
        "total_tokens_per_second": pipeline.prediction.total_tokens_per_second,
    }


def _layout(stages: Sequence[PlacedStage]) -> list[LayoutStage]:
    return [
        LayoutStage(
            node_id=stage.node_id,
            unit_id=stage.unit_id,
            num_layers=stage.shard.end_layer - stage.shard.start_layer,
            part=stage.shard.part,
        )
        for stage in stages
    ]


def _view(alternative: Alternative | None) -> dict[str, object] | None:
    if alternative is None:
        return None
    return {
        "node_id": alternative.node_id,
        "unit_id": alternative.unit_id,
        "stages": [
            {
                "node_id": None if stage.node_id == ADDED_NODE else stage.node_id,
                "unit_id": stage.unit_id,
                "start_layer": stage.shard.start_layer,
                "end_layer": stage.shard.end_layer,
                "is_added": stage.node_id == ADDED_NODE,
            }
            for stage in alternative.stages
        ],
        "token_seconds": alternative.prediction.token_seconds,
        "tokens_per_second": alternative.prediction.tokens_per_second,
        "first_token_seconds": alternative.prediction.first_token_seconds,
        "total_tokens_per_second": alternative.prediction.total_tokens_per_second,
    }
