"""Deployments that move to better plans, on a virtual clock."""

from __future__ import annotations

import pytest
from simulation.stages import NUM_LAYERS, STEP_SECONDS_PER_LAYER
from simulation.world import World, room_for

from potluck.placement.rebalancing import RebalancePolicy
from potluck.types.choices import Rebalance
from potluck.types.deployment import MoveOutcome, RebalanceReport

SEEDS = pytest.mark.parametrize("seed", range(3))


def cluster(
    seed: int,
    *layers: int,
    rebalance: Rebalance = Rebalance.AUTO,
    rebalance_policy: RebalancePolicy | None = None,
) -> World:
    """Nodes with room for so many layers of six each; the first one coordinates."""
    return World(
        seed,
        [room_for(each) for each in layers],
        duplicates=0.05,
        rebalance=rebalance,
        rebalance_policy=rebalance_policy or RebalancePolicy(),
    )


def deploy(world: World, *nodes: int) -> None:
    world.start(*nodes)
    world.run(1.0)
    world.deploy(nodes[0])


def keep_busy(world: World, seconds: float) -> None:
    """Have clients ask at the first node all the time, each for a second or two."""
    for number in range(int(seconds / 2.0)):
        world.at(2.0 * number, lambda n=number: world.ask(1, seed=100 + n, max_new_tokens=40))


def assert_well(world: World) -> None:
    world.end(within=10.0)
    assert not world.history.violations, "\n".join(
        [*world.history.violations, *world.history.notes]
    )


@SEEDS
def test_a_faster_node_that_joins_is_moved_to_and_streams_continue(seed: int) -> None:
    with cluster(seed, 6, 6) as world:
        world.set_slowness(1, 4.0)
        deploy(world, 1)
        answer = world.ask(1, max_new_tokens=240)
        world.start(2)
        world.run(9.0)
        assert world.stages == [("n1", 0, 6)]
        assert world.count_moves() == 0
        world.run(20.0)
        assert world.stages == [("n2", 0, 6)]
        assert world.count_moves() == 1
        record = world.records[2]
        assert record is not None
        assert "faster" in record.status.rebalance_note
        assert answer.is_complete
        assert len(answer.epochs) == 2
        assert_well(world)


@SEEDS
def test_the_pause_of_a_move_is_that_of_a_replay(seed: int) -> None:
    with cluster(seed, 6, 6) as world:
        world.set_slowness(1, 4.0)
        deploy(world, 1)
        world.start(2)
        answer = world.ask(1, max_new_tokens=240)
        longest, count, since = 0.0, 0, world.now
        while not answer.num_ends:
            world.run(0.01)
            if len(answer.tokens) != count:
                longest, count, since = (
                    max(longest, world.now - since),
                    len(answer.tokens),
                    world.now,
                )
        assert world.count_moves() == 1
        # Loading takes 1.2 s; a step of the slow node 0.1 s.
        assert longest < 0.7
        assert_well(world)


@SEEDS
@pytest.mark.parametrize("slowness", [1.0, 4.0])
def test_a_node_that_is_no_faster_changes_nothing(seed: int, slowness: float) -> None:
    with cluster(seed, 6, 6, 6) as world:
        deploy(world, 1)
        world.set_slowness(2, slowness)
        world.set_slowness(3, slowness)
        before = world.epoch
        answer = world.ask(1, max_new_tokens=240)
        world.start(2, 3)
        world.run(3600.0)
        assert world.epoch == before
        assert len(answer.epochs) == 1
        seconds = (answer.ended_at or 0.0) - answer.requested_at
        assert seconds / 240 < NUM_LAYERS * STEP_SECONDS_PER_LAYER + 0.008
        assert_well(world)


@SEEDS
def test_a_lopsided_plan_after_a_loss_is_repaired(seed: int) -> None:
    with cluster(seed, 3, 3, 6) as world:
        world.set_slowness(3, 4.0)
        deploy(world, 1, 2)
        world.start(3)
        world.run(2.0)
        keep_busy(world, 60.0)
        world.crash(2)
        world.run(5.0)
        assert ("n3", 3, 6) in world.stages  # what was missing went where there was room
        world.start(2)
        world.run(60.0)
        assert {node for node, _, _ in world.stages} == {"n1", "n2"}
        assert world.count_moves() == 1
        assert_well(world)


@SEEDS
def test_a_stage_that_becomes_slow_is_moved_away_from(seed: int) -> None:
    with cluster(seed, 6, 6) as world:
        world.start_all()
        (node, _, _) = world.stages[0]
        world.run(60.0)
        assert world.epoch is not None
        assert not world.count_moves()
        keep_busy(world, 40.0)
        slow = int(node[1:])
        world.set_slowness(slow, 4.0)
        world.run(40.0)
        assert world.count_moves() == 1
        assert slow not in {int(node[1:]) for node, _, _ in world.stages}
        assert_well(world)


