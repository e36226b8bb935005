"""What chaos has found in real clusters once, and what users do, on a virtual clock."""

from __future__ import annotations

import pytest
from simulation.history import Answer
from simulation.stages import STEP_DEADLINE_SECONDS
from simulation.world import World, room_for

from potluck.scheduling.draft_lengths import DraftLengths

SEEDS = pytest.mark.parametrize("seed", range(3))


def cluster(
    seed: int, *layers: int, recovery_wait_seconds: float = 60.0, has_drafts: bool = False
) -> World:
    """Nodes with room for so many layers of six each; the first one coordinates."""
    return World(
        seed,
        [room_for(each) for each in layers],
        recovery_wait_seconds=recovery_wait_seconds,
        duplicates=0.05,
        has_drafts=has_drafts,
    )


def assert_well(world: World, *, within: float = 10.0) -> None:
    world.end(within=within)
    assert not world.history.violations, "\n".join(
        [*world.history.violations, *world.history.notes]
    )


def seconds_of(answer: Answer) -> float:
    assert answer.is_complete
    assert answer.ended_at is not None
    return answer.ended_at - answer.requested_at


@SEEDS
@pytest.mark.parametrize("seconds", [3.0, 12.0, 30.0])
@pytest.mark.parametrize("layers", [0, 6])
def test_a_node_that_was_cut_off_does_not_beat_an_undisturbed_majority(
    seed: int, seconds: float, layers: int
) -> None:
    with cluster(seed, 3, 3, layers) as world:
        world.start(1, 2)
        world.run(1.0)
        world.deploy(1)
        world.start(3)
        world.run(2.0)
        before = world.epoch
        assert before is not None
        world.cut_between([3], [1, 2])
        answer = world.ask(2, max_new_tokens=60)
        world.run(seconds)
        world.heal_between([3], [1, 2])
        assert_well(world)
        assert world.epoch == before
        assert len(answer.epochs) == 1


@SEEDS
def test_one_cut_link_makes_no_coordinators_duel(seed: int) -> None:
    with cluster(seed, 6, 6, 6) as world:
        world.start_all()
        world.cut_between([1], [2])
        world.run(5.0)
        settled = world.records[3]
        assert settled is not None
        answers = [world.ask(node, seed=node) for node in (1, 2, 3)]
        world.run(70.0)
        latest = world.records[3]
        assert latest is not None
        assert latest.epoch == settled.epoch
        assert latest.epoch.number <= 3
        assert len(world.coordinators) == 1
        assert all(answer.is_complete for answer in answers)
        world.heal_between([1], [2])
        assert_well(world)


@SEEDS
def test_two_nodes_that_lose_each_other_both_serve_and_agree_afterwards(seed: int) -> None:
    with cluster(seed, 6, 6) as world:
        world.start_all()
        world.cut_between([1], [2])
        answers = [world.ask(node, seed=node, max_new_tokens=40) for node in (1, 2)]
        world.run(30.0)
        assert all(answer.is_complete for answer in answers)
        answers = [world.ask(node, seed=node, max_new_tokens=60) for node in (1, 2)]
        world.at(0.3, world.heal_between, [1], [2])
        world.run(10.0)
        assert all(answer.is_complete for answer in answers)
        assert_well(world)


@SEEDS
def test_kills_right_after_it_is_ready_lead_to_no_growing_pauses(seed: int) -> None:
    with cluster(seed, 6, 6) as world:
        world.start_all()
        answer = world.ask(2, max_new_tokens=20)
        for _ in range(8):
            world.kill_worker(1)
            since = world.now
            assert world.run_while(lambda: world.is_serving, at_most=1.0)
            assert world.run_while(lambda: not world.is_serving, at_most=5.0)
            assert world.now - since < 3.0
        assert_well(world)
        assert answer.is_complete


