"""Random schedules: what goes wrong in a run, and when. The same seed gives the same run."""

from __future__ import annotations

import random

from simulation.history import History
from simulation.stages import Switches
from simulation.world import World, room_for

from potluck.types.choices import Rebalance

_SHORT_SECONDS, _LONG_SECONDS = 7.0, 28.0
"""Far less than requests wait for stages, so none may fail; in the longer time a side of a cluster
that is cut in two goes on alone.
"""

_WITH_GROUPS = 0.3
"""Of all schedules."""

_SLOWNESS = (1.0, 1.0, 1.5, 2.0, 4.0)
"""How many times as long as on the fastest nodes a layer takes."""


def run_random(seed: int, switches: Switches | None = None) -> History:
    """Run a schedule, check what came of it and return the history.

    Half of them are of models with state, in more than half drafts are verified, and some have
    groups. Every other one has nodes that are unequally fast, and become slow and fast again; its
    deployment moves to better plans.
    """
    if switches is None:
        switches = Switches(has_groups=random.Random(f"{seed} groups").random() < _WITH_GROUPS)
    draws = random.Random(seed)
    rebalances = seed % 2 == 1
    num_nodes = draws.choice((2, 3, 3, 4, 5))
    world = World(
        seed,
        _capacities(draws, num_nodes),
        switches=switches,
        duplicates=draws.choice((0.0, 0.05, 0.3)),
        rebalance=Rebalance.AUTO if rebalances else Rebalance.NEVER,
        num_states=random.Random(f"{seed} states").choice((0, 0, 2, 6)),
        has_drafts=random.Random(f"{seed} drafts").random() < 0.6,
    )
    with world:
        if rebalances:
            _vary_speeds(world, random.Random(f"{seed} speeds"), num_nodes)
        world.start_all()
        if not world.history.violations:
            seconds = _LONG_SECONDS if draws.random() < 0.1 else _SHORT_SECONDS
            _disturb(world, draws, num_nodes, seconds)
            world.run(seconds)
            world.heal_all()
            world.end(within=45.0 if world.has_drained else 12.0)
    return world.history


def _vary_speeds(world: World, draws: random.Random, num_nodes: int) -> None:
    nodes = range(1, num_nodes + 1)
    for node in nodes:
        world.set_slowness(node, draws.choice(_SLOWNESS))
    for _ in range(draws.randint(0, 5)):
        when, node = draws.uniform(1.0, 1.0 + _SHORT_SECONDS), draws.choice(nodes)
        world.at(when, world.set_slowness, node, draws.choice(_SLOWNESS))
    if draws.random() < 0.2:
        node = draws.choice(nodes)
        for turn in range(10):
            world.at(2.0 + turn * 0.6, world.set_slowness, node, (4.0, 1.0)[turn % 2])
    if draws.random() < 0.2:
        node = draws.choice(nodes)
        world.at(draws.uniform(4.0, 5.0), world.break_disk, node)
        world.at(draws.uniform(5.0, 8.0), world.repair_disk, node)


def _capacities(draws: random.Random, num_nodes: int) -> list[int]:
    """Enough for the model on all nodes, and mostly when one is lost, too."""
    needed = draws.randint(1, num_nodes)
    layers = [-(-6 // needed)] * num_nodes
    if draws.random() < 0.3:
        layers[draws.randrange(num_nodes)] = 6
    if needed < num_nodes and draws.random() < 0.3:
        layers[draws.randrange(num_nodes)] = 0
    if sum(layers) < 6:
        layers[0] = 6
    return [room_for(each) for each in layers]


def _disturb(world: World, draws: random.Random, num_nodes: int, span: float) -> None:
    nodes = list(range(1, num_nodes + 1))
    for number in range(draws.randint(2, 6)):
        when = draws.uniform(0.0, span)
        world.at(when, _ask, world, draws.choice(nodes), draws.randrange(2**30), number)
    kinds = (
        "crash",
        "crash",
        "silent crash",
        "cut off",
        "one way",
        "one link",
        "kill",
        "freeze",
        "slow",
        "drain",
        "flap",
    )
    num_faults = draws.randint(6, 14) if draws.random() < 0.2 else draws.randint(1, 5)
    for _ in range(num_faults):
        when = draws.uniform(0.0, 6.0)
        seconds = draws.choice((0.05, 0.5, 1.2, 3.0)) * draws.uniform(0.5, 2.0)
        if span > _SHORT_SECONDS:
            seconds = draws.choice((seconds, draws.uniform(10.0, 22.0)))
        node, other = draws.sample(nodes, 2)
        side = draws.sample(nodes, draws.randint(1, num_nodes - 1))
        index = draws.randrange(3)
        rest = [each for each in nodes if each not in side]
        match draws.choice(kinds):
            case "crash" | "silent crash" as kind:
                world.at(when, _crash, world, node, seconds, kind == "silent crash")
            case "flap":
                for turn in range(4):
                    world.at(when + turn * 0.7, _crash, world, node, 0.3, False)
            case "cut off":
                world.at(when, world.cut_between, side, rest)
                world.at(when + seconds, world.heal_between, side, rest)
            case "one way":
                world.at(when, world.cut, node, other)
                world.at(when + seconds, world.heal, node, other)
            case "one link":
                world.at(when, world.cut_between, [node], [other])
                world.at(when + seconds, world.heal_between, [node], [other])
            case "kill":
                world.at(when, world.kill_worker, node, index)
            case "freeze":
                world.at(when, world.freeze_worker, node, index)
                world.at(when + seconds, world.thaw_workers, node)
            case "slow":
                world.at(when, world.slow, node, other, draws.choice((0.05, 0.2)))
            case "drain":
                world.at(when, _drain, world, node)


def _ask(world: World, node: int, seed: int, number: int) -> None:
    draws = random.Random(seed)
    alive = sorted(world.agents)
    if alive and node not in alive:
        node = draws.choice(alive)
    world.ask(
        node,
        num_prompt_tokens=draws.choice((1, 2, 15, 16, 17, 40)),
        max_new_tokens=draws.choice((1, 4, 12, 25)),
        seed=seed % 1000 * 10 + number,
        score_prompt=draws.random() < 0.2,
    )


def _crash(world: World, node: int, seconds: float, is_silent: bool) -> None:
    if not _is_spare(world, node):
        return
    world.crash(node, is_silent=is_silent)
    world.at(seconds, world.start, node)


def _drain(world: World, node: int) -> None:
    if _is_spare(world, node):
        world.drain(node, returns_after=1.0)


def _is_spare(world: World, node: int) -> bool:
    """Whether another node knows of the deployment: if all forget it, nobody can go on."""
    return world.is_known_beside(node)
