"""Units that hold layers together: the same bits as one unit, and what becomes of a lost member.

Agent 0 is a gateway without memory for stages, agents 1 to 3 are members of groups. Texts and
log-probabilities are compared with those of one unit.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
import pytest
from support.cluster.agents import AgentProcess, Document, Fleet, await_ready
from support.cluster.client_streams import begin, check_same
from support.processes.waiting import eventually
from token_stream import Ask, TokenStream, stream_whole

MODEL = "demo"
PROMPT = "Once upon a time, in a harbour at the end of the world, there was a small light."
GREEDY = Ask(prompt=PROMPT, max_tokens=30, seed=1, temperature=0.0, penalty=0.0)
SAMPLED = Ask(prompt=PROMPT, max_tokens=30, seed=2**40 + 7, temperature=1.0, penalty=0.3)
LONG = Ask(prompt=PROMPT, max_tokens=150, seed=3, temperature=1.0, penalty=0.3)
ASKS = (GREEDY, SAMPLED, LONG)
NUM_LAYERS = 12
UNIT = "cpu/native"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The fleet, and what one unit answers."""

    fleet: Fleet
    expected: dict[Ask, TokenStream]

    @property
    def gateway(self) -> AgentProcess:
        return self.fleet.agents[0]

    def deploy(self, *stages: tuple[dict[int, int], int]) -> Document:
        """Deploy stages of so many layers, on agents with these shares (of one: alone)."""
        layout = [
            {
                "node_id": self.fleet.agents[number].node_id,
                "unit_id": UNIT,
                "num_layers": num_layers,
                "part": {"member": member, "shares": list(shares.values())}
                if len(shares) > 1
                else None,
            }
            for shares, num_layers in stages
            for member, number in enumerate(shares)
        ]
        return self.deploy_with(layout=layout)

    def deploy_with(self, **wants: object) -> Document:
        """Deploy the model as it is wanted."""
        if self.gateway.deployment(MODEL) is not None:
            self.gateway.ask("undeploy", name=MODEL)
        self.fleet.agents[1].ask(
            "deploy", model=MODEL, context_tokens=512, cache_tokens=2048, **wants
        )
        for agent in self.fleet.live():
            await_ready(agent, MODEL)
        return self.deployment()

    def deployment(self) -> Document:
        return await_ready(self.gateway, MODEL, within=30)

    def answer(self, ask: Ask) -> TokenStream:
        return stream_whole(int(self.gateway.url.rpartition(":")[2]), MODEL, ask)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Fleet(tmp_path_factory.mktemp("groups")) as fleet:
        fleet.start(0, memory_limit="1M").await_up()
        first = fleet.agents[0]
        for number in (1, 2, 3):
            fleet.start(number, memory_limit="400M", join=first)
        for agent in fleet.live():
            agent.await_up()
        fleet.await_members()
        eventually(lambda: num_serving(first) == 4, within=60, what="all units serve")
        cluster = Cluster(fleet=fleet, expected={})
        cluster.deploy(({1: 1}, NUM_LAYERS))
        cluster.expected.update((ask, cluster.answer(ask)) for ask in ASKS)
        yield cluster
        for agent in fleet.live():
            assert "Traceback" not in agent.log


def num_serving(agent: AgentProcess) -> int:
    units = [unit for node in agent.cluster()["nodes"] for unit in node.get("units", ())]
    return sum(unit["role"] == "serves" for unit in units)


def parts(deployed: Document) -> list[tuple[str, int, int, list[int] | None]]:
    return [
        (
            stage["node_id"],
            stage["start_layer"],
            stage["end_layer"],
            None if stage["part"] is None else [stage["part"]["member"], *stage["part"]["shares"]],
        )
        for stage in deployed["stages"]
    ]


@pytest.mark.parametrize(
    "stages",
    [
        [({1: 1, 2: 1}, 12)],
        [({3: 1, 2: 3, 1: 2}, 12)],
        [({1: 1}, 4), ({2: 2, 3: 1}, 8)],
        [({1: 1, 3: 1}, 5), ({2: 1}, 7)],
    ],
    ids=["two", "three", "after another stage", "before another stage"],
)
def test_a_group_computes_the_bits_of_one_unit(
    cluster: Cluster, stages: list[tuple[dict[int, int], int]]
) -> None:
    deployed = cluster.deploy(*stages)
    wanted = []
    start = 0
    for shares, num_layers in stages:
        for member, number in enumerate(shares):
            node_id = cluster.fleet.agents[number].node_id
            part = [member, *shares.values()] if len(shares) > 1 else None
            wanted.append((node_id, start, start + num_layers, part))
        start += num_layers
    assert parts(deployed) == wanted
    for ask in (GREEDY, SAMPLED):
        check_same(cluster.answer(ask), cluster.expected[ask])