@SEEDS
@pytest.mark.parametrize("node", [1, 2], ids=("coordinator", "stage"))
def test_a_node_leaves_under_steady_traffic_within_seconds_and_no_request_fails(
    seed: int, node: int
) -> None:
    with cluster(seed, 3, 3, 3) as world:
        world.start_all()
        others = [each for each in (1, 2, 3) if each != node]
        for number in range(60):
            gateway = others[number % 2]
            world.at(number * 0.1, lambda gateway=gateway, n=number: world.ask(gateway, seed=n))
        streaming = world.ask(node, seed=100, max_new_tokens=40)
        world.run(1.0)
        since = world.now
        world.drain(node)
        assert world.run_while(lambda: node in world.agents, at_most=8.0)
        assert world.now - since < 8.0
        assert streaming.is_complete
        world.run(8.0)
        assert max(map(seconds_of, world.history.answers)) < 5.0
        del world.capacities[node]
        assert_well(world)


@SEEDS
def test_two_of_three_machines_are_lost_one_after_the_other(seed: int) -> None:
    with cluster(seed, 6, 6, 6) as world:
        world.start_all()
        story = world.ask(3, max_new_tokens=150)
        world.run(1.0)
        world.crash(1)
        world.run(4.0)
        world.crash(2, is_silent=True)
        del world.capacities[1], world.capacities[2]
        world.run(25.0)
        assert story.is_complete
        assert len(story.epochs) >= 2
        assert_well(world)


@SEEDS
def test_the_same_request_at_another_gateway_gets_the_same_text(seed: int) -> None:
    with cluster(seed, 6, 6, 6) as world:
        world.start_all()
        first = world.ask(1, seed=7, max_new_tokens=60)
        world.run(0.5)
        world.crash(1)
        world.run(10.0)
        assert first.end == "gateway lost"
        again = world.history.answers[-1]
        assert again.is_complete
        assert again.tokens[: len(first.tokens)] == first.tokens
        world.heal_all()
        assert_well(world)


@SEEDS
def test_a_frozen_worker_is_noticed_in_seconds(seed: int) -> None:
    with cluster(seed, 3, 3) as world:
        world.start_all()
        answer = world.ask(1, max_new_tokens=40)
        world.run(0.3)
        world.freeze_worker(2)
        world.run(12.0)
        assert seconds_of(answer) < STEP_DEADLINE_SECONDS + 5.0
        assert_well(world)


@SEEDS
def test_a_gateway_that_vanishes_while_it_streams_disturbs_nobody(seed: int) -> None:
    with cluster(seed, 3, 3, 0) as world:
        world.start_all()
        before = world.epoch
        for number in range(6):
            world.ask(3, seed=number, max_new_tokens=60)
        others = [world.ask(node, seed=10 + node, max_new_tokens=60) for node in (1, 2)]
        world.run(0.5)
        world.cut_between([3], [1, 2])
        world.run(10.0)
        assert all(len(answer.epochs) == 1 for answer in others)
        assert max(map(seconds_of, others)) < 5.0
        world.heal_between([3], [1, 2])
        assert_well(world)
        assert world.epoch == before


@SEEDS
def test_a_node_that_flaps_costs_no_request(seed: int) -> None:
    with cluster(seed, 3, 3, 3, 3) as world:
        world.start_all()
        for number in range(20):
            world.at(number * 0.5, lambda n=number: world.ask(1 + n % 2, seed=n))
        for turn in range(8):
            world.at(turn * 1.0, world.crash, 3)
            world.at(turn * 1.0 + 0.4, world.start, 3)
        world.run(12.0)
        assert_well(world)


@SEEDS
def test_ten_nodes_that_join_and_are_lost_at_once_disturb_no_stream(seed: int) -> None:
    with cluster(seed, *[6] * 10) as world:
        world.start(1)
        world.run(1.0)
        world.deploy(1)
        answer = world.ask(1, max_new_tokens=100)
        world.start(*range(2, 11))
        world.run(0.5)
        assert not answer.is_complete
        for node in range(2, 11):
            world.crash(node)
        assert_well(world)
        assert len(answer.epochs) == 1


@SEEDS
def test_who_joins_later_may_take_over_at_once(seed: int) -> None:
    with cluster(seed, 6, 6, 6) as world:
        world.start(1)
        world.run(1.0)
        world.deploy(1)
        world.start(2, 3)
        world.run(2.0)
        answer = world.ask(3, max_new_tokens=60)
        world.run(0.5)
        world.crash(1)
        world.run(8.0)
        assert seconds_of(answer) < 8.0
        world.heal_all()
        assert_well(world)