@SEEDS
def test_a_move_that_cannot_be_loaded_leaves_the_epoch_as_it_is(seed: int) -> None:
    with cluster(seed, 6, 6) as world:
        world.set_slowness(1, 4.0)
        deploy(world, 1)
        before = world.epoch
        world.start(2)
        world.break_disk(2)
        keep_busy(world, 60.0)
        world.run(60.0)
        assert world.epoch == before
        assert all(len(answer.epochs) <= 1 for answer in world.history.answers)
        record = world.records[1]
        assert record is not None
        assert "abandoned: " in record.status.rebalance_note
        assert "cannot be read" in record.status.rebalance_note
        world.repair_disk(2)
        world.run(400.0)
        assert world.count_moves() == 1
        assert_well(world)


@SEEDS
def test_the_new_node_is_lost_while_it_loads(seed: int) -> None:
    with cluster(seed, 6, 6) as world:
        world.set_slowness(1, 4.0)
        deploy(world, 1)
        before = world.epoch
        answer = world.ask(1, max_new_tokens=240)
        world.start(2)
        loading = world.agents[2].stages
        assert world.run_while(lambda: not loading.workers, at_most=60.0)
        world.crash(2)
        world.run(20.0)
        assert world.epoch == before
        assert len(answer.epochs) == 1
        assert_well(world)


@SEEDS
def test_without_room_beside_what_serves_it_is_stopped_first(seed: int) -> None:
    with cluster(seed, 4, 4) as world:
        world.set_slowness(1, 4.0)
        world.start_all()
        assert world.stages == [("n1", 0, 3), ("n2", 3, 6)]
        keep_busy(world, 60.0)
        world.run(60.0)
        # Node 2 holds three layers and has room for one more, not for four others.
        assert world.stages == [("n2", 0, 4), ("n1", 4, 6)]
        assert_well(world)


def test_a_node_that_flaps_causes_few_moves_and_costs_no_request() -> None:
    with cluster(0, 6, 6) as world:
        world.set_slowness(1, 4.0)
        deploy(world, 1)
        period, num_turns = 40.0, 60
        for turn in range(num_turns):
            world.at(turn * period, world.start, 2)
            world.at(turn * period + 30.0, world.crash, 2)
            world.at(turn * period + 5.0, lambda n=turn: world.ask(1, seed=n, max_new_tokens=150))
        world.run(num_turns * period)
        # It settles after 10 s and after 20 s, and then is away again before it does.
        assert 1 <= world.count_moves() <= 2
        world.start(2)
        world.run(1800.0 + 200.0)
        assert world.stages == [("n2", 0, 6)]
        assert_well(world)
        assert all(answer.is_complete for answer in world.history.answers)


@SEEDS
def test_a_node_that_is_slow_by_turns_causes_few_moves(seed: int) -> None:
    with cluster(seed, 6, 6) as world:
        world.set_slowness(2, 2.0)
        deploy(world, 1, 2)
        for turn in range(60):
            world.at(turn * 60.0, world.set_slowness, 1, (8.0, 1.0)[turn % 2])
        world.run(3600.0)
        assert 1 <= world.count_moves() <= 6
        assert_well(world)


@SEEDS
def test_two_nodes_that_are_fast_by_turns_cause_few_moves(seed: int) -> None:
    with cluster(seed, 6, 6) as world:
        deploy(world, 1, 2)
        for turn in range(60):
            world.at(turn * 60.0, world.set_slowness, 1, (50.0, 1.0)[turn % 2])
            world.at(turn * 60.0, world.set_slowness, 2, (1.0, 50.0)[turn % 2])
        world.run(3600.0)
        assert 4 <= world.count_moves() <= 6
        assert_well(world)


@SEEDS
def test_a_loss_while_it_moves_is_told_of_the_plan_in_force(seed: int) -> None:
    with cluster(seed, 6, 6, 6) as world:
        world.set_slowness(1, 4.0)
        deploy(world, 1)
        before = world.epoch
        world.start(2)
        loading = world.agents[2].stages
        assert world.run_while(lambda: not loading.workers, at_most=60.0)
        keep_busy(world, 5.0)
        world.kill_worker(1)
        world.run(5.0)
        assert before is not None
        assert world.epoch is not None
        assert world.epoch.number == before.number + 2
        published = [line.split("n1: ", 1)[1] for line in world.history.notes if "n1: " in line]
        assert not any(line.startswith(f"{before.number + 1}.") for line in published)
        assert_well(world)


