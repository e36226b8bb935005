from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.cluster.calls import MethodNetwork
from support.cluster.edges import credentials
from support.cluster.members import node_id
from support.process_facts import num_descriptors
from support.processes.waiting import done_within, until

from potluck.cluster.agent.links import Links
from potluck.cluster.background import Background
from potluck.cluster.network.edges.listener import EdgeEndpoint
from potluck.cluster.network.edges.path_figures import PathFigures
from potluck.cluster.network.links.schedule import CAPACITY_SECONDS, LEAST_SECONDS
from potluck.cluster.network.membership import MethodTable
from potluck.cluster.wire.calls import (
    CheckLinks,
    LinkAnswer,
    LinkBusy,
    LinkListening,
    ListenForLink,
    Unreachable,
    decode,
    encode,
)
from potluck.types.cluster import NodeId

Answer = Callable[[NodeId, bytes], bytes]


def listening(answer: Answer) -> MethodTable:
    """Return the methods of a node that answers in this way when it is asked to listen."""

    async def listen(caller: NodeId, payload: bytes) -> bytes:
        return answer(caller, payload)

    table = MethodTable()
    table.register_for_caller("link.listen", listen)
    return table


class Clock:
    """The real one, which a test may put forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@contextlib.asynccontextmanager
async def links_of(
    network: MethodNetwork,
    number: int,
    clock: Callable[[], float] = time.monotonic,
    connect_seconds: float = 5.0,
) -> AsyncIterator[Links]:
    """The links of a node, which runs until the block ends."""
    own = node_id(number)
    background = Background()
    links = Links(
        network.member(own),
        EdgeEndpoint(credentials=credentials(own), listen_host="127.0.0.1"),
        spawn=background.spawn,
        clock=clock,
        draws=random.Random(number),
        connect_seconds=connect_seconds,
    )
    table = MethodTable()
    links.register(table)
    network.tables[own] = table
    background.spawn(links.run())
    try:
        yield links
    finally:
        del network.tables[own]
        await links.close()
        await background.close()


def measuring_threads() -> int:
    return sum(each.name == "measure-link" for each in threading.enumerate())


@pytest.mark.slow
def test_both_nodes_have_figures_after_one_measurement() -> None:
    async def run() -> None:
        network = MethodNetwork()
        async with links_of(network, 1) as one, links_of(network, 2) as other:
            for links, peer in ((one, 2), (other, 1)):
                assert links.speeds() == ()
                links.joined(node_id(peer))
            with done_within(5):
                first, second = await asyncio.gather(one.settled(), other.settled())
            for speeds, peer in ((first, 2), (second, 1)):
                (speed,) = speeds
                assert speed.node_id == node_id(peer)
                assert 1e-6 < speed.latency_seconds < 0.2
                assert 5e6 < speed.bytes_per_second < 1e11
                assert speed.num_samples == 1
                assert 0 <= speed.age_seconds < 60
            await asyncio.sleep(0.3)
            assert len(network.calls) == 1
            assert measuring_threads() == 0

    asyncio.run(run())


@pytest.mark.slow
def test_a_node_that_is_busy_is_tried_until_it_is_known_whether_it_can_be_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Node 0 begins the measurement; node 1 then tries to connect to it."""
    monkeypatch.setattr("potluck.cluster.agent.links._CHECK_SECONDS", (0.001, 0.002))
    num_refused = 8

    async def run() -> None:
        network = MethodNetwork()
        async with links_of(network, 0) as first, links_of(network, 1) as second:
            is_occupied, checks = first._is_occupied, []

            def is_busy(request: ListenForLink) -> bool:
                if request.is_check:
                    checks.append(request)
                return is_occupied(request) or (request.is_check and len(checks) <= num_refused)

            monkeypatch.setattr(first, "_is_occupied", is_busy)
            first.joined(node_id(1))
            second.joined(node_id(0))
            await until(lambda: len(checks) > num_refused)
            await until(lambda: node_id(0) in second._reached)
            assert second.unreachable() == ()
            await asyncio.sleep(0.3)
            assert len(checks) == num_refused + 1, "it is not tried again"

    asyncio.run(run())


@pytest.mark.slow
def test_links_are_measured_again_when_they_are_old() -> None:
    async def run() -> None:
        network, clock = MethodNetwork(), Clock()
        async with links_of(network, 1, clock) as one, links_of(network, 2, clock) as other:
            one.joined(node_id(2))
            other.joined(node_id(1))
            await until(lambda: bool(one.speeds() and other.speeds()), within=5)
            clock.ahead += 500.0
            one.left(node_id(9))  # wakes it
            await asyncio.sleep(0.1)
            assert [each.num_samples for each in one.speeds()] == [1]
            assert one.speeds()[0].age_seconds >= 500
            clock.ahead += 200.0
            one.left(node_id(9))
            other.left(node_id(9))
            await until(lambda: one.speeds()[0].num_samples == 2, within=5)
            assert one.speeds()[0].age_seconds < 100

    asyncio.run(run())


