"""A plan with each stage counted as its worker will count it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from potluck.loading.sizes import on_unit
from potluck.placement.counting import Counting
from potluck.placement.keeping import Holding
from potluck.placement.request import PlaceRequest
from potluck.types.arithmetic import Arithmetic
from potluck.types.choices import Quantization
from potluck.types.cluster import NodeId, UnitId
from potluck.types.node import NodeReport
from potluck.types.placement import Plan, Prediction, Rejection
from potluck.types.stage import StagePlan, StageSize


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """Where a model is placed, how it is quantized and computed, and what each stage takes there.

    ``held`` are the stages of it that workers held when it was planned. If it ``needs_room``, those
    that are not in the plan must be released before it is loaded. ``plan`` was chosen for
    ``request``, which is kept for explanations, and ``reports`` are what the nodes reported then.
    Nodes that are not among ``own_files`` do not have the files of the model at its path, and fetch
    them by content.
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
    own_files: tuple[NodeId, ...] = ()

    @property
    def kept(self) -> tuple[Holding, ...]:
        """Return the held stages that are stages of the plan."""
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
    """A stage on a unit; its worker arrives at the same count."""

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
    """Return ``plan`` with each stage counted on its unit."""
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
    """Return the same stages with mapped weights; None where the backend cannot map them."""
    return tuple(
        replace(
            stage,
            plan=counting.stage(stage.plan.shard, replace(stage.plan.size, is_mapped=True)),
        )
        if counting.abilities(stage.plan.size.backend).maps_weights
        else None
        for stage in stages
    )