@SEEDS
@pytest.mark.parametrize("rebalance", [Rebalance.ASK, Rebalance.NEVER])
def test_it_moves_by_itself_only_if_it_may(seed: int, rebalance: Rebalance) -> None:
    with cluster(seed, 6, 6, rebalance=rebalance) as world:
        world.set_slowness(1, 4.0)
        deploy(world, 1)
        before = world.epoch
        world.start(2)
        world.run(600.0)
        assert world.epoch == before
        record = world.records[2]
        assert record is not None
        is_suggested = "potluck rebalance toy" in record.status.rebalance_note
        assert is_suggested is (rebalance is Rebalance.ASK)
        assert_well(world)


@SEEDS
def test_what_was_loaded_for_a_move_that_fails_is_released(seed: int) -> None:
    with cluster(seed, 6, 2, 4) as world:
        world.set_slowness(1, 8.0)
        deploy(world, 1)
        world.start(2, 3)
        early, late = world.agents[2].stages, world.agents[3].stages
        assert world.run_while(lambda: not late.workers, at_most=60.0)
        assert world.run_while(lambda: not early.held(), at_most=2.0)
        world.break_disk(3)
        assert world.run_while(lambda: not note_of(world), at_most=60.0)
        assert "abandoned" in note_of(world)
        world.run(2.0)
        assert world.stages == [("n1", 0, 6)]
        assert not early.workers
        assert_well(world)


@SEEDS
def test_what_a_node_holds_that_returns_is_released_if_nothing_moves(seed: int) -> None:
    with cluster(seed, 3, 3, 6, rebalance=Rebalance.NEVER) as world:
        deploy(world, 1, 2)
        world.start(3)
        world.run(5.0)
        world.cut_between([2], [1, 3])
        assert world.run_while(lambda: "n2" in {node for node, _, _ in world.stages}, at_most=30.0)
        world.run(5.0)
        away = world.agents[2].stages
        assert away.workers
        world.heal_between([2], [1, 3])
        world.run(5.0)
        assert away.workers, "a move might want them"
        world.run(20.0)
        assert not away.workers
        assert "n2" not in {node for node, _, _ in world.stages}
        assert_well(world)


@SEEDS
def test_a_leaving_node_ends_a_move_and_is_left(seed: int) -> None:
    with cluster(seed, 6, 6, 6) as world:
        world.set_slowness(1, 4.0)
        world.set_slowness(3, 4.0)
        deploy(world, 3, 1)
        assert world.stages == [("n1", 0, 3), ("n3", 3, 6)]
        world.start(2)
        loading = world.agents[2].stages
        keep_busy(world, 20.0)
        assert world.run_while(lambda: not loading.workers, at_most=60.0)
        world.drain(1)
        assert world.run_while(lambda: 1 in world.agents, at_most=20.0)
        del world.capacities[1]
        assert "n1" not in {node for node, _, _ in world.stages}
        assert_well(world)


def note_of(world: World) -> str:
    record = world.records[1]
    return "" if record is None else record.status.rebalance_note


def look(world: World, *, is_dry_run: bool) -> RebalanceReport:
    """What ``potluck rebalance`` is answered."""
    (node,) = world.coordinators
    agent = world.agents[node]
    reports: list[RebalanceReport] = []

    async def ask() -> None:
        reports.append(
            await agent.coordination.rebalance(
                agent.coordination.records.find(None)[0], is_dry_run=is_dry_run
            )
        )

    agent.process.run(lambda: world.loop.create_task(ask()))
    assert world.run_while(lambda: not reports, at_most=30.0)
    return reports[0]


@SEEDS
@pytest.mark.parametrize("rebalance", list(Rebalance))
def test_a_user_may_look_and_move_at_any_time(seed: int, rebalance: Rebalance) -> None:
    with cluster(seed, 6, 6, rebalance=rebalance) as world:
        world.set_slowness(1, 4.0)
        deploy(world, 1)
        world.start(2)
        world.run(1.0)
        before = world.epoch
        shown = look(world, is_dry_run=True)
        assert shown.outcome is MoveOutcome.POSSIBLE
        assert shown.gain > 2.0
        assert [each.node_id for each in shown.new_stages] == ["n2"]
        assert not shown.needs_room
        assert world.epoch == before
        keep_busy(world, 10.0)
        assert look(world, is_dry_run=False).outcome is MoveOutcome.MOVED
        assert world.stages == [("n2", 0, 6)]
        assert look(world, is_dry_run=False).outcome is MoveOutcome.STAYS
        assert_well(world)


@SEEDS
def test_a_user_is_told_why_a_move_has_failed(seed: int) -> None:
    with cluster(seed, 6, 6, rebalance=Rebalance.NEVER) as world:
        world.set_slowness(1, 4.0)
        deploy(world, 1)
        world.start(2)
        world.run(1.0)
        world.break_disk(2)
        report = look(world, is_dry_run=False)
        assert report.outcome is MoveOutcome.FAILED
        assert "cannot be read" in report.reason
        assert world.stages == [("n1", 0, 6)]
        assert_well(world)
