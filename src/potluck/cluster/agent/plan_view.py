"""A plan that nothing was loaded for, in JSON's types: what ``potluck plan`` shows.

The same for a cluster that runs and for machines that a file describes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from potluck.cluster.agent.speed_view import prediction_view, stage_predictions
from potluck.cluster.agent.view import deployment_view, placed_view
from potluck.cluster.calls import DeploymentRecord
from potluck.placement.explain import ADDED_NODE, Alternative, Explanation
from potluck.placement.layout import layout_nodes, written_layout
from potluck.placement.side_by_side import Pipeline
from potluck.types.cluster import NodeId
from potluck.types.node import NodeReport
from potluck.types.placement import LayoutStage, PlacedStage, Prediction

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
    """A deployment as it would be, the reports of the nodes that it was planned on, and why.

    ``explanation`` is None where the plan was made without predictions.
    """

    record: DeploymentRecord
    reports: Sequence[NodeReport]
    explanation: Explanation | None


def plan_view(outcome: PlanOutcome, coordinator: NodeId) -> dict[str, object]:
    """Return the document of schema ``potluck.plan/1``, less its name."""
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
        "objective": record.objective.value,
        "num_streams": record.num_streams,
        "has_layout": bool(record.layout),
        "coordinator": coordinator,
        "nodes": [{"node_id": report.node_id, "name": report.name} for report in reports],
        "stages": stages,
        "prediction": prediction_view(record.prediction),
        "link_basis": _link_basis(record.prediction),
        "one_unit_fewer": None if explanation is None else _view(explanation.one_unit_fewer),
        "one_unit_more": None if explanation is None else _view(explanation.one_unit_more),
        "side_by_side": None
        if explanation is None
        else _side_by_side(explanation.side_by_side, reports),
        "rejections": [
            {
                "node_id": each.node_id,
                "unit_id": each.unit_id,
                "reason": each.reason,
                "added_seconds": added.get((each.node_id, each.unit_id)),
            }
            for each in record.rejections
        ],
    }


def _link_basis(prediction: Prediction | None) -> str | None:
    """Return what the hops rest on where they widen the margin; else None."""
    if prediction is None or prediction.link_basis is None:
        return None
    return prediction.link_basis.value


def _side_by_side(
    pipelines: Sequence[Pipeline], reports: Sequence[NodeReport]
) -> dict[str, object] | None:
    """Return several pipelines, each with the layout that a deployment of it takes."""
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


def _layout(stages: Sequence[PlacedStage]) -> list[LayoutStage]:
    return [
        LayoutStage(
            node_id=stage.node_id,
            unit_id=stage.unit_id,
            num_layers=stage.shard.end_layer - stage.shard.start_layer,
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
