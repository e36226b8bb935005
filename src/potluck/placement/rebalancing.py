"""When to move a running deployment to a better plan. Pure: callers have the clock.

``evaluate_move`` compares the gain of a plan with the cost of moving to it: weights to load while
the current plan keeps serving, and the prefill of every live sequence. ``MoveHistory`` remembers
recent joins and moves, and damps them: a node counts only after it has been present for a while,
and each move makes the next one wait longer and gain more. A node that comes and goes, or whose
speed fluctuates, therefore causes a bounded number of moves.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from potluck.placement.grouping import prediction_of
from potluck.placement.planned import PlannedModel, PlannedStage, plan_record
from potluck.types.choices import DEFAULT_REBALANCE_THRESHOLD, Objective
from potluck.types.cluster import NodeId
from potluck.types.deployment import DeploymentRecord, MoveOutcome, RebalanceReport, StageRecord
from potluck.types.placement import PlacedStage, Prediction

LOADING_SHARE = 0.2
"""How much slower a deployment is assumed to be while it loads stages next to those in use: loading
competes for the same cores and memory bus, in a few of many threads."""

SWITCH_SECONDS = 1.0
"""From the last step over the old edges to the first over the new ones, in addition to the prefill:
a step has to finish, and TLS connections are made on all nodes at once."""

LOAD_BYTES_PER_SECOND = 100e6
"""The assumed rate of loading weights without a measurement: Gigabit Ethernet, or a slow disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalancePolicy:
    """When a move is worth its cost.

    A move has to gain ``threshold`` over ``horizon_seconds``, or over as long as the newest node of
    the plan has been present if that is shorter: what has lasted is likely to last as long again.
    Each move of the last ``memory_seconds`` raises the bar by another ``threshold``, and doubles
    the time until the next, which is ``cool_down_seconds`` after the first. A node that joins is
    considered after ``settle_seconds``, which double with every earlier join. Neither exceeds
    ``most_wait_seconds``. A plan has to be better twice, ``confirm_seconds`` apart. Plans are
    compared at least every ``check_seconds``; whether a stage is slow is checked every
    ``watch_seconds``.
    """

    threshold: float = DEFAULT_REBALANCE_THRESHOLD
    horizon_seconds: float = 3600.0
    memory_seconds: float = 3600.0
    cool_down_seconds: float = 60.0
    settle_seconds: float = 10.0
    most_wait_seconds: float = 1800.0
    confirm_seconds: float = 5.0
    check_seconds: float = 120.0
    watch_seconds: float = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveCost:
    """The cost of a move: bytes to load and the time it takes, and the prefill of live sequences.

    If ``needs_room``, the current plan cannot serve while the new one is loaded.
    """

    num_bytes: int
    load_seconds: float
    replay_seconds: float
    needs_room: bool

    @property
    def pause_seconds(self) -> float:
        """Return for how long no sequence gets a token."""
        return self.replay_seconds + (self.load_seconds if self.needs_room else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveDecision:
    """The value of a better plan.

    ``gain`` is the predicted gain: 0.5 means 50 % more tokens per second. ``net_gain`` is reduced
    by the uncertainty of the prediction and by the cost, spread over ``horizon_seconds``. It
    reaches the ``bar`` after ``needed_seconds`` of use, if ever.
    """

    gain: float
    net_gain: float
    bar: float
    horizon_seconds: float
    needed_seconds: float | None

    @property
    def pays(self) -> bool:
        """Return whether the move is worth its cost."""
        return self.net_gain >= self.bar


def evaluate_move(
    in_force: Prediction,
    better: Prediction,
    objective: Objective,
    cost: MoveCost,
    *,
    horizon_seconds: float,
    bar: float,
) -> MoveDecision:
    """Weigh a move from the plan ``in_force`` to a ``better`` one.

    A prediction with a wider margin than that of the plan in force is reduced by the difference: a
    well-known plan is not given up for one that rests on assumptions.
    """
    gain = better.rate(objective) / in_force.rate(objective) - 1.0
    doubt = max(0.0, better.margin - in_force.margin)
    ratio = (1.0 + gain) / (1.0 + doubt)
    return MoveDecision(
        gain=gain,
        net_gain=_net_gain(ratio, cost, horizon_seconds),
        bar=bar,
        horizon_seconds=horizon_seconds,
        needed_seconds=_needed_seconds(ratio, cost, bar),
    )


def _before(cost: MoveCost) -> float:
    """Return how many seconds' worth of tokens the current plan computes until the new one takes
    over.
    """
    return 0.0 if cost.needs_room else (1.0 - LOADING_SHARE) * cost.load_seconds


def _net_gain(ratio: float, cost: MoveCost, horizon_seconds: float) -> float:
    """Return the tokens of the next ``horizon_seconds`` with the move, relative to those without
    it.
    """
    if horizon_seconds <= 0.0:
        return -1.0
    left = horizon_seconds - cost.load_seconds - cost.replay_seconds
    if left <= 0.0:
        return -1.0
    return (_before(cost) + ratio * left) / horizon_seconds - 1.0


def _needed_seconds(ratio: float, cost: MoveCost, bar: float) -> float | None:
    """Return the horizon at which the net gain is ``bar``."""
    if ratio <= 1.0 + bar:
        return None
    spent = ratio * (cost.load_seconds + cost.replay_seconds) - _before(cost)
    return max(spent / (ratio - 1.0 - bar), cost.load_seconds + cost.replay_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveHistory:
    """When nodes joined and the deployment moved, as far back as that matters. Times in seconds."""

    policy: RebalancePolicy
    moves: tuple[float, ...] = ()
    joins: Mapping[NodeId, tuple[float, ...]] = field(default_factory=dict)

    def joined(self, node_id: NodeId, now: float) -> MoveHistory:
        """Return the state after a node has joined, possibly again."""
        recent = {
            node: kept for node, times in self.joins.items() if (kept := self._recent(times, now))
        }
        return replace(self, joins={**recent, node_id: (*recent.get(node_id, ()), now)})

    def moved(self, now: float) -> MoveHistory:
        """Return the state after a move."""
        return replace(self, moves=(*self._recent(self.moves, now), now))

    def settles_at(self, node_id: NodeId) -> float:
        """Return when plans may start to use a node; always for one that was present at the
        start.
        """
        times = self.joins.get(node_id)
        if not times:
            return -math.inf
        return times[-1] + self._doubled(self.policy.settle_seconds, len(times))

    def unsettled(self, nodes: Iterable[NodeId], now: float) -> frozenset[NodeId]:
        """Return those of ``nodes`` that plans must not use yet."""
        return frozenset(node for node in nodes if now < self.settles_at(node))

    def next_settled_at(self, now: float) -> float | None:
        """Return when the next node settles; None if all have."""
        times = (self.settles_at(node) for node in self.joins)
        return min((each for each in times if each > now), default=None)

    def cool_at(self, now: float) -> float:
        """Return when another move becomes possible."""
        moves = self._recent(self.moves, now)
        if not moves:
            return -math.inf
        return moves[-1] + self._doubled(self.policy.cool_down_seconds, len(moves))

    def bar(self, now: float) -> float:
        """Return the gain that the next move must reach."""
        return self.policy.threshold * (1 + len(self._recent(self.moves, now)))

    def horizon(self, nodes: Iterable[NodeId], now: float) -> float:
        """Return for how long a plan on ``nodes`` is expected to last."""
        ages = [now - times[-1] for node in nodes if (times := self.joins.get(node))]
        return min([self.policy.horizon_seconds, *ages])

    def _recent(self, times: tuple[float, ...], now: float) -> tuple[float, ...]:
        return tuple(each for each in times if now - each < self.policy.memory_seconds)

    def _doubled(self, seconds: float, count: int) -> float:
        most = self.policy.most_wait_seconds
        return most if count > 30 else min(most, seconds * 2.0 ** (count - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanComparison:
    """The best plan as if nothing was loaded, and predictions for both plans from current
    figures.

    Pure.
    """

    planned: PlannedModel
    predicted: Prediction
    in_force: Prediction


def compared(planned: PlannedModel, record: DeploymentRecord) -> PlanComparison | None:
    """Return a plan to compare with that of ``record``, both predicted from the figures of the
    former.

    Return None if there is no prediction, or if a stage in force is on a unit that has none.
    """
    request = planned.request
    if request is None or planned.prediction is None:
        return None
    predicted = {each.unit for each in request.candidates}
    if any(each.unit not in predicted for each in record.stages):
        return None
    in_force = [
        PlacedStage(
            node_id=stage.node_id,
            unit_id=stage.unit_id,
            shard=record.shard(index),
            num_bytes=stage.memory.host_bytes + stage.memory.device_bytes,
        )
        for index, stage in enumerate(record.stages)
    ]
    return PlanComparison(
        planned=planned,
        predicted=planned.prediction,
        in_force=prediction_of(request, in_force),
    )


def is_in_force(planned: PlannedModel, stages: Collection[StageRecord]) -> bool:
    """Return whether a plan has the same stages, in the same places."""
    return [_place_of(each) for each in planned.stages] == [each.place for each in stages]


def _place_of(stage: PlannedStage) -> tuple[object, ...]:
    shard = stage.plan.shard
    return *stage.unit, shard.start_layer, shard.end_layer, shard.part


def cost_of_move(
    planned: PlannedModel,
    stages: Collection[StageRecord],
    predicted: Prediction,
    *,
    num_live_tokens: int,
) -> MoveCost:
    """Return the cost of moving from ``stages`` to a plan. Nodes load concurrently."""
    num_bytes: Counter[NodeId] = Counter()
    for stage in planned.stages:
        if not any(map(stage.is_held_as, planned.held)):
            num_bytes[stage.node_id] += stage.plan.read_bytes
    rates: dict[NodeId, float] = {}
    for record in stages:
        if record.read_bytes and record.load_seconds:
            rates[record.node_id] = record.read_bytes / record.load_seconds
    usual = statistics.median(rates.values()) if rates else LOAD_BYTES_PER_SECOND
    return MoveCost(
        num_bytes=num_bytes.total(),
        load_seconds=max(
            (count / rates.get(node, usual) for node, count in num_bytes.items()), default=0.0
        ),
        replay_seconds=SWITCH_SECONDS
        + num_live_tokens * predicted.first_token_seconds / predicted.prompt_tokens,
        needs_room=planned.needs_room,
    )


def report_of(
    record: DeploymentRecord, alternative: PlanComparison, decision: MoveDecision, cost: MoveCost
) -> RebalanceReport:
    """Return the report about a better plan for users."""
    after = plan_record(alternative.planned).stages
    return RebalanceReport(
        model_id=record.model_id,
        outcome=MoveOutcome.POSSIBLE,
        reason="",
        stages=record.stages,
        in_force=alternative.in_force,
        new_stages=after,
        predicted=alternative.predicted,
        gain=decision.gain,
        net_gain=decision.net_gain,
        load_bytes=cost.num_bytes,
        load_seconds=cost.load_seconds,
        pause_seconds=cost.pause_seconds,
        needs_room=cost.needs_room,
    )
