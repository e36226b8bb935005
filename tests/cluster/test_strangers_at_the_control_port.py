"""Strangers can reach the control port, and cost the node next to nothing."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from support.cluster.agents import AgentProcess, Fleet, acceptor_of, stopped
from support.processes.waiting import eventually

from potluck.cluster.network.trust.handshakes import MOST_HANDSHAKES

NUM_HELD = 300
NUM_QUICK = 1100
"""More than the limit of descriptors; without the acceptor they kept members out for two minutes.
"""

MEMBER_SECONDS = 5.0
"""Measured: 1.6 s, which is the start of an agent, and 0.1 s to return."""

LOG_BYTES = 20_000


def _limited(soft: int, hard: int | None = None) -> list[str]:
    lowering = "" if hard is None else f"ulimit -Hn {hard}; "
    return ["bash", "-c", f'ulimit -Sn {soft}; {lowering}exec "$@"', "limited"]


@contextlib.contextmanager
def _strangers(where: str) -> Iterator[None]:
    """``NUM_HELD`` connections that say nothing or half a hello, and one after the other that
    end at once, all the time."""
    host, port = where.rsplit(":", 1)
    address = (host, int(port))
    over = threading.Event()
    num_quick = 0

    def come_and_go() -> None:
        nonlocal num_quick
        while not over.is_set():
            with contextlib.suppress(OSError):
                socket.create_connection(address, 2).close()
                num_quick += 1
            over.wait(0 if num_quick < NUM_QUICK else 0.005)

    with contextlib.ExitStack() as held:
        for number in range(NUM_HELD):
            connection = held.enter_context(socket.create_connection(address, 5))
            if number % 2:
                connection.sendall(b"\x16\x03\x01\x02\x00\x01")
        thread = threading.Thread(target=come_and_go)
        thread.start()
        try:
            eventually(lambda: num_quick >= NUM_QUICK, within=20, what="quick connections")
            yield
        finally:
            over.set()
            thread.join()


@pytest.fixture(scope="module", autouse=True)
def _room_for_strangers() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * NUM_HELD + 300
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_members_come_and_return_while_strangers_crowd_the_port(tmp_path: Path) -> None:
    with Fleet(tmp_path) as fleet:
        soft = fleet.start(0, prefix=_limited(1024)).await_up()
        hard = fleet.start(1, join=soft, prefix=_limited(1024, 1024)).await_up()
        other = fleet.start(2, join=soft, has_http=False).await_up()
        fleet.await_members()
        crowded = (soft, hard)
        limits = [resource.prlimit(agent.pid, resource.RLIMIT_NOFILE)[0] for agent in crowded]
        assert limits[0] > limits[1] == 1024
        acceptors = [acceptor_of(agent) for agent in crowded]
        before = [psutil.Process(agent.pid).num_fds() for agent in crowded]

        with _strangers(soft.address), _strangers(hard.address):
            new = fleet.start(3, join=soft, has_http=False)
            _await_member(new, crowded, "a new member joins")
            with stopped(other):
                eventually(
                    lambda: not any(other.node_id in agent.members() for agent in crowded),
                    within=5,
                    what="it is missed",
                )
            _await_member(other, crowded, "it returns")
            for agent, acceptor, num_before in zip(crowded, acceptors, before, strict=True):
                with urllib.request.urlopen(f"{agent.url}/health", timeout=20) as answer:
                    assert answer.status == 200
                assert psutil.Process(agent.pid).num_fds() < num_before + 20
                assert acceptor.num_fds() < MOST_HANDSHAKES + 40
        for agent, acceptor in zip(crowded, acceptors, strict=True):
            eventually(
                lambda acceptor=acceptor: acceptor.num_fds() < 30,  # type: ignore[misc]
                within=10,
                what="descriptors are given back",
            )
            assert "refused an unknown client at 127.0.0.1:" in agent.log
            assert len(agent.log.encode()) < LOG_BYTES
            assert acceptor_of(agent) == acceptor


def _await_member(member: AgentProcess, agents: Sequence[AgentProcess], what: str) -> None:
    eventually(
        lambda: all(member.node_id in agent.members() for agent in agents),
        within=MEMBER_SECONDS,
        what=what,
    )


def test_an_acceptor_that_dies_is_started_again_and_ends_with_its_agent(tmp_path: Path) -> None:
    with Fleet(tmp_path) as fleet:
        first, second = fleet.start_all(range(2), has_http=False)
        acceptor = acceptor_of(first)
        acceptor.kill()
        eventually(
            lambda: "the acceptor process exited" in first.log,
            within=5,
            what="its end is noticed",
        )
        eventually(lambda: _has_acceptor(first), within=5, what="it is started again")
        fleet.await_members()
        assert second.process.poll() is None

        acceptors = [acceptor_of(agent) for agent in (first, second)]
        first.kill()
        eventually(lambda: not acceptors[0].is_running(), within=2, what="it ends with its agent")
        eventually(
            lambda: second.members() == {second.node_id}, within=2, what="the node is missed"
        )
        os.kill(acceptors[1].pid, 0)
        second.end()
        assert not acceptors[1].is_running()


def _has_acceptor(agent: AgentProcess) -> bool:
    with contextlib.suppress(ValueError):
        return acceptor_of(agent).is_running()
    return False
