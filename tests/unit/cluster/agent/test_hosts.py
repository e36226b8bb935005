"""Descriptions of nodes: made once for all who ask, and gathered from all there are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest
from support.cluster.calls import PlayedMembership
from support.virtual_time.run import run_in_virtual_time

from potluck.cluster.agent import hosts
from potluck.cluster.agent.hosts import HostAnswer, OwnHost, ask_hosts
from potluck.errors import CallError, NodeLostError
from potluck.types.cluster import NodeId

OWN, ANSWERS, LEAVES = (NodeId(letter * 16) for letter in "abc")


class Played(PlayedMembership):
    """A membership whose nodes answer as ``descriptions`` say; counts calls at a time."""

    def __init__(self, descriptions: Mapping[NodeId, bytes | CallError]) -> None:
        super().__init__(OWN, {*descriptions} - {OWN}, answers={"node.host": self._describe})
        self._descriptions = descriptions
        self.num_running = self.most_running = 0

    async def _describe(self, node: NodeId, payload: bytes) -> bytes:
        assert payload == b""
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        await asyncio.sleep(0.001)
        self.num_running -= 1
        description = self._descriptions[node]
        if isinstance(description, CallError):
            raise description
        return description


async def gathered(membership: Played) -> list[HostAnswer]:
    return [each async for each in ask_hosts(cast(Any, membership))]


def test_every_node_answers_or_has_a_problem() -> None:
    lost = NodeLostError(LEAVES, "it left")
    membership = Played({OWN: b'{"own": 1}', ANSWERS: b"\xff", LEAVES: lost})
    answers = run_in_virtual_time(gathered(membership))
    assert sorted(answers, key=lambda each: each.node_id) == [
        HostAnswer(node_id=OWN, description='{"own": 1}'),
        HostAnswer(node_id=ANSWERS, description="\ufffd"),
        HostAnswer(node_id=LEAVES, problem="it left"),
    ]


def test_a_large_cluster_is_not_asked_all_at_once() -> None:
    membership = Played({NodeId(f"{number:016x}"): b"{}" for number in range(100)} | {OWN: b"{}"})
    assert len(run_in_virtual_time(gathered(membership))) == 101
    assert 1 < membership.most_running <= 16


def test_who_stops_listening_stops_the_asking() -> None:
    membership = Played({NodeId(f"{number:016x}"): b"{}" for number in range(40)} | {OWN: b"{}"})

    async def run() -> None:
        answers = ask_hosts(cast(Any, membership))
        await anext(answers)
        await answers.aclose()
        assert membership.most_running <= 16
        assert len(asyncio.all_tasks()) == 1

    run_in_virtual_time(run())


def test_a_description_is_made_once_for_all_who_ask_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []

    def describe(hardware: str) -> bytes:
        made.append(hardware)
        return hardware.encode()

    monkeypatch.setattr(hosts, "_description", describe)
    known = iter(["first", "second", "third"])
    own = OwnHost(lambda: cast(Any, next(known)))

    async def run() -> None:
        impatient = asyncio.create_task(own.description())
        others = [asyncio.create_task(own.description()) for _ in range(3)]
        await asyncio.sleep(0)
        impatient.cancel()
        assert await asyncio.gather(*others) == [b"first"] * 3
        assert await own.description() == b"second"

    run_in_virtual_time(run())
    assert made == ["first", "second"]


def test_a_description_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: Iterator[OSError | bytes] = iter([OSError("the disk"), b"sound"])

    def describe(_: object) -> bytes:
        outcome = next(outcomes)
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    monkeypatch.setattr(hosts, "_description", describe)
    own = OwnHost(lambda: cast(Any, None))

    async def run() -> None:
        with pytest.raises(OSError, match="the disk"):
            await own.description()
        assert await own.description() == b"sound"

    run_in_virtual_time(run())
