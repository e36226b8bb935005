"""Place a model on what nodes offer: as fast and as precise as possible. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise

from potluck.engines.loading.sizes import fitting_size_hint, on_unit, stronger_quantizations
from potluck.errors import (
    EngineError,
    InsufficientMemoryError,
    ParameterError,
    PotluckError,
    UnsupportedModelError,
)
from potluck.placement.candidates import Candidate, Divide, DividedCost, PlaceRequest, speed_of
from potluck.placement.costs import (
    CountedOffers,
    Counting,
    Sort,
    count_offers,
    member_cost,
    sort_of,
)
from potluck.placement.filling import fill_by_speed
from potluck.placement.grouping import prediction_of
from potluck.placement.links import link_table
from potluck.placement.offering import Sifted, reason_against, sifted, units_by_id, usable_units
from potluck.placement.place import place
from potluck.placement.proportional import does_not_fit
from potluck.placement.proportional import place as place_by_memory
from potluck.placement.snapshot import ClusterSnapshot
from potluck.placement.stage_reuse import Fill, Holding, is_of_size, keep_and_fill, kept
from potluck.placement.times import UnitTimes
from potluck.types.choices import Objective, Quantization
from potluck.types.cluster import NodeId
from potluck.types.groups import GroupPart
from potluck.types.node import NodeReport, UnitReport
from potluck.types.placement import (
    ModelCost,
    PlacedStage,
    Plan,
    Prediction,
    Rejection,
    UnitOffer,
    wanted_streams,
)
from potluck.types.stage import StageSize
from potluck.types.states import states_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The placement of a model, its quantization, and the unused units.

    ``needs_room``: held stages that are not in the plan must be released before it is loaded.
    ``request`` is the input of the choice.
    """

    plan: Plan
    quantization: Quantization
    rejections: tuple[Rejection, ...]
    request: PlaceRequest
    needs_room: bool = False


