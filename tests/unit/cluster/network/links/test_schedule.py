from __future__ import annotations

import itertools
import random

from support.cluster.members import node_id

from potluck.cluster.network.links.schedule import REFRESH_SECONDS, LinkSchedule
from potluck.types.cluster import NodeId


def a_schedule(own: int = 0, seed: int = 1) -> LinkSchedule:
    return LinkSchedule(node_id(own), random.Random(seed))


def due(schedule: LinkSchedule) -> tuple[NodeId, float]:
    found = schedule.next()
    assert found is not None
    return found


def test_one_of_both_begins_and_the_other_follows_if_it_has_to() -> None:
    begun = [0] * 20
    for one, other in itertools.combinations(range(20), 2):
        times = {}
        for own, peer in ((one, other), (other, one)):
            schedule = a_schedule(own, seed=own)
            schedule.joined(node_id(peer), 100.0, measured_at=None)
            times[own] = due(schedule)[1] - 100.0
        first, second = sorted(times.values())
        assert first <= 0.5 < 2.0 <= second <= 3.0
        begun[min(times, key=lambda each: times[each])] += 1
    assert sum(begun) == 190
    assert 3 <= min(begun) <= max(begun) <= 16  # about 9.5 each


def test_the_other_refreshes_later_and_only_if_the_first_has_not() -> None:
    one, other = a_schedule(1), a_schedule(2)
    for schedule, peer in ((one, 2), (other, 1)):
        schedule.joined(node_id(peer), 0.0, measured_at=None)
        schedule.measured(node_id(peer), 1.0)
    first, second = sorted((due(one)[1], due(other)[1]))
    assert 0.9 * REFRESH_SECONDS <= first - 1 <= 1.1 * REFRESH_SECONDS
    assert second > 0.9 * REFRESH_SECONDS + 60


def test_a_node_that_comes_back_is_not_measured_again_at_once() -> None:
    schedule = a_schedule()
    schedule.joined(node_id(1), 1000.0, measured_at=900.0)
    assert due(schedule)[1] >= 900 + 0.9 * REFRESH_SECONDS
    assert schedule.is_new(node_id(1))
    schedule.joined(node_id(1), 1000.0, measured_at=1000 - REFRESH_SECONDS)
    assert due(schedule)[1] < 1003


def test_failures_are_repeated_ever_more_rarely() -> None:
    schedule = a_schedule()
    schedule.joined(node_id(1), 0.0, measured_at=None)
    assert schedule.is_new(node_id(1))
    pauses = []
    now = 0.0
    for _ in range(20):
        schedule.failed(node_id(1), now)
        pauses.append(due(schedule)[1] - now)
        now = due(schedule)[1]
    assert not schedule.is_new(node_id(1))
    assert 12 <= pauses[0] <= 18
    assert 24 <= pauses[1] <= 36
    assert 1440 <= pauses[-1] <= 2160
    schedule.measured(node_id(1), now)
    schedule.failed(node_id(1), now)
    assert due(schedule)[1] - now <= 18


def test_a_busy_node_is_asked_again_soon_and_one_without_a_budget_when_it_has_one() -> None:
    schedule = a_schedule()
    schedule.joined(node_id(1), 0.0, measured_at=None)
    schedule.was_busy(node_id(1), 10.0)
    assert 10.3 <= due(schedule)[1] <= 11.5
    schedule.was_busy(node_id(1), 10.0, wait_seconds=40)
    assert 50.3 <= due(schedule)[1] <= 51.5


def test_a_doubt_hastens_the_next_measurement_ever_more_rarely() -> None:
    schedule = a_schedule()
    schedule.doubted(node_id(1), 0.0)
    schedule.joined(node_id(1), 0.0, measured_at=None)
    schedule.doubted(node_id(1), 0.0)
    assert due(schedule)[1] > 0
    now, times = 1.0, []
    schedule.measured(node_id(1), now)
    while now < 590:
        now += 10
        schedule.doubted(node_id(1), now)
        if due(schedule)[1] <= now:
            times.append(now)
            schedule.measured(node_id(1), now)
    assert times == [21, 61, 141, 301]
    schedule.measured(node_id(1), now, has_changed=True)
    schedule.doubted(node_id(1), now + 20)
    assert due(schedule)[1] == now + 20


def test_nodes_that_join_together_are_taken_in_another_order_by_each() -> None:
    orders = []
    for seed in range(2):
        schedule = a_schedule(seed=seed)
        for number in range(1, 40):
            schedule.joined(node_id(number), 0.0, measured_at=None)
        order = []
        while (found := schedule.next()) is not None:
            order.append(found[0])
            schedule.left(found[0])
        assert sorted(order) == sorted(map(node_id, range(1, 40)))
        orders.append(order)
    assert orders[0] != orders[1]


def test_nodes_that_are_gone_are_nobodys_turn() -> None:
    schedule = a_schedule()
    schedule.left(node_id(1))
    schedule.measured(node_id(1), 0.0)
    schedule.failed(node_id(1), 0.0)
    schedule.was_busy(node_id(1), 0.0)
    assert schedule.next() is None
    assert not schedule.is_new(node_id(1))