@SEEDS
def test_without_enough_machines_requests_fail_when_they_have_waited_and_say_why(seed: int) -> None:
    with cluster(seed, 3, 3, recovery_wait_seconds=10.0) as world:
        world.start_all()
        streaming = world.ask(1, seed=1, max_new_tokens=100)
        world.run(0.5)
        world.crash(2)
        world.run(5.0)
        later = world.ask(1, seed=2)
        world.run(4.0)
        assert not streaming.num_ends
        world.run(2.5)
        assert "the model needs" in streaming.end
        assert "the model needs" in later.end, "the wait counts from the loss"
        since = world.now
        refused = world.ask(1, seed=4)
        world.run_while(lambda: not refused.num_ends, at_most=5.0)
        assert "without node n2, the model needs" in refused.end
        assert world.now - since < 1.0
        world.heal_all()
        world.run(2.0)  # until the node has joined
        last = world.ask(1, seed=3)
        world.end(within=10.0, may_fail=True)
        assert not world.history.violations
        assert last.is_complete


@SEEDS
def test_stages_that_cannot_reach_each_other_serve_soon_after_they_can(seed: int) -> None:
    with cluster(seed, 2, 2, 2) as world:
        world.start_all()
        world.cut_between([2], [3])
        answer = world.ask(1)
        world.run(40.0)
        world.heal_between([2], [3])
        assert_well(world, within=15.0)
        assert answer.is_complete


def test_drafts_save_time() -> None:
    """Answers are checked against undisturbed ones, whatever was drafted."""
    seconds: dict[bool, float] = {}
    for has_drafts in (False, True):
        with cluster(5, 2, 2, 2, has_drafts=has_drafts) as world:
            world.start_all()
            answers = []
            for number in range(12):
                answers.append(world.ask(1 + number % 3, seed=number, max_new_tokens=80))
                world.run(6.0)
            assert_well(world)
            seconds[has_drafts] = sum(map(seconds_of, answers))
    assert seconds[True] < seconds[False]


def test_stages_skip_what_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """More is computed ahead than pays: stages have it before them when it turns out wrong."""
    monkeypatch.setattr(DraftLengths, "length_ahead", lambda *_, **__: 2)
    with cluster(5, 2, 2, 2, has_drafts=True) as world:
        world.start_all()
        answers = []
        for number in range(12):
            answers.append(world.ask(1 + number % 3, seed=number, max_new_tokens=80))
            world.run(6.0)
        assert_well(world)
        assert all(answer.is_complete for answer in answers)
        assert world.history.num_skipped_steps > 0


@SEEDS
def test_a_model_is_deployed_without_a_node_that_can_load_nothing(seed: int) -> None:
    with cluster(seed, 3, 3, 6) as world:
        world.start(1, 2, 3)
        world.run(1.0)
        world.break_disk(3)
        world.deploy(1)
        assert {node for node, _, _ in world.stages} == {"n1", "n2"}
        assert_well(world)


@SEEDS
def test_a_node_that_can_load_nothing_any_more_is_planned_without(seed: int) -> None:
    with cluster(seed, 4, 4, 4) as world:
        world.start_all()
        assert "n2" in {node for node, _, _ in world.stages}
        answer = world.ask(1, max_new_tokens=60)
        world.break_disk(2)
        world.kill_worker(2)
        world.run(0.5)
        assert world.run_while(lambda: not world.is_serving, at_most=8.0)
        assert {node for node, _, _ in world.stages} == {"n1", "n3"}
        assert_well(world)
        assert answer.is_complete


@SEEDS
def test_a_node_without_which_nothing_fits_is_used_as_soon_as_it_can_load(seed: int) -> None:
    with cluster(seed, 3, 3) as world:
        world.start_all()
        world.break_disk(2)
        world.kill_worker(2)
        world.run(20.0)
        assert not world.is_serving
        world.repair_disk(2)
        assert_well(world, within=20.0)