class Placement:
    """One model and the nodes on which it may be placed.

    Units are left out if this node cannot count their backend, or if their backend cannot compute
    the model with its quantization.
    """

    def __init__(self, counting: Counting, snapshot: ClusterSnapshot) -> None:
        self._counting = counting
        self._snapshot = snapshot
        self._held = snapshot.held
        self._able = cache(partial(_of_able_backends, counting, snapshot.able))
        self._units = units_by_id(snapshot.able)
        hosts = {report.node_id: report.host_id for report in snapshot.reports}
        self._links = snapshot.links or link_table(snapshot.speeds.values(), hosts)
        self._times: dict[object, UnitTimes] = {}

    def of(self, size: StageSize, *, may_quantize: bool) -> Placed:
        """Place the model in ``size``, quantized further if it does not fit otherwise.

        Held stages stay where they are if the missing layers fit next to them, unless neighbours
        could not connect to each other and another plan avoids that. Units in reserve are used
        before the model is quantized further. Raise ``InsufficientMemoryError``, which says what
        would fit, ``ParameterError`` for a layout that is not possible, and the ``EngineError`` or
        ``UnsupportedModelError`` of a rejected backend if no other is available.
        """
        if not self._snapshot.from_scratch:
            placed = self._as_laid_out(size) or self._with_what_is_held(size)
            if placed is not None:
                return self._connected(size, placed)
        try:
            return self._placed(size)
        except InsufficientMemoryError as error:
            failure, message = error, error.message
        for other in stronger_quantizations(size) if may_quantize else ():
            try:
                return self._placed(other)
            except InsufficientMemoryError as error:
                if error.needed_bytes < failure.needed_bytes:
                    failure = error
                    message = f"even in {other.quantization.value}, {error.message}"
            except UnsupportedModelError:
                continue
        wants = self._snapshot.preferences
        least_states = states_for(wanted_streams(wants.objective, wants.num_streams))
        fitting = fitting_size_hint(size, self._fits, least_states=least_states)
        raise InsufficientMemoryError(
            failure.needed_bytes,
            failure.available_bytes,
            message,
            hint="; or ".join(part for part in (fitting, failure.hint) if part),
        ) from failure

    def _as_laid_out(self, size: StageSize) -> Placed | None:
        """Return the original layout, if it has groups and its units are available.

        A group that has lost a member can only be restored as a whole. A layout that can no longer
        be satisfied is ignored from here on.
        """
        wants = self._snapshot.preferences
        if not self._snapshot.in_use or not wants.layout:
            return None
        if any(each.part is not None for each in wants.layout):
            try:
                return self._placed(size)
            except (ParameterError, InsufficientMemoryError):
                pass
        units = {each.unit for each in wants.layout}
        if not units <= self._units.keys():
            self._snapshot = replace(self._snapshot, preferences=replace(wants, layout=()))
        return None

    def _with_what_is_held(self, size: StageSize) -> Placed | None:
        """Return a plan that keeps most held stages: next to the other held stages, or replacing
        them.
        """
        usable = {
            (report.node_id, unit.unit_id): self._on_unit(size, unit)
            for report, unit in usable_units(
                self._able(size.quantization).reports, with_reserve=True
            )
        }
        fitting = [
            each
            for each in self._held
            if each.unit in usable and is_of_size(each.stage, usable[each.unit])
        ]
        keeping = kept(fitting, self._counting.num_layers, self._snapshot.in_use)
        if not keeping:
            return None
        for needs_room in (False, True):
            for with_reserve in (False, True):
                placed = self._placed_on(
                    size, with_reserve=with_reserve, keeping=keeping, needs_room=needs_room
                )
                if placed is not None:
                    return placed
        return None

    def _connected(self, size: StageSize, held: Placed) -> Placed:
        """Return a plan whose neighbours can connect to each other, or else the one with what is
        held.
        """
        if self._closed_link(held.plan) is not None:
            with suppress(InsufficientMemoryError, ParameterError):
                placed = self._placed(size)
                if self._closed_link(placed.plan) is None:
                    return placed
        return held

    def _closed_link(self, plan: Plan) -> tuple[NodeId, NodeId] | None:
        """Return the first neighbours in a plan that cannot connect to each other, if any."""
        leaders = [stage.node_id for stage in plan.stages if not stage.shard.is_led]
        row = [self._snapshot.coordinator, *leaders, self._snapshot.coordinator]
        return next((pair for pair in pairwise(row) if self._links.is_closed(*pair)), None)

    def _on_unit(self, size: StageSize, unit: UnitReport) -> StageSize:
        return on_unit(size, unit, self._counting.abilities(unit.backend))

    def _fits(self, size: StageSize) -> bool:
        try:
            self._placed(size)
        except (InsufficientMemoryError, UnsupportedModelError):
            return False
        return True

    def _placed(self, size: StageSize) -> Placed:
        """Return the best placement as if nothing was held. Raise ``InsufficientMemoryError``."""
        preferences = self._snapshot.preferences
        if preferences.objective is Objective.MEMORY and not preferences.layout:
            return self._placed_by_memory(size)
        counted = self._count(size, with_reserve=True, released_stages=self._held)
        request = self._request(counted, size)
        plan = place(request)
        if plan is None:
            raise does_not_fit(counted.credited(self._units), counted.mixed)
        return self._of_plan(
            plan, counted, size, request, needs_room=not self._has_room_beside(plan, size)
        )

    def _placed_by_memory(self, size: StageSize) -> Placed:
        """Return a placement on the units that serve, or if necessary also on those in reserve."""
        able = self._able(size.quantization).reports
        num_units = [len(usable_units(able, with_reserve=each)) for each in (False, True)]
        if 0 < num_units[0] < num_units[1]:
            try:
                return self._by_memory(size, with_reserve=False)
            except InsufficientMemoryError:
                pass
        return self._by_memory(size, with_reserve=True)

    def _by_memory(self, size: StageSize, *, with_reserve: bool) -> Placed:
        counted = self._count(size, with_reserve=with_reserve, released_stages=self._held)
        plan = self._placed_apart(counted.credited(self._units), counted.mixed)
        request = self._request(counted, size)
        prediction = self._predicted(plan.stages, request)
        plan = replace(plan, prediction=prediction)
        return self._of_plan(
            plan, counted, size, request, needs_room=not self._has_room_beside(plan, size)
        )

    def _placed_apart(self, offers: Sequence[UnitOffer], cost: ModelCost) -> Plan:
        """Return a placement by memory, without nodes whose neighbours cannot connect to them if
        the model fits on the others.
        """
        plan = place_by_memory(offers, cost)
        pair = self._closed_link(plan)
        for node, other in () if pair is None else (pair, pair[::-1]):
            if node == self._snapshot.coordinator:
                continue  # both ends of the pipeline are there in any case
            with suppress(InsufficientMemoryError):
                found = self._placed_apart(
                    [offer for offer in offers if offer.node_id != node], cost
                )
                if self._closed_link(found) is not None:
                    return plan
                reason = f"neither it nor node {other} can connect to the other"
                parted = tuple(
                    Rejection.of(offer, reason) for offer in offers if offer.node_id == node
                )
                return replace(found, rejections=(*found.rejections, *parted))
        return plan

    def _of_plan(
        self,
        plan: Plan,
        counted: CountedOffers,
        size: StageSize,
        request: PlaceRequest,
        *,
        needs_room: bool,
    ) -> Placed:
        return Placed(
            plan=plan,
            quantization=size.quantization,
            rejections=self._rejections(plan, counted, request, size),
            request=request,
            needs_room=needs_room,
        )

    def _rejections(
        self, plan: Plan, counted: CountedOffers, request: PlaceRequest, size: StageSize
    ) -> tuple[Rejection, ...]:
        """Return the units that are not offered, and those that have no stage, with the reasons."""
        from potluck.placement.explain import unused_units  # most agents never plan

        rejections = (*self._able(size.quantization).rejections, *counted.offered.rejections)
        explained = {each.unit for each in (*rejections, *plan.rejections)}
        return (
            *rejections,
            *(
                each
                for each in unused_units(request, plan).rejections
                if each.unit not in explained
            ),
        )

    def _has_room_beside(self, plan: Plan, size: StageSize) -> bool:
        """Return whether what a plan has to load fits in addition to everything that is held
        now.
        """
        if not self._held:
            return True
        counted = self._count(size, with_reserve=True, released_stages=())
        offered = counted.offered
        taken = [0] * len(offered.offers)
        units = {each.unit: i for i, each in enumerate(offered.offers)}
        for stage in plan.stages:
            unit = stage.unit
            own_size = self._on_unit(size, self._units[unit])
            if any(each.is_stage(unit, stage.shard, own_size) for each in self._held):
                continue
            index = units.get(unit)
            if index is None:
                return False
            taken[index] += stage.num_bytes
        return all(
            num_bytes <= most for num_bytes, most in zip(taken, offered.most_bytes, strict=True)
        ) and all(
            sum(taken[index] for index in pool.members) <= pool.left_bytes
            or not any(taken[index] for index in pool.members)
            for pool in offered.pools
        )

    def _placed_on(
        self,
        size: StageSize,
        *,
        with_reserve: bool,
        keeping: Sequence[Holding],
        needs_room: bool,
    ) -> Placed | None:
        """Return a placement around what is kept; None if the rest does not fit."""
        others = [each for each in self._held if each not in keeping]
        counted = self._count(
            size, with_reserve=with_reserve, released_stages=others if needs_room else ()
        )
        plan = keep_and_fill(
            keeping, counted.credited(self._units), counted.mixed, self._fill(counted, size)
        )
        if plan is None:
            return None
        # As if everything was released: stages that are kept are counted as well.
        everything = self._count(size, with_reserve=True, released_stages=self._held)
        request = self._request(everything, size)
        plan = replace(plan, prediction=self._predicted(plan.stages, request))
        return self._of_plan(plan, counted, size, request, needs_room=needs_room)

    def _fill(self, counted: CountedOffers, size: StageSize) -> Fill | None:
        """Return how gaps are filled: by speed if that counts, otherwise by memory."""
        if self._snapshot.preferences.objective is Objective.MEMORY:
            return None
        request = self._request(counted, size)
        return fill_by_speed(request) if request.candidates else None

    def _count(
        self, size: StageSize, *, with_reserve: bool, released_stages: Sequence[Holding]
    ) -> CountedOffers:
        return count_offers(
            self._counting,
            self._snapshot.reports,
            self._able(size.quantization).reports,
            size,
            with_reserve=with_reserve,
            released_stages=released_stages,
        )

    def _request(self, counted: CountedOffers, size: StageSize) -> PlaceRequest:
        """Return the candidates to choose from, with times."""
        candidates = []
        divided: dict[Sort, DividedCost | None] = {}
        for offer, most in zip(counted.offered.offers, counted.offered.most_bytes, strict=True):
            unit = self._units[offer.unit]
            sort = sort_of(unit)
            if sort not in divided:
                divided[sort] = self._divided_cost(counted.sizes[sort])
            candidates.append(
                Candidate(
                    node_id=offer.node_id,
                    unit_id=offer.unit_id,
                    usable_bytes=most,
                    cost=counted.costs[sort],
                    divided_cost=divided[sort],
                    times=self._times_of(offer.node_id, unit, self._on_unit(size, unit)),
                )
            )
        return PlaceRequest(
            candidates=tuple(candidates),
            links=self._links,
            coordinator=self._snapshot.coordinator,
            preferences=self._snapshot.preferences,
            max_step_tokens=size.max_step_tokens,
            pools=counted.offered.pools,
            divide=self._divide(counted),
        )

    def _divided_cost(self, size: StageSize) -> DividedCost | None:
        """Return the cost of group members on units of one sort, if these can join groups."""
        if self._counting.divided is None:
            return None
        if not self._counting.abilities(size.backend).can_join_groups:
            return None

        def cost(part: GroupPart) -> ModelCost:
            # Members with equal shares have as much as the first of them, or a few heads less.
            first = part.shares.index(part.shares[part.member])
            return counted(replace(part, member=first))

        @cache
        def counted(part: GroupPart) -> ModelCost:
            return member_cost(self._counting, size, part)

        return cost

    def _divide(self, counted: CountedOffers) -> Divide | None:
        """Return the work of group members; the backends that can join have one arithmetic."""
        count = self._counting.divided
        own = next(
            (
                each
                for each in counted.sizes.values()
                if self._counting.abilities(each.backend).can_join_groups
            ),
            None,
        )
        if count is None or own is None:
            return None
        return lambda shares: count(own, shares)

    def _times_of(self, node_id: NodeId, unit: UnitReport, size: StageSize) -> UnitTimes:
        """Return how long parts of the model take on a unit; equal units share one object."""
        work = self._counting.work(size)
        speeds = self._snapshot.speeds.get(node_id)
        measured = () if speeds is None else speeds.step_times.get(work.shape(size.arithmetic), {})
        step_times = measured.get(unit.unit_id, ()) if measured else ()
        key = (
            size.backend,
            size.quantization,
            size.arithmetic,
            unit.rates,
            unit.figures,
            unit.is_shared,
            unit.usable_share,
            unit.quota_period_seconds,
            tuple(step_times),
        )
        if (found := self._times.get(key)) is None:
            plain = UnitTimes(work=work, speed=speed_of(unit, size.arithmetic))
            found = self._times[key] = plain.corrected(step_times)
        return found

    def _predicted(self, stages: Sequence[PlacedStage], request: PlaceRequest) -> Prediction | None:
        offered = {each.unit for each in request.candidates}
        if any(stage.unit not in offered for stage in stages):
            return None
        return prediction_of(request, stages)


def _of_able_backends(
    counting: Counting, reports: Sequence[NodeReport], quantization: Quantization
) -> Sifted:
    """Return the reports without the units of backends that cannot be counted or used.

    Raise the error of a backend if none is left.
    """
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
            counting.check_backend(backend, quantization)
        except UnsupportedModelError as error:
            problems[backend] = error
            reasons[backend] = error.message
        except EngineError as error:
            problems[backend] = error
            reasons[backend] = f"the coordinator cannot compute it: {error.message}"
    if problems and problems.keys() == backends:
        raise problems[min(problems)]
    return sifted(reports, lambda unit: reasons.get(unit.backend))
