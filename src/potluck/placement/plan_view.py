"""Plans as documents: for a running cluster, and for machines described in a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from potluck.placement.explain import ADDED_NODE, Alternative, Explanation
from potluck.placement.layout import layout_nodes, written_layout
from potluck.placement.offering import units_by_id
from potluck.placement.side_by_side import Pipeline
from potluck.placement.views import (
    fields_in_force,
    placed_fields,
    prediction_view,
    stage_predictions,
)
from potluck.types.cluster import NodeId
from potluck.types.deployment import DeploymentRecord
from potluck.types.document import document_of
from potluck.types.documents.plan import (
    AlternativeDocument,
    AlternativeStage,
    DraftDocument,
    DraftStage,
    OtherPlan,
    PipelineDocument,
    PlanDocument,
    PlannedNode,
    PlannedStage,
    RejectedUnit,
    SideBySide,
)
from potluck.types.documents.stages import (
    GroupedPlace,
    StagePlace,
)
from potluck.types.groups import LayoutStage
from potluck.types.node import NodeReport
from potluck.types.placement import PlacedStage


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


def plan_view(outcome: PlanOutcome, coordinator: NodeId) -> PlanDocument:
    """Return the plan, for the output of ``potluck plan``."""
    record, reports = outcome.record, outcome.reports
    explanation = outcome.explanation or Explanation(rejections=())
    units = units_by_id(reports)
    prediction = record.status.plan.prediction
    return PlanDocument(
        model=record.spec.model,
        is_mapped=record.spec.is_mapped,
        objective=record.spec.objective,
        num_streams=record.spec.num_streams,
        has_layout=bool(record.spec.layout),
        **fields_in_force(record),
        coordinator=coordinator,
        nodes=tuple(document_of(PlannedNode, report) for report in reports),
        stages=tuple(
            document_of(
                PlannedStage,
                stage,
                **placed_fields(index, stage),
                usable_bytes=units[stage.unit].usable_bytes if stage.unit in units else None,
                predicted=predicted,
            )
            for index, (stage, predicted) in enumerate(
                zip(record.stages, stage_predictions(record), strict=True)
            )
        ),
        draft=_draft(outcome),
        prediction=prediction_view(prediction),
        link_basis=None if prediction is None else prediction.link_basis,
        one_unit_fewer=_alternative(explanation.one_unit_fewer),
        one_unit_more=_alternative(explanation.one_unit_more),
        side_by_side=_side_by_side(explanation.side_by_side, reports),
        in_groups=_other_plan(explanation.in_groups),
        without_groups=_other_plan(explanation.without_groups),
        rejections=tuple(
            document_of(RejectedUnit, each, added_seconds=explanation.added_seconds.get(each.unit))
            for each in record.status.plan.rejections
        ),
    )


def _draft(outcome: PlanOutcome) -> DraftDocument | None:
    """Return the draft model, and its stages."""
    draft = outcome.draft
    if draft is None:
        return None
    return DraftDocument(
        model=draft.spec.model,
        is_deployed=outcome.is_draft_deployed,
        stages=tuple(
            document_of(DraftStage, stage, num_bytes=stage.memory.total_bytes)
            for stage in draft.stages
        ),
    )


def _side_by_side(
    pipelines: Sequence[Pipeline], reports: Sequence[NodeReport]
) -> SideBySide | None:
    """Return several pipelines, each with the layout that deploys it."""
    if not pipelines:
        return None
    nodes = layout_nodes(reports)
    return SideBySide(
        total_tokens_per_second=sum(each.prediction.total_tokens_per_second for each in pipelines),
        pipelines=tuple(
            document_of(
                PipelineDocument,
                each.prediction,
                layout=written_layout(_layout(each.stages), nodes),
                stages=tuple(
                    document_of(StagePlace, stage, **_layers(stage)) for stage in each.stages
                ),
            )
            for each in pipelines
        ),
    )


def _other_plan(pipeline: Pipeline | None) -> OtherPlan | None:
    """Return a pipeline that was not chosen."""
    if pipeline is None:
        return None
    predicted = zip(pipeline.stages, pipeline.prediction.stages, strict=True)
    return document_of(
        OtherPlan,
        pipeline.prediction,
        stages=tuple(
            document_of(GroupedPlace, stage, **_layers(stage), part=stage.shard.part)
            for stage in pipeline.stages
        ),
        exchange_seconds=sum(
            each.exchange_seconds for stage, each in predicted if not stage.shard.is_led
        ),
    )


def _layers(stage: PlacedStage) -> dict[str, Any]:
    return {"start_layer": stage.shard.start_layer, "end_layer": stage.shard.end_layer}


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


def _alternative(alternative: Alternative | None) -> AlternativeDocument | None:
    if alternative is None:
        return None
    return document_of(
        AlternativeDocument,
        alternative.prediction,
        node_id=alternative.node_id,
        unit_id=alternative.unit_id,
        stages=tuple(
            AlternativeStage(
                node_id=None if stage.node_id == ADDED_NODE else stage.node_id,
                unit_id=stage.unit_id,
                **_layers(stage),
                is_added=stage.node_id == ADDED_NODE,
            )
            for stage in alternative.stages
        ),
    )
