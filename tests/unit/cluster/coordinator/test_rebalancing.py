"""What a move is made of: the costs, the occasions to look, and what users are told."""

from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from support.cluster.calls import A, B, a_record, changed, stage_on
from support.placement.predictions import prediction
from support.virtual_time.run import run_in_virtual_time

from potluck.cluster.coordinator import rebalancing
from potluck.cluster.coordinator.metrics import have_changed, slowdowns_of
from potluck.cluster.coordinator.rebalancing import Rebalancing
from potluck.cluster.wire.worker_messages import Stats
from potluck.errors import EngineError
from potluck.placement.rebalancing import (
    LOAD_BYTES_PER_SECOND,
    SWITCH_SECONDS,
    MoveCost,
    PlanComparison,
    RebalancePolicy,
    compared,
    cost_of_move,
    is_in_force,
)
from potluck.types.choices import Objective, Rebalance
from potluck.types.cluster import Epoch, NodeId, UnitId
from potluck.types.deployment import MoveOutcome, RebalanceReport, StageRecord
from potluck.types.groups import LayoutStage
from potluck.types.program import Shard
from potluck.types.speed import StepTime

CPU = UnitId("cpu/native")
C = NodeId("c" * 16)


def planned(*stages: tuple[NodeId, int, int], kept: tuple[int, ...] = (), read: int = 0) -> Any:
    """A plan of stages on the CPUs of nodes, some of which are held already."""
    parts = [
        SimpleNamespace(
            node_id=node,
            unit=(node, CPU),
            plan=SimpleNamespace(
                shard=SimpleNamespace(start_layer=start, end_layer=end, part=None),
                read_bytes=read,
            ),
            is_held_as=(node, start, end).__eq__,
        )
        for node, start, end in stages
    ]
    held = [stages[index] for index in kept]
    return SimpleNamespace(stages=parts, held=held, needs_room=False)


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
    assert slowdowns_of(measured, prediction(A, B)) == {
        (0, "before"): 1.25,
        (1, "predicted"): pytest.approx(2.0),
    }
    assert slowdowns_of(measured, None) == {(0, "before"): 1.25}


@pytest.mark.parametrize("slowdown", [0.0, -1.0, float("nan"), float("inf")])
def test_a_slowdown_that_cannot_be_true_is_no_occasion_to_look(slowdown: float) -> None:
    assert slowdowns_of({0: stats(slowdown=slowdown)}, None) == {}


def test_plans_are_compared_only_where_both_are_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    record = changed(a_record(), stages=(loaded(A, 0, 2), loaded(B, 2, 4)))
    predicted_stages: list[Any] = []

    def predict(_: object, stages: Any) -> Any:
        predicted_stages.extend(stages)
        return prediction(A, B)

    monkeypatch.setattr("potluck.placement.rebalancing.prediction_of", predict)
    units = {
        nodes: SimpleNamespace(candidates=[SimpleNamespace(unit=(each, CPU)) for each in nodes])
        for nodes in ((A, B, C), (A, C))
    }
    plan = cast(Any, SimpleNamespace(prediction=prediction(C), request=units[A, B, C]))
    found = compared(plan, record)
    assert found is not None
    assert (found.predicted, found.in_force) == (prediction(C), prediction(A, B))
    assert [each.shard for each in predicted_stages] == [
        Shard(start_layer=0, end_layer=2, num_layers=4, has_embedding=True, has_head=False),
        Shard(start_layer=2, end_layer=4, num_layers=4, has_embedding=False, has_head=True),
    ]
    plan.request = units[A, C]
    assert compared(plan, record) is None
    plan.request = None
    assert compared(plan, record) is None


QUICK = RebalancePolicy(
    settle_seconds=0.01, confirm_seconds=0.01, check_seconds=0.02, watch_seconds=0.03
)


def now() -> float:
    return asyncio.get_running_loop().time()


class Played:
    """A deployment on node A; planning gives what is in ``plans``, and then nothing better."""

    num_live_tokens = 0

    def __init__(self, *plans: Any, **changes: Any) -> None:
        self.record = changed(a_record(), stages=(loaded(A, 0, 4),), **changes)
        self.plans = list(plans)
        self.num_looks = 0
        self.moves: list[str] = []
        self.notes: list[str] = []
        self.releases: list[float] = []
        self.rebalancing = Rebalancing(
            self,
            QUICK,
            note=self.notes.append,
            release_unused=self.release_unused,
            clock=now,
            spawn=asyncio.ensure_future,
        )

    async def alternative(self, without: object) -> PlanComparison | None:
        self.num_looks += 1
        plan = self.plans.pop(0) if self.plans else None
        if isinstance(plan, Exception):
            raise plan
        return cast(PlanComparison | None, plan)

    async def slowdowns(self) -> dict[tuple[int, str], float]:
        return {}

    def begin_move(self, planned: object, reason: str) -> None:
        self.moves.append(reason)

    async def release_unused(self) -> None:
        self.releases.append(now())

    async def run(self, seconds: float) -> None:
        self.rebalancing.serves()
        await asyncio.sleep(seconds)
        self.rebalancing.close()


def better(rate: float) -> PlanComparison:
    fast = dataclasses.replace(prediction(B), tokens_per_second=rate)
    return PlanComparison(planned=planned((B, 0, 4)), predicted=fast, in_force=prediction(A))


