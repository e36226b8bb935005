"""Make a plan from what is known of nodes, in the fixed or the best arithmetic. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from potluck.placement.arithmetics import computing_in, plan_in
from potluck.placement.counting import Counting
from potluck.placement.planned import PlannedModel, planned_model
from potluck.placement.survey import ClusterSurvey
from potluck.types.arithmetic import Arithmetic
from potluck.types.placement import Rejection
from potluck.types.stage import StageSize

if TYPE_CHECKING:
    from potluck.placement.explain import Explanation


def plan_surveyed(
    counting: Counting,
    surveyed: ClusterSurvey,
    size: StageSize,
    *,
    may_quantize: bool,
    arithmetic: Arithmetic | None,
    rejections: Iterable[Rejection] = (),
) -> PlannedModel:
    """Return the plan for the nodes that were ``surveyed``.

    With ``may_quantize`` the model is quantized as little as makes it fit, but at least as much as
    ``size`` says. For ``arithmetic`` see ``plan_in``. ``rejections`` are units that are not among
    those surveyed. Raises the same errors as ``plan_in`` and ``Placement.of``.
    """
    from potluck.placement.placing import Placement  # loads NumPy, and most agents never plan

    others = tuple(rejections)

    def plan(arithmetic: Arithmetic) -> PlannedModel:
        in_arithmetic = replace(size, arithmetic=arithmetic)
        computing = computing_in(arithmetic, surveyed.able)
        placement = Placement(counting, replace(surveyed, able=computing.reports))
        placed = placement.of(in_arithmetic, may_quantize=may_quantize)
        planned = planned_model(
            placed.plan,
            replace(in_arithmetic, quantization=placed.quantization),
            computing.reports,
            (*others, *computing.rejections, *placed.rejections),
            counting,
        )
        return replace(
            planned,
            needs_room=placed.needs_room,
            held=tuple(surveyed.held),
            request=placed.request,
            plan=placed.plan,
            reports=tuple(surveyed.reports),
        )

    return plan_in(arithmetic, surveyed.able, plan)


def explanation_of(planned: PlannedModel) -> Explanation | None:
    """Return the explanation of a plan; None if it was made without regard to speed."""
    if planned.request is None or planned.plan is None or planned.prediction is None:
        return None
    from potluck.placement.explain import explain  # most agents never plan

    return explain(planned.request, planned.plan)
