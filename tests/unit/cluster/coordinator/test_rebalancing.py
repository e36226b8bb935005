"""What a move is made of: the costs, the occasions to look, and what users are told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from support.cluster_calls import A, B, a_record, stage_on
from support.predictions import prediction

from potluck.cluster.calls import StageRecord
from potluck.cluster.coordinator.alternatives import compared, cost_of_move, is_in_force
from potluck.cluster.coordinator.paces import have_changed, paces_of
from potluck.cluster.worker.messages import Stats
from potluck.placement.rebalancing import LOAD_BYTES_PER_SECOND, SWITCH_SECONDS
from potluck.types.cluster import NodeId, UnitId
from potluck.types.program import Shard
from potluck.types.speed import StepTime

CPU = UnitId("cpu/native")
C = NodeId("c" * 16)


def planned(*stages: tuple[NodeId, int, int], kept: tuple[int, ...] = (), read: int = 0) -> Any:
    """A plan of stages on the CPUs of nodes, some of which are held already."""
    parts = [
        SimpleNamespace(
            node_id=node,
            unit_id=CPU,
            plan=SimpleNamespace(
                shard=SimpleNamespace(start_layer=start, end_layer=end), read_bytes=read
            ),
        )
        for node, start, end in stages
    ]
    holdings = [
        SimpleNamespace(
            node_id=stages[index][0],
            stage=SimpleNamespace(
                unit_id=CPU, start_layer=stages[index][1], end_layer=stages[index][2]
            ),
        )
        for index in kept
    ]
    return SimpleNamespace(stages=parts, kept=holdings, needs_room=False)


def loaded(node: NodeId, start: int, end: int, **changes: Any) -> StageRecord:
    return msgspec.structs.replace(stage_on(node), start_layer=start, end_layer=end, **changes)


def test_only_what_is_not_held_is_loaded_on_all_nodes_at_the_same_time() -> None:
    plan = planned((A, 0, 2), (B, 2, 4), (C, 4, 6), kept=(1,), read=3_000_000)
    in_use = [
        loaded(A, 0, 3, read_bytes=10_000_000, load_seconds=1.0),
        loaded(B, 3, 6, read_bytes=40_000_000, load_seconds=1.0),
    ]
    cost = cost_of_move(plan, in_use, prediction(A, B, C), num_live_tokens=1024)
    assert cost.num_bytes == 6_000_000
    # A loads as fast as it did; C as nodes usually do.
    assert cost.load_seconds == pytest.approx(0.3)
    assert cost.replay_seconds == pytest.approx(SWITCH_SECONDS + 1024 * 0.8 / 512)
    assert not cost.needs_room


def test_where_no_load_was_timed_a_cautious_rate_is_assumed() -> None:
    plan = planned((A, 0, 2), read=300_000_000)
    in_use = [loaded(B, 0, 2, read_bytes=0, load_seconds=0.0)]
    cost = cost_of_move(plan, in_use, prediction(A), num_live_tokens=0)
    assert cost.load_seconds == pytest.approx(300_000_000 / LOAD_BYTES_PER_SECOND)


@pytest.mark.parametrize(
    ("stages", "is_same"),
    [
        (((A, 0, 3), (B, 3, 6)), True),
        (((B, 0, 3), (A, 3, 6)), False),
        (((A, 0, 2), (B, 2, 6)), False),
        (((A, 0, 6),), False),
    ],
)
def test_a_plan_is_in_force_if_all_stages_are_in_the_same_places(
    stages: tuple[tuple[NodeId, int, int], ...], is_same: bool
) -> None:
    assert is_in_force(planned(*stages), [loaded(A, 0, 3), loaded(B, 3, 6)]) is is_same


@pytest.mark.parametrize(
    ("before", "now", "looks"),
    [
        ({}, {}, False),
        ({}, {(0, "before"): 1.4}, False),
        ({}, {(0, "before"): 1.6}, True),
        ({}, {(0, "predicted"): 0.6}, True),  # faster than was thought
        ({(0, "before"): 1.6}, {(0, "before"): 1.7}, False),
        ({(0, "before"): 3.0}, {(0, "before"): 1.0}, True),
        ({(0, "before"): 3.0}, {}, False),  # idle
        ({(0, "before"): 3.0}, {(0, "before"): 3.0, (1, "before"): 2.0}, True),
    ],
)
def test_a_stage_that_is_not_as_fast_as_expected_is_an_occasion_to_look(
    before: dict[tuple[int, str], float], now: dict[tuple[int, str], float], looks: bool
) -> None:
    assert have_changed(before, now) is looks


def stats(**changes: Any) -> Stats:
    return Stats(
        num_steps=1,
        num_tokens=1,
        compute_seconds=1.0,
        send_seconds=0.0,
        num_sent_bytes=0,
        resident_bytes=0,
        **changes,
    )


def decoding(seconds: float) -> StepTime:
    return StepTime(
        num_layers=2,
        has_embedding=True,
        has_head=False,
        num_sequences=1,
        num_tokens=1,
        context_tokens=100,
        seconds=seconds,
        num_samples=9,
    )


def test_stages_are_compared_with_their_past_and_with_the_prediction() -> None:
    measured = {
        0: stats(slowdown=1.25),
        1: stats(step_times=(decoding(0.042),)),
        5: stats(step_times=(decoding(0.042),)),  # of another epoch
    }
    assert paces_of(measured, prediction(A, B)) == {
        (0, "before"): 1.25,
        (1, "predicted"): pytest.approx(2.0),
    }
    assert paces_of(measured, None) == {(0, "before"): 1.25}


def test_plans_are_compared_only_where_both_are_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    record = msgspec.structs.replace(a_record(), stages=(loaded(A, 0, 2), loaded(B, 2, 4)))
    asked: list[Any] = []

    def predict(_: object, stages: Any) -> Any:
        asked.extend(stages)
        return prediction(A, B)

    monkeypatch.setattr("potluck.cluster.coordinator.alternatives.prediction_of", predict)
    units = {
        node: SimpleNamespace(
            candidates=[SimpleNamespace(node_id=each, unit_id=CPU) for each in node]
        )
        for node in ((A, B, C), (A, C))
    }
    plan = cast(Any, SimpleNamespace(prediction=prediction(C), request=units[A, B, C]))
    found = compared(plan, record)
    assert found is not None
    assert (found.predicted, found.in_force) == (prediction(C), prediction(A, B))
    assert [each.shard for each in asked] == [
        Shard(start_layer=0, end_layer=2, num_layers=4, has_embedding=True, has_head=False),
        Shard(start_layer=2, end_layer=4, num_layers=4, has_embedding=False, has_head=True),
    ]
    plan.request = units[A, C]
    assert compared(plan, record) is None
    plan.request = None
    assert compared(plan, record) is None
