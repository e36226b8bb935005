"""A plan counted stage by stage, as its workers will count it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from potluck.placement.counting import Counting
from potluck.placement.keeping import Holding
from potluck.placement.request import PlaceRequest
from potluck.placement.sizes import on_unit
from potluck.types.arithmetic import Arithmetic
from potluck.types.cluster import NodeId, UnitId
from potluck.types.node import NodeReport
from potluck.types.placement import Plan, Prediction, Rejection
from potluck.types.quantization import Quantization
from potluck.types.stage import StagePlan, StageSize


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """Where a model goes, how it is quantized and computed, and what each stage takes there.

    ``held`` are the stages that workers held of it when it was planned. Those of them that are not
    in the plan have to be released before it is loaded, if it ``needs_room``. ``plan`` is what was
    chosen of ``request``, for those who want to know why, and ``reports`` are what the nodes said
    of themselves then.
    """

    quantization: Quantization
    arithmetic: Arithmetic
    arithmetic_note: str
    stages: tuple[PlannedStage, ...]
    rejections: tuple[Rejection, ...]
    needs_room: bool = False
    prediction: Prediction | None = None
    request: PlaceRequest | None = None
    plan: Plan | None = None
    held: tuple[Holding, ...] = ()
    reports: tuple[NodeReport, ...] = ()

    @property
    def kept(self) -> tuple[Holding, ...]:
        """The held stages that are stages of the plan."""
        return tuple(
            holding
            for holding in self.held
            if any(
                holding.is_stage((each.node_id, each.unit_id), each.plan.shard, each.plan.size)
                for each in self.stages
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """A stage on a unit; its worker counts the same."""

    node_id: NodeId
    unit_id: UnitId
    plan: StagePlan


def planned_model(
    plan: Plan,
    size: StageSize,
    reports: Sequence[NodeReport],
    rejections: Iterable[Rejection],
    counting: Counting,
) -> PlannedModel:
    """``plan`` counted stage by stage, each as it is on its unit."""
    units = {(report.node_id, unit.unit_id): unit for report in reports for unit in report.units}
    stages = []
    for placed in plan.stages:
        unit = units[placed.node_id, placed.unit_id]
        own_size = on_unit(size, unit, counting.abilities(unit.backend))
        counted = counting.stage(
            placed.shard, replace(own_size, is_mapped=own_size.is_mapped or placed.is_mapped)
        )
        stages.append(PlannedStage(node_id=placed.node_id, unit_id=placed.unit_id, plan=counted))
    return PlannedModel(
        quantization=size.quantization,
        arithmetic=size.arithmetic,
        arithmetic_note="",
        stages=tuple(stages),
        rejections=(*plan.rejections, *rejections),
        prediction=plan.prediction,
    )


def as_mapped(
    stages: Sequence[PlannedStage], counting: Counting
) -> tuple[PlannedStage | None, ...]:
    """The same stages with their weights mapped; None where the backend cannot."""
    return tuple(
        replace(
            stage,
            plan=counting.stage(stage.plan.shard, replace(stage.plan.size, is_mapped=True)),
        )
        if counting.abilities(stage.plan.size.backend).maps_weights
        else None
        for stage in stages
    )
