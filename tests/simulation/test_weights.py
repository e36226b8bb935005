"""Weights that no node has at first, while nodes come and go, on a virtual clock."""

from __future__ import annotations

import pytest
from simulation.stages import NUM_LAYERS
from simulation.weights import HUB_SECONDS, Hub
from simulation.world import World, room_for

SEEDS = pytest.mark.parametrize("seed", range(3))


def cluster(seed: int, hub: Hub, *layers: int) -> World:
    return World(
        seed,
        [room_for(each) for each in layers],
        recovery_wait_seconds=60.0,
        duplicates=0.05,
        hub=hub,
    )


def assert_well(world: World) -> None:
    world.end(within=15.0)
    assert not world.history.violations, "\n".join(
        [*world.history.violations, *world.history.notes]
    )


@SEEDS
def test_every_chunk_is_fetched_once(seed: int) -> None:
    hub = Hub()
    with cluster(seed, hub, 3, 3, 3) as world:
        world.start_all()
        assert set(hub.fetches) == set(range(NUM_LAYERS))
        answer = world.ask(2, max_new_tokens=20)
        world.run(10.0)
        assert answer.is_complete
        # What another node held in the plan before is passed on: the hub is asked for nothing.
        world.kill_worker(1)
        world.run(10.0)
        assert_well(world)
        assert set(hub.fetches.values()) == {1}


@SEEDS
def test_a_seed_that_dies_while_it_fetches_is_replaced(seed: int) -> None:
    hub = Hub()
    with cluster(seed, hub, 3, 3, 3) as world:
        world.start(1, 2, 3)
        world.run(1.0)
        world.at(1.5 * HUB_SECONDS, world.crash, 2)
        world.deploy(1)
        answer = world.ask(1, max_new_tokens=20)
        world.run(10.0)
        assert answer.is_complete
        world.start(2)
        assert_well(world)
        # Only what the one that died had, or was at, came twice.
        assert max(hub.fetches.values()) <= 2
        assert sum(hub.fetches.values()) <= NUM_LAYERS + 3


@SEEDS
def test_without_the_hub_what_died_with_a_node_comes_back_with_it(seed: int) -> None:
    hub = Hub()
    with cluster(seed, hub, 3, 3, 3) as world:
        world.start_all()
        hub.is_there = False
        holder = next(
            number for number, agent in world.agents.items() if number != 1 and agent.stages.held()
        )
        world.crash(holder)
        answer = world.ask(1, max_new_tokens=20)
        world.run(10.0)
        assert not answer.is_complete, "its layers are nowhere"
        assert any("are on no reachable node" in note for note in world.history.notes)
        world.start(holder)
        world.run(30.0)
        assert answer.is_complete
        assert set(hub.fetches.values()) == {1}
        assert_well(world)
