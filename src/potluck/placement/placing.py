"""A model placed on what nodes offer: as fast, and as precise, as it fits. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from potluck.errors import (
    EngineError,
    InsufficientMemoryError,
    PotluckError,
    UnsupportedModelError,
)
from potluck.placement.candidates import Candidate, speed_of
from potluck.placement.counted_offers import CountedOffers, count_offers, sort_of, usable_units
from potluck.placement.counting import Counting
from potluck.placement.filling import fill_by_speed
from potluck.placement.keeping import Fill, Holding, is_of_size, keep_and_fill, kept
from potluck.placement.links import link_table
from potluck.placement.offering import reason_against
from potluck.placement.place import place, problem_of
from potluck.placement.proportional import does_not_fit
from potluck.placement.proportional import place as place_by_memory
from potluck.placement.request import PlaceRequest, prediction_of
from potluck.placement.sizes import on_unit, stronger_quantizations, what_fits
from potluck.placement.surveyed import Surveyed
from potluck.placement.times import UnitTimes
from potluck.types.cluster import NodeId
from potluck.types.node import NodeReport, UnitReport
from potluck.types.placement import (
    Objective,
    PlacedStage,
    Plan,
    Prediction,
    Rejection,
    UnitOffer,
    wanted_streams,
)
from potluck.types.quantization import Quantization
from potluck.types.stage import StageSize
from potluck.types.states import states_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where a model goes, how it is quantized there, and which units got nothing.

    ``needs_room``: stages that are held and not in the plan have to be released before it is
    loaded. ``request`` is what there was to choose from.
    """

    plan: Plan
    quantization: Quantization
    rejections: tuple[Rejection, ...]
    request: PlaceRequest
    needs_room: bool = False