def test_a_plan_that_is_better_twice_is_moved_to() -> None:
    played = Played(better(90.0), better(90.0))
    run_in_virtual_time(played.run(0.15))
    assert played.moves == ["moving to a plan that is predicted to be 100% faster"]


def test_a_plan_that_is_slower_is_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deployment that is divided by memory moves to such plans when it is told to."""
    stays = RebalanceReport(model_id="", outcome=MoveOutcome.POSSIBLE, reason="", stages=())
    monkeypatch.setattr(rebalancing, "report_of", lambda *_: stays)
    slow = dataclasses.replace(prediction(B), tokens_per_second=9.0, total_tokens_per_second=9.0)
    plan = PlanComparison(planned=planned((B, 0, 4)), predicted=slow, in_force=prediction(A))
    played = Played(plan, objective=Objective.MEMORY)

    async def run() -> None:
        played.rebalancing.serves()
        asyncio.get_running_loop().call_later(0.02, played.rebalancing.move_over, "")
        await played.rebalancing.ask(is_dry_run=False)
        played.rebalancing.close()

    run_in_virtual_time(run())
    assert played.moves == ["moving to a plan that is predicted to be 80% slower"]
    assert played.notes == ["moved to a plan that is predicted to be 80% slower"]


def test_a_gain_that_the_move_consumes_is_not_called_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found = RebalanceReport(model_id="", outcome=MoveOutcome.POSSIBLE, reason="", stages=())
    monkeypatch.setattr(rebalancing, "report_of", lambda *_: found)
    costly = MoveCost(num_bytes=1 << 40, load_seconds=1e3, replay_seconds=9.0, needs_room=True)
    monkeypatch.setattr(rebalancing, "cost_of_move", lambda *_, **__: costly)
    played = Played(better(46.0))

    async def run() -> RebalanceReport:
        played.rebalancing.serves()
        report = await played.rebalancing.ask(is_dry_run=True)
        played.rebalancing.close()
        return report

    reason = "it does not move automatically: the move costs more than it gains"
    assert run_in_virtual_time(run()).reason == reason


def test_nothing_moves_that_was_placed_again_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    stays = RebalanceReport(model_id="", outcome=MoveOutcome.POSSIBLE, reason="", stages=())
    monkeypatch.setattr(rebalancing, "report_of", lambda *_: stays)
    played = Played(better(90.0))
    looked = played.alternative

    async def alternative(without: object) -> PlanComparison | None:
        found = await looked(without)
        later = Epoch(number=9, coordinator=A)
        played.record = msgspec.structs.replace(played.record, epoch=later)
        return found

    monkeypatch.setattr(played, "alternative", alternative)

    async def run() -> RebalanceReport:
        played.rebalancing.serves()
        async with asyncio.timeout(5):
            report = await played.rebalancing.ask(is_dry_run=False)
        played.rebalancing.close()
        return report

    assert run_in_virtual_time(run()).outcome is MoveOutcome.STAYS
    assert not played.moves


def test_a_plan_that_is_better_once_is_not() -> None:
    played = Played(better(90.0), better(50.0), better(90.0))
    run_in_virtual_time(played.run(0.15))
    assert played.num_looks > 3
    assert not played.moves


@pytest.mark.parametrize("objective", [Objective.THROUGHPUT, Objective.MEMORY])
def test_what_a_node_that_returns_holds_is_released_if_no_move_wants_it(
    objective: Objective,
) -> None:
    played = Played(objective=objective)

    async def run() -> None:
        await asyncio.sleep(1)
        loop = asyncio.get_running_loop()
        loop.call_later(0.05, played.rebalancing.node_joined, B)
        await played.run(0.5)

    run_in_virtual_time(run())
    (released,) = played.releases
    assert released >= 1.05 + QUICK.settle_seconds


def test_what_a_promising_plan_may_use_is_kept() -> None:
    played = Played(*(better(90.0) for _ in range(9)), rebalance=Rebalance.ASK)

    async def run() -> None:
        played.rebalancing.serves()
        played.rebalancing.node_joined(C)
        await asyncio.sleep(0.15)
        assert played.notes
        assert played.releases == []
        played.rebalancing.close()

    run_in_virtual_time(run())


def test_looking_goes_on_whatever_a_look_meets(caplog: pytest.LogCaptureFixture) -> None:
    played = Played(EngineError("no plan"), RuntimeError("a mistake"), better(90.0), better(90.0))
    run_in_virtual_time(played.run(0.3))
    assert len(played.moves) == 1
    assert "a mistake" in caplog.text


def test_nothing_is_looked_for_once_it_serves_no_more() -> None:
    async def run() -> int:
        played = Played()
        await played.run(0.1)
        seen = played.num_looks
        await asyncio.sleep(0.1)
        assert played.num_looks == seen
        return seen

    assert run_in_virtual_time(run()) >= 2


@pytest.mark.parametrize(
    "changes", [{"rebalance": Rebalance.NEVER}, {"objective": Objective.MEMORY}]
)
def test_some_deployments_never_look(changes: dict[str, Any]) -> None:
    played = Played(**changes)
    run_in_virtual_time(played.run(0.1))
    assert not played.num_looks


def test_one_with_a_layout_only_tells_of_a_better_plan() -> None:
    layout = (LayoutStage(node_id=A, unit_id=CPU, num_layers=4),)
    played = Played(*[better(90.0)] * 20, layout=layout)
    run_in_virtual_time(played.run(0.1))
    assert not played.moves
    assert "100% faster; run potluck rebalance demo to move it" in played.notes[0]