@pytest.mark.slow
def test_an_edge_in_use_corrects_a_link_that_was_measured() -> None:
    async def run() -> None:
        network = MethodNetwork()
        path = PathFigures(
            round_trip_seconds=0.05,
            recent_round_trip_seconds=0.05,
            bytes_per_second=3e13,
            is_lower_bound=False,
            sent_bytes=1,
            received_bytes=1,
        )
        async with links_of(network, 1) as one, links_of(network, 2):
            one.used(node_id(2), path)
            assert one.speeds() == ()
            one.joined(node_id(2))
            await until(lambda: bool(one.speeds()), within=5)
            one.used(node_id(2), path)
            (speed,) = one.speeds()
            assert speed.latency_seconds == pytest.approx(0.025, rel=0.05)
            assert speed.bytes_per_second == 3e13

    asyncio.run(run())


@pytest.mark.slow
def test_figures_of_a_node_that_left_are_kept_and_not_shown() -> None:
    async def run() -> None:
        network = MethodNetwork()
        async with links_of(network, 1) as one:
            async with links_of(network, 2):
                one.joined(node_id(2))
                await until(lambda: bool(one.speeds()), within=5)
            one.left(node_id(2))
            assert one.speeds() == ()
            async with links_of(network, 2):
                one.joined(node_id(2))
                assert len(one.speeds()) == 1
                await asyncio.sleep(0.7)
                assert len(network.calls) == 1

    asyncio.run(run())