def test_a_group_of_so_many_units_is_planned_and_serves(cluster: Cluster) -> None:
    deployed = cluster.deploy_with(tensor_parallel=3)
    found = parts(deployed)
    assert sorted(node_id for node_id, *_ in found) == sorted(
        cluster.fleet.agents[number].node_id for number in (1, 2, 3)
    )
    assert {(start, end) for _, start, end, _ in found} == {(0, NUM_LAYERS)}
    assert [part and part[0] for *_, part in found] == [0, 1, 2]
    assert all(stage["predicted"]["exchange_seconds"] > 0 for stage in deployed["stages"])
    for ask in (GREEDY, SAMPLED):
        check_same(cluster.answer(ask), cluster.expected[ask])


def test_a_small_model_is_planned_without_groups(cluster: Cluster) -> None:
    """Exchanges would take longer than what they save."""
    deployed = cluster.deploy_with()
    assert [part for *_, part in parts(deployed)] == [None]


def test_exchanges_are_counted(cluster: Cluster) -> None:
    """At least two for each layer of each step."""
    cluster.deploy(({1: 1, 2: 1}, NUM_LAYERS))
    cluster.answer(GREEDY)
    coordinator, member = cluster.fleet.agents[1], cluster.fleet.agents[2]

    def metric(name: str) -> float:
        return coordinator.metric(
            f"potluck_stage_{name}", model=MODEL, stage="1", node=member.node_id
        )

    eventually(lambda: metric("steps_total") > 25, within=10, what="steps are counted")
    assert metric("exchanges_total") >= 2 * NUM_LAYERS * metric("steps_total")
    assert 0 < metric("exchange_seconds_total") < metric("compute_seconds_total")


def test_members_hold_their_part_alone(cluster: Cluster) -> None:
    whole = cluster.deploy(({1: 1}, NUM_LAYERS))["stages"][0]["memory"]["weights"]
    stages = cluster.deploy(({1: 3, 2: 1}, NUM_LAYERS))["stages"]
    own, other = (sum(stage["memory"]["weights"].values()) for stage in stages)
    assert sum(whole.values()) <= own + other < 1.3 * sum(whole.values())
    assert own > 1.5 * other


# Losses. Agent 0 is the gateway, agent 1 coordinates.


def worker_of(cluster: Cluster, number: int) -> int:
    (worker,) = cluster.fleet.agents[number].workers()
    return worker


@pytest.mark.parametrize("victim", [1, 2], ids=["leader", "member"])
def test_a_killed_worker_comes_back_as_the_same_member(cluster: Cluster, victim: int) -> None:
    """The other workers of the layout keep their processes, and with them their parts."""
    before = cluster.deploy(({1: 2, 2: 1}, 7), ({3: 1}, 5))
    others = [worker_of(cluster, number) for number in (1, 2, 3) if number != victim]
    live = begin(cluster.gateway, LONG, num_tokens=10)
    os.kill(worker_of(cluster, victim), signal.SIGKILL)
    check_same(live.end(), cluster.expected[LONG])
    after = cluster.deployment()
    assert after["epoch"]["number"] > before["epoch"]["number"]
    assert parts(after) == parts(before)
    assert [worker_of(cluster, number) for number in (1, 2, 3) if number != victim] == others


def test_a_frozen_member_is_found_and_ended(cluster: Cluster) -> None:
    """Not the leader, which waits for it and cannot go on either."""
    cluster.deploy(({1: 1, 2: 1}, NUM_LAYERS))
    frozen = worker_of(cluster, 2)
    live = begin(cluster.gateway, LONG, num_tokens=10)
    os.kill(frozen, signal.SIGSTOP)
    check_same(live.end(), cluster.expected[LONG])
    assert not psutil.pid_exists(frozen)
    log = cluster.fleet.agents[1].log
    assert "stage 1 on node 0000000000000002: its worker was stopped" in log
    assert "stage 0 on node 0000000000000001: its worker" not in log


def test_what_is_left_of_a_group_goes_on_without_a_lost_node(cluster: Cluster) -> None:
    cluster.deploy(({1: 1, 3: 1}, NUM_LAYERS))
    live = begin(cluster.gateway, LONG, num_tokens=10)
    lost = cluster.fleet.agents[3]
    lost.kill()
    check_same(live.end(), cluster.expected[LONG])
    nodes = {stage["node_id"] for stage in cluster.deployment()["stages"]}
    assert lost.node_id not in nodes
