"""When a node takes another address, and whom it then connects to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
from support.virtual_time.run import run_in_virtual_time

from potluck.cluster.agent.own_address import OwnAddress, is_own_address
from potluck.cluster.network.membership import Address, Membership, parse_address
from potluck.errors import JoinError

HERE, THERE = parse_address("10.0.0.1:7333"), parse_address("10.0.0.9:7333")
JOINED = parse_address("10.0.0.2:7333")


class Members:
    """A membership at an address that can be moved, unless that ``fails``."""

    def __init__(self, address: Address = HERE) -> None:
        self.address = address
        self.moves: list[tuple[Address, ...]] = []
        self.failure = ""

    async def move(self, listen: Address, connect: tuple[Address, ...]) -> None:
        if self.failure:
            raise JoinError(self.failure)
        self.address = listen
        self.moves.append(connect)


class Machine:
    """The addresses that a machine has."""

    def __init__(self, *hosts: str) -> None:
        self.hosts = hosts
        self.num_moved = 0

    def find(self) -> str | None:
        return next(iter(self.hosts), None)

    async def moved(self, before: Address) -> None:
        assert before == HERE
        self.num_moved += 1


Run = Callable[[Members, Machine, Callable[[int], None]], None]


@pytest.fixture
def run() -> Run:
    """Let a node run on the machine; the function given is called with the second that is over."""

    def start(members: Members, machine: Machine, each_second: Callable[[int], None]) -> None:
        async def body() -> None:
            async with asyncio.TaskGroup() as tasks:
                node = OwnAddress(
                    cast(Membership, members),
                    lambda: (JOINED,),
                    machine.find,
                    machine.moved,
                    is_here=lambda host: host in machine.hosts,
                )
                running = tasks.create_task(node.run())
                for second in range(1, 20):
                    await asyncio.sleep(1)
                    each_second(second)
                running.cancel()

        run_in_virtual_time(body())

    return start


def test_another_address_is_taken_and_members_are_connected_to(run: Run) -> None:
    members, machine = Members(), Machine(HERE.host)

    def each_second(second: int) -> None:
        if second == 5:
            machine.hosts = (THERE.host,)
        assert members.address == (HERE if second <= 7 else THERE)

    run(members, machine, each_second)
    assert members.moves == [(JOINED,)]
    assert machine.num_moved == 1


def test_an_address_that_returns_soon_is_kept(run: Run) -> None:
    members, machine = Members(), Machine(HERE.host)

    def each_second(second: int) -> None:
        machine.hosts = (THERE.host,) if second % 3 else (HERE.host,)

    run(members, machine, each_second)
    assert not members.moves


def test_a_machine_without_an_address_is_waited_for_and_logged_once(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    members, machine = Members(), Machine()

    def each_second(second: int) -> None:
        if second == 15:
            machine.hosts = (THERE.host,)

    run(members, machine, each_second)
    assert members.address == THERE
    assert [record.getMessage() for record in caplog.records] == [
        "this machine no longer has the address 10.0.0.1, nor another on the network; this node "
        "waits for one",
        "this machine no longer has the address 10.0.0.1: other nodes reach this one at "
        "10.0.0.9:7333 now",
    ]


def test_an_address_that_cannot_be_listened_on_is_tried_again(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    members, machine = Members(), Machine(THERE.host)
    members.failure = "cannot listen on 10.0.0.9:7333: address already in use"

    def each_second(second: int) -> None:
        if second == 10:
            members.failure = ""

    run(members, machine, each_second)
    assert members.address == THERE
    assert len(caplog.records) == 2
    assert "already in use" in caplog.text


def test_loopback_does_not_change(run: Run) -> None:
    members = Members(parse_address("127.0.0.1:7333"))
    run(members, Machine(THERE.host), lambda _: None)
    assert not members.moves


def test_addresses_of_this_machine() -> None:
    assert is_own_address("127.0.0.1")
    assert is_own_address("127.9.9.9")
    assert not is_own_address("192.0.2.1")