class Mute:
    """A listening socket that accepts, or not, and says nothing."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.num_calls = 0

    def answer(self, caller: NodeId, payload: bytes) -> bytes:
        self.num_calls += 1
        host, port = self.server.getsockname()
        return encode(LinkListening(host=host, port=port, budget_seconds=1.0))


def nobody_there(caller: NodeId, payload: bytes) -> bytes:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
    return encode(LinkListening(host=host, port=port, budget_seconds=1.0))


def no_answer(caller: NodeId, payload: bytes) -> bytes:
    return b"\xc1"


def no_address(caller: NodeId, payload: bytes) -> bytes:
    return encode(LinkListening(host="localhost", port=1, budget_seconds=1.0))


@pytest.mark.slow
def test_peers_that_cannot_be_measured_leave_nothing_behind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def lines() -> list[logging.LogRecord]:
        own = "potluck.cluster.agent.links"
        return [each for each in caplog.records if each.name == own]

    async def run() -> None:
        network, clock, mute = MethodNetwork(), Clock(), Mute()
        ways = [listening(each) for each in (mute.answer, nobody_there, no_answer, no_address)]
        ways.insert(2, MethodTable())
        for number, table in enumerate(ways, start=2):
            network.tables[node_id(number)] = table
        async with links_of(network, 1, clock, connect_seconds=0.4) as one:
            for number in range(len(ways)):
                one.joined(node_id(2 + number))
            for attempt in range(1, 5):
                due = attempt * len(ways)
                await until(lambda due=due: len(lines()) >= due, within=10)  # type: ignore[misc]
                if attempt == 1:
                    before = num_descriptors()
                clock.ahead += 20.0 * 2**attempt
                one.left(node_id(9))
            await until(lambda: measuring_threads() == 0, within=5)
            assert num_descriptors() <= before
            assert len(asyncio.all_tasks()) <= 3
            assert one.speeds() == ()
            assert mute.num_calls >= 4
        mute.server.close()

    with caplog.at_level(logging.DEBUG, logger="potluck"):
        asyncio.run(run())
    warnings = [each.getMessage() for each in lines() if each.levelno > logging.DEBUG]
    assert len(warnings) == len(set(warnings)) == 2  # of the two that cannot be connected to
    assert all("cannot connect to node" in each for each in warnings)
    assert 20 <= len(lines()) <= 32


@pytest.mark.slow
def test_a_peer_that_asks_and_never_connects_leaves_nothing_behind() -> None:
    async def run() -> None:
        network = MethodNetwork()
        network.tables[node_id(2)] = MethodTable()
        async with links_of(network, 1, connect_seconds=1.0):
            member = network.member(node_id(2))
            request = encode(ListenForLink(number=1, budget_seconds=0.3))
            before = num_descriptors()
            for _ in range(4):
                answer = await member.call(node_id(1), "link.listen", request, timeout_seconds=1)
                assert isinstance(decode(answer, LinkAnswer), LinkListening)
                answer = await member.call(node_id(1), "link.listen", request, timeout_seconds=1)
                assert decode(answer, LinkBusy) == LinkBusy(wait_seconds=0.0)
                await until(lambda: measuring_threads() == 0, within=5)
                await asyncio.sleep(0.01)
            assert num_descriptors() == before

    asyncio.run(run())


@pytest.mark.slow
def test_a_measurement_ends_with_the_node_and_with_the_agent() -> None:
    async def run(*, leaves: bool) -> None:
        network, mute = MethodNetwork(), Mute()
        network.tables[node_id(2)] = listening(mute.answer)
        async with links_of(network, 1, connect_seconds=1.0) as one:
            one.joined(node_id(2))
            await until(lambda: measuring_threads() == 1, within=5)
            if leaves:
                one.left(node_id(2))
        # It connects, which cannot be interrupted, but is over soon.
        await until(lambda: measuring_threads() == 0, within=2)
        mute.server.close()

    asyncio.run(run(leaves=True))
    asyncio.run(run(leaves=False))


@pytest.mark.slow
def test_a_node_that_could_be_connected_to_is_tried_again_on_request() -> None:
    async def run() -> None:
        network = MethodNetwork()
        async with links_of(network, 1, connect_seconds=1.0) as one:
            async with links_of(network, 2) as other:
                one.joined(node_id(2))
                other.joined(node_id(1))
                await until(lambda: bool(one.speeds()), within=5)
                request = encode(CheckLinks(nodes=(node_id(2), node_id(7))))
                member = network.member(node_id(3))

                async def check() -> tuple[NodeId, ...]:
                    answer = await member.call(node_id(1), "link.check", request, timeout_seconds=9)
                    return decode(answer, Unreachable).nodes

                assert await check() == ()
            network.tables[node_id(2)] = listening(nobody_there)
            assert await check() == one.unreachable() == (node_id(2),)
            network.tables[node_id(2)] = MethodTable()
            assert await check() == (node_id(2),)  # nothing new is known

    asyncio.run(run())


def test_checks_take_no_threads_from_the_rest_of_the_agent() -> None:
    class NoThreads(ThreadPoolExecutor):
        def submit(self, *given: Any) -> Any:  # type: ignore[override]
            raise AssertionError("waits for an address that may not answer")

    async def run() -> None:
        asyncio.get_running_loop().set_default_executor(NoThreads())
        network = MethodNetwork()
        async with links_of(network, 1), links_of(network, 2):
            request = CheckLinks(nodes=(node_id(2),))
            answer = await network.member(node_id(1)).call(
                node_id(1), "link.check", encode(request), timeout_seconds=9
            )
            assert decode(answer, Unreachable) == Unreachable(nodes=())

    asyncio.run(run())


def test_a_node_without_threads_stops_listening_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def run() -> None:
        network = MethodNetwork()
        async with links_of(network, 1) as links:
            before = num_descriptors()
            with monkeypatch.context() as limited:
                limited.setattr(threading.Thread, "start", refused)
                request = encode(ListenForLink(number=1, budget_seconds=1.0))
                member = network.member(node_id(2))
                for _ in range(3):
                    await member.call(node_id(1), "link.listen", request, timeout_seconds=9)
                    await until(lambda: not links._measurements)
            assert num_descriptors() == before

    asyncio.run(run())


@pytest.mark.slow
def test_a_node_without_a_budget_neither_begins_nor_listens() -> None:
    async def run() -> None:
        network, clock = MethodNetwork(), Clock()
        network.tables[node_id(3)] = MethodTable()
        async with links_of(network, 1, clock) as one:
            one._budget.spend(CAPACITY_SECONDS, clock())  # as many measurements do
            one.joined(node_id(3))
            await asyncio.sleep(0.7)
            assert network.calls == []
            request = encode(ListenForLink(number=1, budget_seconds=0.3))
            member = network.member(node_id(3))
            answer = decode(
                await member.call(node_id(1), "link.listen", request, timeout_seconds=1), LinkBusy
            )
            assert 0 < answer.wait_seconds <= LEAST_SECONDS / 0.005
            clock.ahead += answer.wait_seconds + 0.1
            one.left(node_id(9))
            network.calls.clear()
            await until(
                lambda: [each[:2] for each in network.calls] == [(node_id(1), node_id(3))], within=2
            )

    asyncio.run(run())


@pytest.mark.slow
def test_many_nodes_that_meet_are_measured_within_seconds_and_cost_little() -> None:
    num_peers = 8

    async def run() -> None:
        network = MethodNetwork()
        async with contextlib.AsyncExitStack() as stack:
            one = await stack.enter_async_context(links_of(network, 0))
            peers = [
                await stack.enter_async_context(links_of(network, number))
                for number in range(1, num_peers + 1)
            ]
            for number, peer in enumerate(peers, start=1):
                one.joined(node_id(number))
                peer.joined(node_id(0))
            began, used = time.monotonic(), time.process_time()
            most = 0

            def is_done() -> bool:
                nonlocal most
                most = max(most, measuring_threads())
                return len(one.speeds()) == num_peers

            await until(is_done, within=60)
            seconds = time.monotonic() - began
            print(
                f"{num_peers} peers in {seconds:.1f} s, {time.process_time() - used:.2f} s of CPU"
            )
            # The other end of the last measurement may end a moment later.
            await until(lambda: all(len(peer.speeds()) == 1 for peer in peers), within=10)
            assert most <= 4  # two at most, with both ends in this process

    asyncio.run(run())
