"""A model placed on what nodes offer: with as few slow units, and as precise, as it fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from potluck.catalog import ModelDescription
from potluck.cluster.calls import NodeReport, UnitReport
from potluck.cluster.coordinator.costs import mixed_cost, model_cost, most_host_bytes
from potluck.cluster.coordinator.offering import offers, reason_against
from potluck.cluster.coordinator.planning import on_unit
from potluck.engines.costs import CostOf, check_backend
from potluck.errors import (
    EngineError,
    InsufficientMemoryError,
    PotluckError,
    UnsupportedModelError,
)
from potluck.loading import StageSize, program_to_count, stronger_quantizations, what_fits
from potluck.placement import place
from potluck.types.cluster import Plan, Rejection
from potluck.types.program import Shard
from potluck.types.quantization import Quantization


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where a model goes, how it is quantized there, and what was not even offered."""

    plan: Plan
    quantization: Quantization
    rejections: tuple[Rejection, ...]


class Placement:
    """One model and the nodes ``able`` to read it, among all that sent ``reports``.

    Units of backends that ``cost_of`` does not know cannot be counted, and are left out; so are
    those of backends that do not compute this model. Raises the ``EngineError`` or the
    ``UnsupportedModelError`` of one if no other would be left.
    """

    def __init__(
        self,
        description: ModelDescription,
        reports: Sequence[NodeReport],
        able: Sequence[NodeReport],
        cost_of: CostOf,
    ) -> None:
        self._description = description
        self._reports = reports
        self._cost_of = cost_of
        self._able, self._unable = _of_able_backends(description, able, cost_of)

    def of(self, size: StageSize, *, may_quantize: bool) -> Placed:
        """Place it in ``size``, or as much more quantized as makes it fit.

        Units in reserve are used before it is quantized any more. Raises
        ``InsufficientMemoryError``, which says what would fit.
        """
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
                return self._placed_on(units, size, with_reserve=False)
            except InsufficientMemoryError:
                pass
        return self._placed_on(everything, size, with_reserve=True)

    def _placed_on(
        self, units: Sequence[UnitReport], size: StageSize, *, with_reserve: bool
    ) -> Placed:
        sizes: dict[_Sort, StageSize] = {}
        for unit in units:
            own = on_unit(size, unit)
            if sizes.setdefault(_sort(unit), own).num_threads < own.num_threads:
                sizes[_sort(unit)] = own
        offered = offers(
            self._reports,
            self._able,
            with_reserve=with_reserve,
            host_bytes={
                each.backend: most_host_bytes(self._description, each, self._cost_of(each.backend))
                for each in sizes.values()
                if each.is_on_device
            },
        )
        # With nothing offered, the error is to say what the model takes.
        counted = list(sizes.values()) or [size]
        mixed = mixed_cost(
            [model_cost(self._description, each, self._cost_of(each.backend)) for each in counted]
        )
        spared = dict(zip(sizes, mixed.spared_bytes, strict=False))
        sorts = {
            (report.node_id, unit.unit_id): _sort(unit)
            for report in self._able
            for unit in report.units
        }
        credited = [
            replace(offer, spared_bytes=spared[sorts[offer.node_id, offer.unit_id]])
            for offer in offered.offers
        ]
        return Placed(
            plan=place(credited, mixed.cost),
            quantization=size.quantization,
            rejections=(*self._unable, *offered.rejections),
        )

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
    description: ModelDescription, reports: Sequence[NodeReport], cost_of: CostOf
) -> tuple[list[NodeReport], list[Rejection]]:
    """The reports without units of backends that cannot be counted or used, and these."""
    problems: dict[str, PotluckError] = {}
    reasons: dict[str, str] = {}
    program = program_to_count(
        description.config, Shard.whole(description.config.num_layers), context_tokens=1
    )
    backends = {
        unit.backend
        for report in reports
        for unit in report.units
        if reason_against(unit, with_reserve=True) is None
    }
    for backend in sorted(backends):
        try:
            check_backend(backend, cost_of(backend), program)
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
