from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from potluck.cluster.agent.isolation import WAIT_SECONDS, Isolation
from potluck.types.cluster import NodeId

A, B, C = (NodeId(f"{number:016x}") for number in (1, 2, 3))


@dataclass(slots=True)
class Others:
    """The other members, as a node sees them, and its clock."""

    alive: set[NodeId]
    now: float = 100.0
    isolation: Isolation = field(init=False)

    def __post_init__(self) -> None:
        self.isolation = Isolation(lambda: frozenset(self.alive), clock=lambda: self.now)

    def leave(self, *nodes: NodeId) -> None:
        for node in nodes:
            self.alive.discard(node)
            self.isolation.left(node)


def test_one_of_many_that_leaves_is_the_lost_one() -> None:
    others = Others({A, B, C})
    others.leave(A)
    assert not others.isolation.is_likely
    asyncio.run(asyncio.wait_for(others.isolation.over(), 1))


def test_departures_that_follow_at_once_belong_together() -> None:
    """The first of them alone says nothing."""
    others = Others({A, B, C})

    async def leave_one_by_one() -> None:
        others.leave(A)
        waiting = asyncio.ensure_future(others.isolation.over())
        await asyncio.sleep(0)
        others.leave(B, C)
        done, _ = await asyncio.wait({waiting}, timeout=1)
        assert not done
        waiting.cancel()

    asyncio.run(leave_one_by_one())


def test_a_node_that_all_others_leave_is_likely_cut_off() -> None:
    others = Others({A, B, C})
    others.leave(A, B)
    assert not others.isolation.is_likely, "half is left"
    others.leave(C)
    assert others.isolation.is_likely


def test_of_two_nodes_neither_waits() -> None:
    others = Others({A})
    others.leave(A)
    assert not others.isolation.is_likely


def test_it_is_over_when_others_are_back_or_are_given_up() -> None:
    back = Others({A, B, C})
    back.leave(A, B, C)
    back.alive |= {A, B}
    assert not back.isolation.is_likely

    given_up = Others({A, B, C})
    given_up.leave(A, B, C)
    given_up.now += WAIT_SECONDS - 0.1
    assert given_up.isolation.is_likely
    given_up.now += 0.2
    assert not given_up.isolation.is_likely


def test_nodes_that_left_long_ago_do_not_count() -> None:
    others = Others({A, B, C})
    others.leave(A, B)
    others.now += WAIT_SECONDS + 1
    others.leave(C)
    assert not others.isolation.is_likely
