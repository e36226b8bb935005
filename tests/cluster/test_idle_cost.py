"""What a cluster costs that nobody asks anything."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psutil
import pytest
from support.cluster.agents import POTLUCK, AgentProcess, Fleet, acceptor_of

from potluck.engines.loading.plan import PROCESS_BYTES

IDLE_SECONDS = 5.0

AGENT_CPU_SECONDS = 0.08
"""In ``IDLE_SECONDS``; measured: 0.03. Keep-alives of two Zenoh links, each four times a second
because the lease is a second, and a look at the stages' totals every two seconds. A wait that
spins would take 5 s."""

WORKER_CPU_SECONDS = 0.02
"""It wakes once a second to see whether there are totals to report; two ticks of the clock."""

ACCEPTOR_CPU_SECONDS = 0.08
"""Keep-alives pass through it, both ways, of each link that others have opened: at most two links
here. Measured: 0.02."""

AGENT_BYTES = 92 * 2**20
"""Without HTTP. Measured: 82 MB; NumPy, which it does without, would be 14 MB more."""

WORKER_BYTES = 60 * 2**20
ACCEPTOR_BYTES = 26 * 2**20
"""Measured: 21 MB, half of it shared with Python's other processes."""


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[AgentProcess]]:
    with Fleet(tmp_path_factory.mktemp("idle")) as fleet:
        agents = fleet.start_all(range(2), command=POTLUCK)
        agents += fleet.start_all([2], has_http=False, command=POTLUCK)
        yield agents


@pytest.mark.timing
def test_an_idle_cluster_costs_next_to_no_time_and_little_memory(
    agents: list[AgentProcess],
) -> None:
    deployed = agents[0].deploy(context=256, cache=256)
    assert len(deployed["stages"]) == 3
    with agents[1].client() as client:
        client.completions.create(model="demo", prompt="The old boat", max_tokens=50)
    limits = {psutil.Process(agent.pid): AGENT_CPU_SECONDS for agent in agents}
    limits |= {psutil.Process(pid): WORKER_CPU_SECONDS for a in agents for pid in a.workers()}
    acceptors = [acceptor_of(agent) for agent in agents]
    limits |= dict.fromkeys(acceptors, ACCEPTOR_CPU_SECONDS)
    assert len(limits) == 9

    used = dict.fromkeys(limits, 0.0)
    for sign in (-1, 1):
        for process in used:
            times = process.cpu_times()
            used[process] += sign * (times.user + times.system)
        if sign < 0:
            time.sleep(IDLE_SECONDS)  # the length of the measurement, not a synchronisation
    for process, seconds in used.items():
        assert seconds <= limits[process] + 0.001, process.cmdline()

    host_only = psutil.Process(agents[2].pid)
    assert host_only.memory_info().rss < AGENT_BYTES
    for acceptor in acceptors:
        assert acceptor.memory_info().rss < ACCEPTOR_BYTES
    by_node = {stage["node_id"]: stage["num_bytes"] for stage in deployed["stages"]}
    for agent in agents:
        (worker,) = agent.workers()
        counted = by_node[agent.node_id] - PROCESS_BYTES
        assert psutil.Process(worker).memory_info().rss - counted < WORKER_BYTES
