"""Which stages of a record hold layers together, and what their nodes are asked then."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest
from support.cluster.calls import A, B, C, PlayedMembership, a_record, stage_on
from support.models.configs import make_config

from potluck.cluster.coordinator import starting
from potluck.cluster.coordinator.starting import connect_stages, stage_spec
from potluck.cluster.network.edges.address import EdgeAddress
from potluck.cluster.wire.calls import ConnectStage, decode
from potluck.cluster.wire.worker_messages import Connect, Peer
from potluck.placement.planned import limits_of, size_of
from potluck.types.deployment import DeploymentRecord, StageRecord
from potluck.types.groups import GroupPart
from potluck.types.program import Shard

CONFIG = make_config(num_layers=4)
SIZE = size_of(CONFIG, a_record())
LIMITS = limits_of(CONFIG, SIZE)


def member(node: Any, start: int, end: int, number: int, *shares: int) -> StageRecord:
    part = GroupPart(member=number, shares=shares) if shares else None
    return msgspec.structs.replace(stage_on(node), start_layer=start, end_layer=end, part=part)


def record(*stages: StageRecord) -> DeploymentRecord:
    return a_record(3, A, stages=stages)


ALONE = record(member(A, 0, 2, 0), member(B, 2, 4, 0))
FIRST = record(member(A, 0, 2, 0, 2, 1), member(B, 0, 2, 1, 2, 1), member(C, 2, 4, 0))
LAST = record(member(C, 0, 1, 0), member(A, 1, 4, 0, 1, 1), member(B, 1, 4, 1, 1, 1))
ALL = record(*(member(node, 0, 4, number, 3, 2, 1) for number, node in enumerate((A, B, C))))


@pytest.mark.parametrize(
    ("given", "groups", "with_embedding", "with_head"),
    [
        (ALONE, [[0], [1]], {0}, {1}),
        (FIRST, [[0, 1], [2]], {0, 1}, {2}),
        (LAST, [[0], [1, 2]], {0}, {1, 2}),
        (ALL, [[0, 1, 2]], {0, 1, 2}, {0, 1, 2}),
    ],
)
def test_all_members_of_a_group_have_its_ends(
    given: DeploymentRecord, groups: list[list[int]], with_embedding: set[int], with_head: set[int]
) -> None:
    assert [list(each) for each in given.groups] == groups
    for index, stage in enumerate(given.stages):
        spec = stage_spec(given, SIZE, index)
        shard = Shard(
            start_layer=stage.start_layer,
            end_layer=stage.end_layer,
            num_layers=4,
            has_embedding=index in with_embedding,
            has_head=index in with_head,
            part=stage.part,
        )
        assert given.shard(index) == shard
        assert spec.shard == spec.held.shard == shard
        again = msgspec.msgpack.decode(msgspec.msgpack.encode(given), type=DeploymentRecord)
        assert again == given


def test_another_part_is_another_holding() -> None:
    leader, other = (stage_spec(FIRST, SIZE, index) for index in (0, 1))
    alone = msgspec.structs.replace(leader, shard=replace(leader.shard, part=None))
    assert leader.is_same_holding(msgspec.structs.replace(leader, num_bytes=7))
    assert not leader.is_same_holding(other)
    assert not leader.is_same_holding(alone)
    assert not leader.held.is_same_holding(other.held)


def connects(given: DeploymentRecord, monkeypatch: pytest.MonkeyPatch) -> list[Connect]:
    """What the stages of a record are told when they are connected."""
    membership = PlayedMembership(others={B, C})
    opened: dict[str, Any] = {}

    async def open_edges(*_: object, tell_stages: Any, **named: Any) -> tuple[None, None]:
        opened.update(named)
        await asyncio.gather(*tell_stages(EdgeAddress(host="10.0.0.9", port=9)))
        return None, None

    monkeypatch.setattr(starting, "open_edges", open_edges)
    addresses = [
        Peer.at(stage.node_id, EdgeAddress(host="10.0.0.1", port=index))
        for index, stage in enumerate(given.stages)
    ]
    asyncio.run(connect_stages(cast(Any, membership), cast(Any, None), given, LIMITS, addresses))
    leaders = [group[0] for group in given.groups]
    assert opened["first"] == addresses[leaders[0]]
    assert opened["last"] == addresses[leaders[-1]]
    assert opened["num_stages"] == len(given.stages)
    messages = [decode(payload, ConnectStage).connect for _, _, payload in membership.calls]
    assert [node for node, _, _ in membership.calls] == [each.node_id for each in given.stages]
    return sorted(messages, key=lambda each: each.index)


def test_a_group_has_its_neighbours_and_its_members(monkeypatch: pytest.MonkeyPatch) -> None:
    def at(node: Any, port: int) -> Peer:
        return Peer(node_id=node, host="10.0.0.1", port=port)

    own_before, own_after = Peer(node_id=A), Peer(node_id=A, host="10.0.0.9", port=9)
    leader, other, last = connects(FIRST, monkeypatch)
    assert (leader.preceding, leader.following) == (own_before, at(C, 2))
    assert (last.preceding, last.following, last.members) == (at(A, 0), own_after, ())
    assert leader.members == other.members == (at(A, 0), at(B, 1))
    assert (leader.member, other.member, last.member) == (0, 1, 0)
    first, leader, other = connects(LAST, monkeypatch)
    assert (first.preceding, first.following) == (own_before, at(A, 1))
    assert (leader.preceding, leader.following) == (at(C, 0), own_after)
    assert (leader.index, other.index, other.member) == (1, 2, 1)
