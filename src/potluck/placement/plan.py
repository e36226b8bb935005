"""Make a plan from what is known of nodes, in the fixed or the best arithmetic. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from potluck.engines.arithmetic_choice import is_faster_for
from potluck.engines.backends import abilities_of
from potluck.errors import EngineError, InsufficientMemoryError
from potluck.placement.costs import Counting
from potluck.placement.offering import Sifted, sifted, usable_units
from potluck.placement.planned import PlannedModel, planned_stages
from potluck.placement.snapshot import ClusterSnapshot
from potluck.placement.speed import multiply_adds
from potluck.types.arithmetic import FASTEST_FIRST, Arithmetic
from potluck.types.node import NodeReport, UnitReport
from potluck.types.placement import Rejection
from potluck.types.stage import StageSize
from potluck.types.tensor import TensorFormat

if TYPE_CHECKING:
    from potluck.placement.explain import Explanation


_HINT = "--arithmetic exact uses every unit"


def computing_in(arithmetic: Arithmetic, reports: Sequence[NodeReport]) -> Sifted:
    """Return the units of ``reports`` that can take part in a deployment with this arithmetic.

    Only units of the native backend compute in a requested arithmetic: a unit that does not support
    the arithmetic of a deployment is left out of it. Units of other backends always use an
    arithmetic of their own (docs/adr/0013), and stay.
    """
    reason = f"it does not support the {arithmetic.value} arithmetic of this deployment"
    return sifted(reports, lambda unit: None if _has(unit, arithmetic) else reason)


def plan_in(
    fixed: Arithmetic | None,
    reports: Sequence[NodeReport],
    plan: Callable[[Arithmetic], PlannedModel],
) -> PlannedModel:
    """Return the result of ``plan`` in the ``fixed`` arithmetic; None chooses a fast one.

    The fast one is that which most units support, of those that speed up products with these
    weights and in which the model fits. If there is none for these weights, the arithmetic is
    exact, and the note says so. Raises the same errors as ``plan`` (``InsufficientMemoryError``
    with the hint that exact uses every unit), and ``EngineError`` if no unit supports the fixed
    one.
    """
    if fixed is Arithmetic.EXACT:
        planned = plan(fixed)
        return replace(planned, arithmetic_note=_note_of_exact(planned, reports))
    if fixed is not None:
        if not any(_has(unit, fixed) for _, unit in _native(reports)):
            raise EngineError(
                f"no unit supports {fixed.value}, the arithmetic with which this model was "
                "deployed",
                hint="deploy it again: --arithmetic exact uses every unit",
            )
        planned = _with_hint(plan, fixed)
        return replace(planned, arithmetic_note=_note_of_fast(planned, reports))
    exact = plan(Arithmetic.EXACT)
    failure: InsufficientMemoryError | None = None
    for arithmetic in _fast_for(exact, reports):
        try:
            planned = _with_hint(plan, arithmetic)
        except InsufficientMemoryError as error:
            failure = failure or error
            continue
        if is_faster_for(arithmetic, _formats(planned)):  # it may be quantized differently
            return replace(planned, arithmetic_note=_note_of_fast(planned, reports))
    if failure is not None:
        raise failure
    formats = ", ".join(sorted(_formats(exact)))
    note = f"exact, since no CPU here has fast products for its weights ({formats})"
    return replace(exact, arithmetic_note=note)


def _with_hint(plan: Callable[[Arithmetic], PlannedModel], arithmetic: Arithmetic) -> PlannedModel:
    try:
        return plan(arithmetic)
    except InsufficientMemoryError as error:
        raise InsufficientMemoryError(
            error.needed_bytes,
            error.available_bytes,
            f"in {arithmetic.value} arithmetic {error.message}",
            hint="; or ".join(part for part in (error.hint, _HINT) if part),
        ) from error


def _note_of_exact(planned: PlannedModel, reports: Sequence[NodeReport]) -> str:
    """Return what fast would gain, and where; empty if it would gain nothing."""
    arithmetic = next(iter(_fast_for(planned, reports)), None)
    if arithmetic is None:
        return ""
    units = _native(reports)
    num_able = sum(_has(unit, arithmetic) for _, unit in units)
    where = f"on {num_able} of {len(units)} CPUs, and leave the others out"
    if num_able == len(units):
        where = f"on {'the CPU' if num_able == 1 else f'all {num_able} CPUs'}"
    return (
        f"exact, bit-identical on every CPU; fast ({arithmetic.value}) would "
        f"{_gain(arithmetic, planned, reports)} {where}"
    )


def _note_of_fast(planned: PlannedModel, reports: Sequence[NodeReport]) -> str:
    arithmetic = planned.arithmetic
    gain = _gain(arithmetic, planned, reports)
    return f"{arithmetic.value} (fast), bit-identical on CPUs that have it, to {gain}"


def _gain(arithmetic: Arithmetic, planned: PlannedModel, reports: Sequence[NodeReport]) -> str:
    """Return a text such as ``compute prompts' products 2.0 times as fast (measured)``.

    Measurements are of BF16 weights, in the fast arithmetic of a unit's fastest instruction set.
    """
    faster = {each.label for each in arithmetic.fast_formats} & _formats(planned)
    products = f"compute prompts' products of {', '.join(sorted(faster))}"
    ratios = [
        ratio
        for report, unit in _native(reports)
        if _has(unit, arithmetic) and (ratio := _measured(report, unit, arithmetic)) is not None
    ]
    if TensorFormat.BF16.label not in faster or not ratios:
        return f"{products} faster (not measured)"
    times = f"{min(ratios):.1f}"
    if f"{max(ratios):.1f}" != times:
        times += f" to {max(ratios):.1f}"
    return f"{products} {times} times as fast (measured with bf16)"


def _measured(report: NodeReport, unit: UnitReport, arithmetic: Arithmetic) -> float | None:
    """Return how many times as fast as in exact arithmetic a unit multiplies BF16 weights."""
    for trial in report.hardware.trials:
        if trial.unit_id != unit.unit_id or trial.variants[-1:] != (arithmetic.isa,):
            continue
        fast = multiply_adds(trial.figures.fast_bf16_operations_per_second)
        exact = multiply_adds(trial.figures.f16_operations_per_second)
        return None if fast is None or exact is None else fast.value / exact.value
    return None


def _fast_for(planned: PlannedModel, reports: Sequence[NodeReport]) -> list[Arithmetic]:
    """Return the fast arithmetics for its weights: those that most units support first, then the
    fastest.
    """
    formats = _formats(planned)
    units = _native(reports)
    counts = {each: sum(_has(unit, each) for _, unit in units) for each in FASTEST_FIRST}
    able = [each for each in FASTEST_FIRST if counts[each] and is_faster_for(each, formats)]
    return sorted(able, key=lambda each: -counts[each])


def _formats(planned: PlannedModel) -> frozenset[str]:
    return frozenset().union(*(stage.plan.product_formats for stage in planned.stages))


def _native(reports: Sequence[NodeReport]) -> list[tuple[NodeReport, UnitReport]]:
    """Return the units that compute in a requested arithmetic and may be used."""
    usable = usable_units(reports, with_reserve=True)
    return [each for each in usable if _supports_arithmetic_choice(each[1])]


def _has(unit: UnitReport, arithmetic: Arithmetic) -> bool:
    return not _supports_arithmetic_choice(unit) or arithmetic in unit.arithmetics


def _supports_arithmetic_choice(unit: UnitReport) -> bool:
    """Return whether a unit computes in a requested arithmetic. Older versions do not report
    which.
    """
    return bool(unit.arithmetics) or abilities_of(unit.backend).has_arithmetics


def make_plan(
    counting: Counting,
    snapshot: ClusterSnapshot,
    size: StageSize,
    *,
    may_quantize: bool,
    arithmetic: Arithmetic | None,
    rejections: Iterable[Rejection] = (),
) -> PlannedModel:
    """Return the plan for the nodes in ``snapshot``.

    With ``may_quantize`` the model is quantized as little as makes it fit, but at least as much as
    ``size`` says. For ``arithmetic`` see ``plan_in``. ``rejections`` are units that are not in
    it. Raises the same errors as ``plan_in`` and ``Placement.of``.
    """
    from potluck.placement.placing import Placement  # loads NumPy, and most agents never plan

    others = tuple(rejections)

    def plan(arithmetic: Arithmetic) -> PlannedModel:
        in_arithmetic = replace(size, arithmetic=arithmetic)
        computing = computing_in(arithmetic, snapshot.able)
        placement = Placement(counting, replace(snapshot, able=computing.reports))
        placed = placement.of(in_arithmetic, may_quantize=may_quantize)
        own_size = replace(in_arithmetic, quantization=placed.quantization)
        stages = planned_stages(placed.plan.stages, own_size, computing.reports, counting)
        return PlannedModel(
            quantization=placed.quantization,
            arithmetic=arithmetic,
            arithmetic_note="",
            stages=tuple(stages),
            rejections=(
                *placed.plan.rejections,
                *others,
                *computing.rejections,
                *placed.rejections,
            ),
            needs_room=placed.needs_room,
            prediction=placed.plan.prediction,
            request=placed.request,
            plan=placed.plan,
            held=tuple(snapshot.held),
            reports=tuple(snapshot.reports),
        )

    return plan_in(arithmetic, snapshot.able, plan)


def explanation_of(planned: PlannedModel) -> Explanation | None:
    """Return the explanation of a plan; None if it was made without regard to speed."""
    if planned.request is None or planned.plan is None or planned.prediction is None:
        return None
    from potluck.placement.explain import explain  # most agents never plan

    return explain(planned.request, planned.plan)
