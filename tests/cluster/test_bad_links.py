"""Real agents on hosts whose links are slow, lossy or dead while they serve."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from support.cluster.agents import AgentProcess, Document, Fleet, await_ready
from support.cluster.client_streams import Stream
from support.network.netns import require_namespaces
from support.network.relay import PERFECT, Link, Relay, relayed_lan
from support.processes.waiting import eventually

NOTICE_SECONDS = 4.5
"""While others compute; ``membership.test_lost_links`` shows 2.5 s where nothing else runs."""
VIEW_SECONDS = 3.0
"""For a view while a node does not answer; tens of milliseconds where nothing else runs."""


class Cluster:
    """Agents on the hosts of a relay; the last two hold no layers, and are gateways only."""

    def __init__(self, relay: Relay, fleet: Fleet) -> None:
        self.relay = relay
        self.hosts = relay.hosts
        self.agents: list[AgentProcess] = []
        self.streams: list[Stream] = []
        last = len(self.hosts) - 1
        for number, host in enumerate(self.hosts):
            join = None if number == 0 else fleet.agents[0]
            limit = "1MiB" if number >= last - 1 else None
            options = ("--lan",) if number == 0 else ()
            agent = fleet.start(number, *options, join=join, memory_limit=limit, host=host)
            self.agents.append(agent.await_up())
        fleet.await_members()
        self.deployed: Document = self.agents[0].deploy(context=1024, cache=8192)
        for agent in self.agents:
            await_ready(agent, "demo")

    def stream(self, number: int, max_tokens: int) -> Stream:
        """A client of agent ``number``, on its host."""
        stream = Stream(self.hosts[number], self.agents[number], max_tokens)
        self.streams.append(stream)
        return stream

    def reset(self) -> None:
        """Leave it as it was found: no streams, and links that lose and delay nothing."""
        while self.streams:
            self.streams.pop().close()
        self.relay.set_all(PERFECT)

    def holders(self) -> set[str]:
        """Nodes with a stage."""
        return {stage["node_id"] for stage in self.deployed["stages"]}


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    require_namespaces()
    with relayed_lan(4) as relay, Fleet(tmp_path_factory.mktemp("bad-links")) as fleet:
        yield Cluster(relay, fleet)


@pytest.fixture
def cluster(started: Cluster) -> Iterator[Cluster]:
    yield started
    started.reset()


class Watch:
    """Looks at the cluster from some agents again and again: how long that takes, who is there."""

    def __init__(self, agents: list[AgentProcess]) -> None:
        self.slowest = 0.0
        self.seen: dict[int, list[tuple[float, frozenset[str]]]] = {}
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._look, args=(each,)) for each in agents]
        for agent in agents:
            self.seen[agent.number] = []
        for thread in self._threads:
            thread.start()

    def _look(self, agent: AgentProcess) -> None:
        while not self._stopped.is_set():
            start = time.monotonic()
            members = frozenset(agent.members())
            end = time.monotonic()
            self.slowest = max(self.slowest, end - start)
            self.seen[agent.number].append((end, members))
            self._stopped.wait(0.05)

    def missed(self, node_id: str) -> bool:
        """Whether any of the agents ever did not see the node."""
        return any(node_id not in nodes for views in self.seen.values() for _, nodes in views)

    def noticed(self, node_id: str, since: float) -> float:
        """Seconds after ``since`` until all of the agents no longer saw the node."""
        last = [
            min((when for when, nodes in views if when > since and node_id not in nodes), default=0)
            for views in self.seen.values()
        ]
        assert all(last), f"node {node_id} was not missed by all"
        return max(last) - since

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()


def test_slow_and_lossy_links_lose_no_node_and_no_token(cluster: Cluster) -> None:
    alone = cluster.stream(2, 24).complete(within=30)
    watched = cluster.agents
    for link in (
        Link(delay_seconds=0.2),
        Link(
            delay_seconds=0.02,
            loss=0.02,
            duplication=0.02,
            reordering=0.1,
            reordering_seconds=0.02,
        ),
    ):
        cluster.relay.set_all(link)
        with Watch(watched) as watch:
            streams = [cluster.stream(2, 24), cluster.stream(3, 24)]
            texts = {stream.complete(within=60) for stream in streams}
        assert texts == {alone}, f"other text over {link}"
        for agent in watched:
            assert not watch.missed(agent.node_id), f"a node was lost over {link}"
        print(link, watch.slowest)
        assert watch.slowest < VIEW_SECONDS, f"the view took long over {link}"


def test_a_gateway_that_vanishes_while_it_streams_disturbs_nobody_else(cluster: Cluster) -> None:
    """Its packets still arrive, so only what it does not answer shows that it is gone."""
    vanishing, others = cluster.agents[3], cluster.agents[:3]
    assert vanishing.node_id not in cluster.holders()
    lost = [cluster.stream(3, 800) for _ in range(6)]
    kept = [cluster.stream(2, 900), cluster.stream(0, 900)]
    for stream in (*lost, *kept):
        eventually(lambda s=stream: len(s.arrivals) > 5, within=20, what="streams flow")  # type: ignore[misc]
    with Watch(others) as watch:
        since = time.monotonic()
        cluster.relay.isolate(cluster.hosts[3], sends=True)
        time.sleep(5)
        until = time.monotonic()
    assert watch.noticed(vanishing.node_id, since) < NOTICE_SECONDS
    assert watch.slowest < VIEW_SECONDS
    for other in others:
        assert not watch.missed(other.node_id), "the link to a healthy node was lost"
    for stream in kept:
        assert stream.slowest(since, until) < NOTICE_SECONDS
    cluster.relay.set_all(PERFECT)
    texts = {stream.complete(within=60) for stream in kept}
    assert len(texts) == 1
    eventually(
        lambda: all(vanishing.node_id in agent.members() for agent in others),
        within=10,
        what="the gateway is back",
    )
