"""A model placed on what nodes offer: with as few slow units, and as precise, as it fits."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import msgspec

from potluck.errors import (
    EngineError,
    InsufficientMemoryError,
    PotluckError,
    UnsupportedModelError,
)
from potluck.placement.costs import mixed_cost, model_cost, most_host_bytes
from potluck.placement.counting import Counting
from potluck.placement.keeping import Holding, is_of_size, keep_and_fill, kept, released
from potluck.placement.offering import Offered, offers, reason_against
from potluck.placement.proportional import place
from potluck.placement.sizes import on_unit, stronger_quantizations, what_fits
from potluck.types.cluster import NodeId, UnitId
from potluck.types.node import NodeReport, UnitReport
from potluck.types.placement import ModelCost, Plan, Rejection
from potluck.types.quantization import Quantization
from potluck.types.stage import StageSize


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where a model goes, how it is quantized there, and what was not even offered.

    ``needs_room``: stages that are held and not in the plan have to be released before it is
    loaded.
    """

    plan: Plan
    quantization: Quantization
    rejections: tuple[Rejection, ...]
    needs_room: bool = False


class Placement:
    """One model and the nodes ``able`` to read it, among all that sent ``reports``.

    Units of backends that this node cannot count are left out; so are those of backends that do not
    compute this model. ``held`` are the stages of this deployment
    that workers hold already; ``in_use``: see ``keeping.kept``. Raises the ``EngineError`` or the
    ``UnsupportedModelError`` of one if no other would be left.
    """

    def __init__(
        self,
        counting: Counting,
        reports: Sequence[NodeReport],
        able: Sequence[NodeReport],
        held: Sequence[Holding] = (),
        in_use: Collection[tuple[NodeId, UnitId, int, int]] = (),
    ) -> None:
        self._counting = counting
        self._held = held
        self._in_use = in_use
        self._reports = reports
        self._able, self._unable = _of_able_backends(counting, able)

    def of(self, size: StageSize, *, may_quantize: bool) -> Placed:
        """Place it in ``size``, or as much more quantized as makes it fit.

        What is held stays where it is, if what is missing fits beside it. Units in reserve are used
        before it is quantized any more. Raises ``InsufficientMemoryError``, which says what would
        fit.
        """
        if (placed := self._with_what_is_held(size)) is not None:
            return placed
        try:
            return self._placed(size)
        except InsufficientMemoryError as error:
            failure = error
        for other in stronger_quantizations(size) if may_quantize else ():
            try:
                return self._placed(other)
            except InsufficientMemoryError:
                continue
        fitting = what_fits(size, self._fits)
        raise InsufficientMemoryError(
            failure.needed_bytes,
            failure.available_bytes,
            failure.message,
            hint="; or ".join(part for part in (fitting, failure.hint) if part),
        ) from failure

    def _with_what_is_held(self, size: StageSize) -> Placed | None:
        """A plan that keeps most of what is held: beside the rest of it, or in its place."""
        usable = {
            (report.node_id, unit.unit_id): on_unit(size, unit)
            for report in self._able
            if not report.is_draining
            for unit in report.units
            if reason_against(unit, with_reserve=True) is None
        }
        fitting = [
            each
            for each in self._held
            if each.unit in usable and is_of_size(each.stage, usable[each.unit])
        ]
        keeping = kept(fitting, self._counting.num_layers, self._in_use)
        if not keeping:
            return None
        for needs_room in (False, True):
            for with_reserve in (False, True):
                units = self._units(with_reserve=with_reserve)
                placed = self._placed_on(
                    units, size, with_reserve=with_reserve, keeping=keeping, needs_room=needs_room
                )
                if placed is not None:
                    return placed
        return None

    def _fits(self, size: StageSize) -> bool:
        try:
            self._placed(size)
        except InsufficientMemoryError:
            return False
        return True

    def _placed(self, size: StageSize) -> Placed:
        """On the units that serve, or if need be on those in reserve as well."""
        units = self._units(with_reserve=False)
        everything = self._units(with_reserve=True)
        if units and len(units) < len(everything):
            try:
                return self._placed_anew(units, size, with_reserve=False)
            except InsufficientMemoryError:
                pass
        return self._placed_anew(everything, size, with_reserve=True)

    def _placed_anew(
        self, units: Sequence[UnitReport], size: StageSize, *, with_reserve: bool
    ) -> Placed:
        """As if nothing was held. Raises ``InsufficientMemoryError``."""
        offered, cost = self._offered(
            units, size, with_reserve=with_reserve, released_stages=self._held
        )
        return Placed(
            plan=place(offered.offers, cost),
            quantization=size.quantization,
            rejections=(*self._unable, *offered.rejections),
            needs_room=bool(self._held),
        )

    def _placed_on(
        self,
        units: Sequence[UnitReport],
        size: StageSize,
        *,
        with_reserve: bool,
        keeping: Sequence[Holding],
        needs_room: bool,
    ) -> Placed | None:
        """Around what is kept; None if the rest does not fit."""
        others = [each for each in self._held if each not in keeping]
        offered, cost = self._offered(
            units,
            size,
            with_reserve=with_reserve,
            released_stages=others if needs_room else (),
        )
        plan = keep_and_fill(keeping, offered.offers, cost)
        if plan is None:
            return None
        return Placed(
            plan=plan,
            quantization=size.quantization,
            rejections=(*self._unable, *offered.rejections),
            needs_room=needs_room,
        )

    def _offered(
        self,
        units: Sequence[UnitReport],
        size: StageSize,
        *,
        with_reserve: bool,
        released_stages: Sequence[Holding],
    ) -> tuple[Offered, ModelCost]:
        """What ``units`` offer once some held stages are released, and what the model takes."""

        def without(reports: Sequence[NodeReport]) -> list[NodeReport]:
            return [
                released(
                    report,
                    [each.stage for each in released_stages if each.node_id == report.node_id],
                )
                for report in reports
            ]

        sizes: dict[_Sort, StageSize] = {}
        for unit in units:
            own = on_unit(size, unit)
            if sizes.setdefault(_sort(unit), own).num_threads < own.num_threads:
                sizes[_sort(unit)] = own
        offered = offers(
            without(self._reports),
            without(self._able),
            with_reserve=with_reserve,
            host_bytes={
                each.backend: most_host_bytes(self._counting, each)
                for each in sizes.values()
                if each.is_on_device
            },
        )
        # With nothing offered, the error is to say what the model takes.
        counted = list(sizes.values()) or [size]
        mixed = mixed_cost([model_cost(self._counting, each) for each in counted])
        spared = dict(zip(sizes, mixed.spared_bytes, strict=False))
        sorts = {
            (report.node_id, unit.unit_id): _sort(unit)
            for report in self._able
            for unit in report.units
        }
        credited = tuple(
            replace(offer, spared_bytes=spared[sorts[offer.node_id, offer.unit_id]])
            for offer in offered.offers
        )
        return replace(offered, offers=credited), mixed.cost

    def _units(self, *, with_reserve: bool) -> list[UnitReport]:
        return [
            unit
            for report in self._able
            if not report.is_draining
            for unit in report.units
            if reason_against(unit, with_reserve=with_reserve) is None
        ]