class Placement:
    """One model and the nodes that it may be placed on.

    Units of backends that this node cannot count are left out; so are those of backends that do not
    compute this model as it is quantized.
    """

    def __init__(self, counting: Counting, surveyed: Surveyed) -> None:
        self._counting = counting
        self._surveyed = surveyed
        self._held = surveyed.held
        self._able_in: dict[Quantization, _AbleBackends] = {}
        self._units = {
            (report.node_id, unit.unit_id): unit
            for report in surveyed.able
            for unit in report.units
        }
        hosts = {report.node_id: report.host_id for report in surveyed.reports}
        self._links = surveyed.links or link_table(surveyed.speeds.values(), hosts)
        self._times: dict[object, UnitTimes] = {}

    def of(self, size: StageSize, *, may_quantize: bool) -> Placed:
        """Place it in ``size``, or as much more quantized as makes it fit.

        What is held stays where it is, if what is missing fits beside it. Units in reserve are used
        before it is quantized any more. Raise ``InsufficientMemoryError``, which says what would
        fit, ``ParameterError`` for a layout that is not possible, and the ``EngineError`` or the
        ``UnsupportedModelError`` of a backend that is left out if no other is there.
        """
        if not self._surveyed.is_anew and (placed := self._with_what_is_held(size)) is not None:
            return placed
        try:
            return self._placed(size)
        except InsufficientMemoryError as error:
            failure = error
        for other in stronger_quantizations(size) if may_quantize else ():
            try:
                return self._placed(other)
            except (InsufficientMemoryError, UnsupportedModelError):
                continue
        wants = self._surveyed.preferences
        least_states = states_for(wanted_streams(wants.objective, wants.num_streams))
        fitting = what_fits(size, self._fits, least_states=least_states)
        raise InsufficientMemoryError(
            failure.needed_bytes,
            failure.available_bytes,
            failure.message,
            hint="; or ".join(part for part in (fitting, failure.hint) if part),
        ) from failure

    def _with_what_is_held(self, size: StageSize) -> Placed | None:
        """A plan that keeps most of what is held: beside the rest of it, or in its place."""
        usable = {
            (report.node_id, unit.unit_id): self._on_unit(size, unit)
            for report in self._able(size).reports
            if not report.is_draining
            for unit in report.units
            if reason_against(unit, with_reserve=True) is None
        }
        fitting = [
            each
            for each in self._held
            if each.unit in usable and is_of_size(each.stage, usable[each.unit])
        ]
        keeping = kept(fitting, self._counting.num_layers, self._surveyed.in_use)
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

    def _able(self, size: StageSize) -> _AbleBackends:
        found = self._able_in.get(size.quantization)
        if found is None:
            found = _of_able_backends(self._counting, self._surveyed.able, size.quantization)
            self._able_in[size.quantization] = found
        return found

    def _on_unit(self, size: StageSize, unit: UnitReport) -> StageSize:
        return on_unit(size, unit, self._counting.abilities(unit.backend))

    def _fits(self, size: StageSize) -> bool:
        try:
            self._placed(size)
        except (InsufficientMemoryError, UnsupportedModelError):
            return False
        return True

    def _placed(self, size: StageSize) -> Placed:
        """Where it is best, as if nothing was held. Raise ``InsufficientMemoryError``."""
        preferences = self._surveyed.preferences
        if preferences.objective is Objective.MEMORY and not preferences.layout:
            return self._placed_by_memory(size)
        counted = self._count(size, with_reserve=True, released_stages=self._held)
        request = self._request(counted, size)
        plan = place(request)
        if plan is None:
            raise does_not_fit(self._credited(counted), counted.mixed.cost)
        return self._of_plan(plan, counted, size, request)

    def _placed_by_memory(self, size: StageSize) -> Placed:
        """On the units that serve, or if need be on those in reserve as well."""
        able = self._able(size).reports
        num_units = [len(usable_units(able, with_reserve=each)) for each in (False, True)]
        if 0 < num_units[0] < num_units[1]:
            try:
                return self._by_memory(size, with_reserve=False)
            except InsufficientMemoryError:
                pass
        return self._by_memory(size, with_reserve=True)

    def _by_memory(self, size: StageSize, *, with_reserve: bool) -> Placed:
        counted = self._count(size, with_reserve=with_reserve, released_stages=self._held)
        plan = place_by_memory(self._credited(counted), counted.mixed.cost)
        request = self._request(counted, size)
        prediction = self._predicted(plan.stages, request)
        return self._of_plan(replace(plan, prediction=prediction), counted, size, request)

    def _of_plan(
        self, plan: Plan, counted: CountedOffers, size: StageSize, request: PlaceRequest
    ) -> Placed:
        return Placed(
            plan=plan,
            quantization=size.quantization,
            rejections=self._rejections(plan, counted, request, size),
            request=request,
            needs_room=bool(self._held) and not self._has_room_beside(plan, size),
        )

    def _rejections(
        self, plan: Plan, counted: CountedOffers, request: PlaceRequest, size: StageSize
    ) -> tuple[Rejection, ...]:
        """Return the units that are not offered, and why those that are have no stage."""
        from potluck.placement.explain import unused_units  # most agents never plan

        rejections = (*self._able(size).rejections, *counted.offered.rejections)
        told = {(each.node_id, each.unit_id) for each in (*rejections, *plan.rejections)}
        return (
            *rejections,
            *(
                each
                for each in unused_units(request, plan).rejections
                if (each.node_id, each.unit_id) not in told
            ),
        )

    def _has_room_beside(self, plan: Plan, size: StageSize) -> bool:
        """Whether what a plan has to load fits beside all that is held now."""
        counted = self._count(size, with_reserve=True, released_stages=())
        offered = counted.offered
        taken = [0] * len(offered.offers)
        units = {(each.node_id, each.unit_id): i for i, each in enumerate(offered.offers)}
        for stage in plan.stages:
            unit = stage.node_id, stage.unit_id
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
        """Around what is kept; None if the rest does not fit."""
        others = [each for each in self._held if each not in keeping]
        counted = self._count(
            size, with_reserve=with_reserve, released_stages=others if needs_room else ()
        )
        plan = keep_and_fill(
            keeping, self._credited(counted), counted.mixed.cost, self._fill(counted, size)
        )
        if plan is None:
            return None
        # As if all was released: stages that are kept are counted too.
        everything = self._count(size, with_reserve=True, released_stages=self._held)
        request = self._request(everything, size)
        plan = replace(plan, prediction=self._predicted(plan.stages, request))
        return Placed(
            plan=plan,
            quantization=size.quantization,
            rejections=self._rejections(plan, counted, request, size),
            request=request,
            needs_room=needs_room,
        )

    def _fill(self, counted: CountedOffers, size: StageSize) -> Fill | None:
        """How gaps are filled: by speed where that counts, otherwise by memory."""
        if self._surveyed.preferences.objective is Objective.MEMORY:
            return None
        request = self._request(counted, size)
        if not request.candidates:
            return None
        units = [(each.node_id, each.unit_id) for each in request.candidates]
        return fill_by_speed(problem_of(request, 1), units)

    def _count(
        self, size: StageSize, *, with_reserve: bool, released_stages: Sequence[Holding]
    ) -> CountedOffers:
        return count_offers(
            self._counting,
            self._surveyed.reports,
            self._able(size).reports,
            size,
            with_reserve=with_reserve,
            released_stages=released_stages,
        )

    def _credited(self, counted: CountedOffers) -> tuple[UnitOffer, ...]:
        return counted.credited({place: sort_of(unit) for place, unit in self._units.items()})

    def _request(self, counted: CountedOffers, size: StageSize) -> PlaceRequest:
        """What there is to choose from, with times."""
        candidates = []
        for offer, most in zip(counted.offered.offers, counted.offered.most_bytes, strict=True):
            unit = self._units[offer.node_id, offer.unit_id]
            candidates.append(
                Candidate(
                    node_id=offer.node_id,
                    unit_id=offer.unit_id,
                    usable_bytes=most,
                    cost=counted.costs[sort_of(unit)],
                    times=self._times_of(offer.node_id, unit, self._on_unit(size, unit)),
                )
            )
        return PlaceRequest(
            candidates=tuple(candidates),
            links=self._links,
            coordinator=self._surveyed.coordinator,
            preferences=self._surveyed.preferences,
            max_step_tokens=size.max_step_tokens,
            pools=counted.offered.pools,
        )

    def _times_of(self, node_id: NodeId, unit: UnitReport, size: StageSize) -> UnitTimes:
        """How long parts of the model take on a unit; one object for units that are alike."""
        work = self._counting.work(size)
        speeds = self._surveyed.speeds.get(node_id)
        measured = () if speeds is None else speeds.step_times.get(work.shape(size.arithmetic), {})
        step_times = measured.get(unit.unit_id, ()) if measured else ()
        key = (
            size.backend,
            size.quantization,
            size.arithmetic,
            unit.rates,
            unit.figures,
            unit.is_shared,
            unit.num_threads,
            unit.usable_cores,
            unit.quota_period_seconds,
            tuple(step_times),
        )
        if (found := self._times.get(key)) is None:
            plain = UnitTimes(work=work, speed=speed_of(unit, size.arithmetic))
            found = self._times[key] = plain.corrected(step_times)
        return found

    def _predicted(self, stages: Sequence[PlacedStage], request: PlaceRequest) -> Prediction | None:
        offered = {(each.node_id, each.unit_id) for each in request.candidates}
        if any((stage.node_id, stage.unit_id) not in offered for stage in stages):
            return None
        return prediction_of(request, stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class _AbleBackends:
    """Reports without the units of backends that cannot be counted or used, and these."""

    reports: Sequence[NodeReport]
    rejections: Sequence[Rejection]


def _of_able_backends(
    counting: Counting, reports: Sequence[NodeReport], quantization: Quantization
) -> _AbleBackends:
    """Raise the error of a backend if none is left."""
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
    return _AbleBackends(reports=able, rejections=rejections)
