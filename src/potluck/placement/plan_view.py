"""Plans and moves as documents: for a running cluster, and for machines described in a file."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from potluck.placement.explain import ADDED_NODE, Alternative, Explanation
from potluck.placement.layout import layout_nodes, written_layout
from potluck.placement.side_by_side import Pipeline
from potluck.types.cluster import NodeId
from potluck.types.deployment import DeploymentRecord, MoveOutcome, RebalanceReport, StageRecord
from potluck.types.documents.base import document_of
from potluck.types.documents.plan import (
    AlternativeDocument,
    AlternativeStage,
    BetterPlan,
    DraftDocument,
    DraftStage,
    MoveDocument,
    MovePlan,
    MoveStage,
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
    PredictionDocument,
    StageMemory,
    StagePlace,
    StagePredictionDocument,
)
from potluck.types.groups import LayoutStage
from potluck.types.node import NodeReport
from potluck.types.placement import PlacedStage, Prediction, StagePrediction


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
    record, reports, explanation = outcome.record, outcome.reports, outcome.explanation
    usable = {
        (report.node_id, unit.unit_id): unit.usable_bytes
        for report in reports
        for unit in report.units
    }
    explained: dict[str, Any] = {
        "one_unit_fewer": None,
        "one_unit_more": None,
        "side_by_side": None,
        "in_groups": None,
        "without_groups": None,
    }
    if explanation is not None:
        explained = {
            "one_unit_fewer": _alternative(explanation.one_unit_fewer),
            "one_unit_more": _alternative(explanation.one_unit_more),
            "side_by_side": _side_by_side(explanation.side_by_side, reports),
            "in_groups": _other_plan(explanation.in_groups),
            "without_groups": _other_plan(explanation.without_groups),
        }
    added = {} if explanation is None else explanation.added_seconds
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
                usable_bytes=usable.get((stage.node_id, stage.unit_id)),
                predicted=predicted,
            )
            for index, (stage, predicted) in enumerate(
                zip(record.stages, stage_predictions(record), strict=True)
            )
        ),
        draft=_draft(outcome),
        prediction=prediction_view(prediction),
        link_basis=None if prediction is None else prediction.link_basis,
        **explained,
        rejections=tuple(
            document_of(RejectedUnit, each, added_seconds=added.get((each.node_id, each.unit_id)))
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


def placed_fields(index: int, stage: StageRecord) -> dict[str, Any]:
    """Return the fields of ``PlacedStageDocument`` that ``stage`` does not have as such."""
    memory = stage.memory
    return {
        "stage": index,
        "num_bytes": memory.total_bytes,
        "memory": document_of(StageMemory, memory, weights=dict(memory.weights)),
    }


def fields_in_force(record: DeploymentRecord) -> dict[str, Any]:
    """Return what is in force of the settings, as documents about the deployment show it."""
    status, plan = record.status, record.status.plan
    return {
        "context_tokens": status.context_tokens,
        "cache_tokens": status.cache_tokens,
        "num_states": status.num_states,
        "num_layers": record.facts.num_layers,
        "quantization": plan.quantization,
        "remarks": plan.remarks,
        "arithmetic": plan.arithmetic,
        "arithmetic_note": plan.arithmetic_note,
    }


def prediction_view(prediction: Prediction | None) -> PredictionDocument | None:
    """Return the prediction for a plan as a whole; None if there is none."""
    if prediction is None or not _is_finite(prediction):
        return None
    return document_of(PredictionDocument, prediction)


def stage_predictions(record: DeploymentRecord) -> Sequence[StagePredictionDocument | None]:
    """Return the prediction for each stage of ``record``."""
    prediction = record.status.plan.prediction
    predicted: Sequence[StagePrediction] = ()
    if prediction is not None and _is_finite(prediction):
        predicted = prediction.stages
    units = [(stage.node_id, stage.unit_id) for stage in record.stages]
    if units != [(each.node_id, each.unit_id) for each in predicted]:
        return [None] * len(units)
    return [document_of(StagePredictionDocument, each) for each in predicted]


def _is_finite(prediction: Prediction) -> bool:
    """Whether JSON can represent it: records come from other nodes."""
    whole = dataclasses.asdict(prediction)
    documents = (whole, *whole["stages"])
    values = [value for document in documents for value in document.values()]
    return all(math.isfinite(value) for value in values if isinstance(value, float))


def rebalance_view(report: RebalanceReport) -> MoveDocument:
    """Return one deployment and the plan that it was moved to, or would be, if there is one."""
    better = None
    if report.outcome is not MoveOutcome.STAYS and report.new_stages:
        better = document_of(BetterPlan, report, **_plan(report.new_stages, report.predicted))
    in_force = MovePlan(**_plan(report.stages, report.in_force))
    return document_of(
        MoveDocument, report, outcome=report.outcome.value, in_force=in_force, better=better
    )


def _plan(stages: Sequence[StageRecord], prediction: Prediction | None) -> dict[str, Any]:
    """Return the fields of ``MovePlan``."""
    seconds: list[float | None] = [None] * len(stages)
    if prediction is not None and len(prediction.stages) == len(stages):
        seconds = [each.decode_seconds for each in prediction.stages]
    return {
        "stages": tuple(
            document_of(
                MoveStage,
                stage,
                stage=index,
                num_bytes=stage.memory.total_bytes,
                decode_seconds=decode_seconds,
            )
            for index, (stage, decode_seconds) in enumerate(zip(stages, seconds, strict=True))
        ),
        "prediction": prediction_view(prediction),
    }