_Sort = tuple[str, bool]
"""Of a unit, as far as counting goes: its backend, and whether its memory is the machine's."""


def _sort(unit: UnitReport) -> _Sort:
    return unit.backend, unit.is_shared


def _of_able_backends(
    counting: Counting, reports: Sequence[NodeReport]
) -> tuple[list[NodeReport], list[Rejection]]:
    """The reports without units of backends that cannot be counted or used, and these."""
    problems: dict[str, PotluckError] = {}
    reasons: dict[str, str] = {}
    backends = {
        unit.backend
        for report in reports
        for unit in report.units
        if reason_against(unit, with_reserve=True) is None
    }
    for backend in sorted(backends):
        try:
            counting.check_backend(backend)
        except UnsupportedModelError as error:
            problems[backend] = error
            reasons[backend] = error.message
        except EngineError as error:
            problems[backend] = error
            reasons[backend] = f"the coordinator cannot count it: {error.message}"
    if problems and problems.keys() == backends:
        raise problems[min(problems)]
    able = [
        msgspec.structs.replace(
            report, units=tuple(unit for unit in report.units if unit.backend not in problems)
        )
        for report in reports
    ]
    rejections = [
        Rejection(
            node_id=report.node_id,
            unit_id=unit.unit_id,
            reason=reasons[unit.backend],
        )
        for report in reports
        for unit in report.units
        if unit.backend in problems
    ]
    return able, rejections
