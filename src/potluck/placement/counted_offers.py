"""What units offer, and what a model takes on units of each sort. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from potluck.loading.sizes import on_unit
from potluck.placement.costs import MixedCost, mixed_cost, model_cost, most_host_bytes
from potluck.placement.counting import Counting
from potluck.placement.keeping import Holding, released
from potluck.placement.offering import Offered, offers, reason_against
from potluck.types.node import NodeReport, UnitReport
from potluck.types.placement import ModelCost, UnitOffer
from potluck.types.stage import StageSize

Sort = tuple[str, bool]
"""The properties of a unit that affect counting: its backend, and whether it uses host memory."""


def sort_of(unit: UnitReport) -> Sort:
    """Return the sort of a unit."""
    return unit.backend, unit.is_shared


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedOffers:
    """What units offer, and what every part of a model takes on them.

    ``costs`` and ``sizes`` are keyed by sort of unit; ``mixed`` is one cost for all sorts, in the
    order of ``costs``.
    """

    offered: Offered
    costs: Mapping[Sort, ModelCost]
    sizes: Mapping[Sort, StageSize]
    mixed: MixedCost

    def credited(self, sorts: Mapping[tuple[str, str], Sort]) -> tuple[UnitOffer, ...]:
        """Return fair offers for the mixed cost, with the credit of each unit."""
        spared = dict(zip(self.costs, self.mixed.spared_bytes, strict=False))
        return tuple(
            replace(offer, spared_bytes=spared[sorts[offer.node_id, offer.unit_id]])
            for offer in self.offered.offers
        )


def count_offers(
    counting: Counting,
    reports: Sequence[NodeReport],
    able: Sequence[NodeReport],
    size: StageSize,
    *,
    with_reserve: bool,
    released_stages: Sequence[Holding] = (),
) -> CountedOffers:
    """Return what the units of ``able`` offer once ``released_stages`` are released.

    ``reports`` are those of all nodes, as for ``offers``. Raises the same errors as ``CountStage``.
    """

    def without(nodes: Sequence[NodeReport]) -> list[NodeReport]:
        return [
            released(
                report, [each.stage for each in released_stages if each.node_id == report.node_id]
            )
            for report in nodes
        ]

    sizes: dict[Sort, StageSize] = {}
    for unit in usable_units(able, with_reserve=with_reserve):
        own = on_unit(size, unit, counting.abilities(unit.backend))
        if sizes.setdefault(sort_of(unit), own).num_threads < own.num_threads:
            sizes[sort_of(unit)] = own
    offered = offers(
        without(reports),
        without(able),
        with_reserve=with_reserve,
        host_bytes={
            each.backend: most_host_bytes(counting, each)
            for each in sizes.values()
            if each.is_on_device
        },
    )
    costs = {sort: model_cost(counting, each) for sort, each in sizes.items()}
    # If nothing is offered, the error should still state the memory requirement of the model.
    mixed = mixed_cost(list(costs.values()) or [model_cost(counting, size)])
    return CountedOffers(offered=offered, costs=costs, sizes=sizes, mixed=mixed)


def usable_units(able: Sequence[NodeReport], *, with_reserve: bool) -> list[UnitReport]:
    """Return the units that may be offered."""
    return [
        unit
        for report in able
        if not report.is_draining
        for unit in report.units
        if reason_against(unit, with_reserve=with_reserve) is None
    ]
