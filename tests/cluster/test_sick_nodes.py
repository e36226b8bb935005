"""Nodes that report to be ready, and on which no stage can start or connect: the others serve."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from support.cluster.agents import AgentProcess, Fleet, await_ready, no_end, nodes_of
from support.network.netns import require_namespaces
from support.network.relay import Link, relayed_lan
from support.processes.waiting import eventually

PORT = 7333
CONNECT_SECONDS = 60
"""For a stage to give up waiting for its neighbour (30 s), for both to try whether they can
connect, and for another plan."""


@contextmanager
def unable_to_start_stages(agent: AgentProcess) -> Iterator[None]:
    """Let an agent start no worker, as on a full disk: it cannot record it."""
    folder = agent.state / "workers"
    away = folder.rename(folder.with_name("away"))
    try:
        yield
    finally:
        away.rename(folder)


def test_a_node_that_cannot_start_a_stage_takes_no_model_away(tmp_path: Path) -> None:
    with Fleet(tmp_path) as fleet:
        agents = fleet.start_all([0, 1, 2], memory_limit="400M")
        others = {agent.node_id for agent in agents[:2]}
        with unable_to_start_stages(agents[2]):
            deployed = agents[0].deploy(context=256)
            assert nodes_of(deployed) == others
            (rejection,) = deployed["rejections"]
            assert rejection["node_id"] == agents[2].node_id
            assert "cannot record a worker" in rejection["reason"]
        agents[0].ask("undeploy", name="demo")
        assert len(nodes_of(agents[0].deploy(context=256))) == 3
        (worker,) = agents[2].workers()
        text: list[str] = []

        def read() -> None:
            answer = (
                agents[1]
                .client()
                .completions.create(
                    model="demo",
                    prompt="Once upon a time",
                    max_tokens=200,
                    temperature=0,
                    stream=True,
                    logit_bias=no_end(),
                )
            )
            text.extend(chunk.choices[0].text for chunk in answer)

        with unable_to_start_stages(agents[2]):
            reading = threading.Thread(target=read)
            reading.start()
            eventually(lambda: len(text) > 10, within=20, what="it answers")
            os.kill(worker, signal.SIGKILL)
            reading.join(60)
            assert len(text) > 180  # a few tokens are parts of characters
            assert nodes_of(await_ready(agents[0], "demo")) == others


def test_neighbours_that_can_no_longer_connect_are_parted(tmp_path: Path) -> None:
    """A firewall closes while they serve: what is connected stays so, and nothing new connects."""
    require_namespaces()
    with relayed_lan(3) as relay, Fleet(tmp_path) as fleet:
        relay.set_all(Link(open_port=PORT))
        first = fleet.start(0, "--lan", host=relay.hosts[0]).await_up()
        agents = [
            first,
            *(
                fleet.start(number, join=first, host=relay.hosts[number]).await_up()
                for number in (1, 2)
            ),
        ]
        fleet.await_members()
        deployed = first.deploy(context=256)
        numbers = {agent.node_id: agent.number for agent in agents}
        row = [numbers[stage["node_id"]] for stage in deployed["stages"]]
        assert sorted(row) == [0, 1, 2]
        one, other = next(pair for pair in pairwise(row) if first.number not in pair)
        relay.set_between(relay.hosts[one], relay.hosts[other], Link(open_port=0))
        (worker,) = agents[other].workers()
        os.kill(worker, signal.SIGKILL)
        eventually(
            lambda: len(nodes_of(first.deployment("demo") or {"stages": []})) == 2,
            within=CONNECT_SECONDS,
            what="another plan",
        )
        document = await_ready(first, "demo")
        assert any("can connect to the other" in each["reason"] for each in document["rejections"])
