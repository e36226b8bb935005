"""What a move gains, what it costs, and how flapping is damped."""

from __future__ import annotations

import math

import pytest

from potluck.placement.rebalancing import (
    LOADING_SHARE,
    MoveCost,
    MoveHistory,
    RebalancePolicy,
    evaluate_move,
)
from potluck.types.choices import Objective
from potluck.types.cluster import NodeId
from potluck.types.placement import Prediction

A, B = NodeId("a"), NodeId("b")
FREE = MoveCost(num_bytes=0, load_seconds=0.0, replay_seconds=0.0, needs_room=False)


def predicted(rate: float, *, total: float = 100.0, margin: float = 0.1) -> Prediction:
    return Prediction(
        stages=(),
        entry_seconds=0.0,
        token_seconds=1 / rate,
        tokens_per_second=rate,
        first_token_seconds=1.0,
        prompt_tokens=512,
        num_streams=8,
        total_tokens_per_second=total,
        steps_in_flight=1,
        bottleneck=None,
        margin=margin,
    )


def test_the_gain_is_of_the_objective() -> None:
    slow, fast = predicted(10, total=80), predicted(15, total=60)
    for objective, gain in ((Objective.LATENCY, 0.5), (Objective.THROUGHPUT, -0.25)):
        judged = evaluate_move(slow, fast, objective, FREE, horizon_seconds=3600, bar=0.2)
        assert judged.gain == pytest.approx(gain)


@pytest.mark.parametrize(("rate", "pays"), [(11.9, False), (12.1, True)])
def test_a_free_move_pays_beyond_the_threshold(rate: float, pays: bool) -> None:
    judged = evaluate_move(
        predicted(10), predicted(rate), Objective.LATENCY, FREE, horizon_seconds=3600, bar=0.2
    )
    assert judged.pays is pays


def test_loading_beside_what_serves_delays_the_gain_and_slows_a_little() -> None:
    cost = MoveCost(num_bytes=1, load_seconds=100.0, replay_seconds=10.0, needs_room=False)
    judged = evaluate_move(
        predicted(10), predicted(20), Objective.LATENCY, cost, horizon_seconds=1000, bar=0.2
    )
    tokens = 100 * (1 - LOADING_SHARE) * 10 + 890 * 20
    assert judged.net_gain == pytest.approx(tokens / (1000 * 10) - 1)
    assert judged.gain == pytest.approx(1.0)


def test_without_room_nothing_is_computed_while_the_new_plan_is_loaded() -> None:
    cost = MoveCost(num_bytes=1, load_seconds=100.0, replay_seconds=10.0, needs_room=True)
    assert cost.pause_seconds == 110.0
    judged = evaluate_move(
        predicted(10), predicted(20), Objective.LATENCY, cost, horizon_seconds=1000, bar=0.2
    )
    assert judged.net_gain == pytest.approx(890 * 20 / (1000 * 10) - 1)


@pytest.mark.parametrize("needs_room", [False, True])
def test_the_needed_horizon_is_where_the_net_gain_reaches_the_bar(needs_room: bool) -> None:
    cost = MoveCost(num_bytes=1, load_seconds=30.0, replay_seconds=2.0, needs_room=needs_room)
    before, after = predicted(10), predicted(16)
    needed = evaluate_move(
        before, after, Objective.LATENCY, cost, horizon_seconds=10, bar=0.2
    ).needed_seconds
    assert needed is not None
    at_it = evaluate_move(before, after, Objective.LATENCY, cost, horizon_seconds=needed, bar=0.2)
    assert at_it.net_gain == pytest.approx(0.2)


def test_a_gain_below_the_bar_never_pays() -> None:
    judged = evaluate_move(
        predicted(10), predicted(11), Objective.LATENCY, FREE, horizon_seconds=1e9, bar=0.2
    )
    assert judged.needed_seconds is None


def test_a_horizon_shorter_than_the_way_there_is_a_loss() -> None:
    cost = MoveCost(num_bytes=1, load_seconds=30.0, replay_seconds=2.0, needs_room=False)
    for horizon in (0.0, 5.0, 32.0):
        judged = evaluate_move(
            predicted(1), predicted(100), Objective.LATENCY, cost, horizon_seconds=horizon, bar=0.2
        )
        assert judged.net_gain == -1.0


def test_a_guess_does_not_beat_what_is_known() -> None:
    known = predicted(10, margin=0.1)
    guessed = predicted(14, margin=0.5)
    judged = evaluate_move(known, guessed, Objective.LATENCY, FREE, horizon_seconds=3600, bar=0.2)
    assert judged.gain == pytest.approx(0.4)
    assert not judged.pays
    # The other way round a wide margin is no advantage.
    judged = evaluate_move(guessed, known, Objective.LATENCY, FREE, horizon_seconds=3600, bar=0.2)
    assert judged.net_gain == pytest.approx(10 / 14 - 1)


POLICY = RebalancePolicy(
    settle_seconds=10, cool_down_seconds=60, most_wait_seconds=1800, memory_seconds=3600
)


def test_a_node_settles_later_each_time_it_joins() -> None:
    steadiness = MoveHistory(policy=POLICY)
    assert steadiness.settles_at(A) == -math.inf
    waits = []
    for turn in range(12):
        now = turn * 60.0
        steadiness = steadiness.joined(A, now)
        waits.append(steadiness.settles_at(A) - now)
    assert waits[:5] == [10, 20, 40, 80, 160]
    assert waits[-1] == 1800
    assert steadiness.unsettled([A, B], 12 * 60.0) == {A}


def test_what_happened_long_ago_is_forgotten() -> None:
    steadiness = MoveHistory(policy=POLICY).joined(A, 0.0).joined(A, 1.0).moved(5.0)
    later = steadiness.joined(A, 4000.0)
    assert later.settles_at(A) == 4010.0
    assert steadiness.cool_at(4000.0) == -math.inf
    assert steadiness.bar(4000.0) == pytest.approx(0.2)


def test_each_move_raises_the_bar_and_doubles_the_wait() -> None:
    steadiness = MoveHistory(policy=POLICY)
    assert steadiness.cool_at(0.0) == -math.inf
    now, waits, bars = 0.0, [], []
    for _ in range(4):
        steadiness = steadiness.moved(now)
        waits.append(steadiness.cool_at(now) - now)
        bars.append(steadiness.bar(now))
        now = steadiness.cool_at(now)
    assert waits == [60, 120, 240, 480]
    assert bars == pytest.approx([0.4, 0.6, 0.8, 1.0])


def test_somebody_who_would_always_move_does_so_a_few_times_an_hour() -> None:
    steadiness, num_moves = MoveHistory(policy=POLICY), []
    for hour in range(5):
        moves = 0
        for second in range(hour * 3600, (hour + 1) * 3600):
            if second >= steadiness.cool_at(second):
                steadiness = steadiness.moved(second)
                moves += 1
        num_moves.append(moves)
    assert max(num_moves) <= 6


def test_a_plan_lasts_as_long_as_its_newest_node_has_been_there() -> None:
    steadiness = MoveHistory(policy=POLICY).joined(B, 100.0)
    assert steadiness.horizon([A], 130.0) == 3600.0
    assert steadiness.horizon([A, B], 130.0) == 30.0
    assert steadiness.next_settled_at(105.0) == 110.0
    assert steadiness.next_settled_at(111.0) is None
