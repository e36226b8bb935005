"""Taking an epoch: who has to agree, and who holds the deployment then."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from support.cluster.calls import A, B, C, PlayedMembership, a_record, changed, stage_on
from support.virtual_time.run import run_in_virtual_time

from potluck.cluster.coordinator.claiming import Grant, Refusal, claim, is_quorum
from potluck.cluster.wire.calls import Claim, ClaimAnswer, decode, encode
from potluck.errors import CallError
from potluck.types.cluster import Epoch, NodeId
from potluck.types.deployment import DeploymentRecord

D, E = NodeId("d" * 16), NodeId("e" * 16)
GRANTED = ClaimAnswer(is_granted=True)


def record(*voters: NodeId, stages: tuple[NodeId, ...] = (), **changes: Any) -> DeploymentRecord:
    return changed(a_record(3, A), voters=voters, stages=tuple(map(stage_on, stages)), **changes)


@pytest.mark.parametrize(
    ("known", "granted", "is_enough"),
    [
        (record(), {A}, True),
        (record(A, B), {A}, True),
        (record(A, B, C), {A}, False),
        (record(A, B, C), {A, B}, True),
        (record(A, B, C, D), {A, B}, True),
        (record(A, B, C, D, E), {A, B}, False),
        (record(A, B, C), {A, D, E}, False),  # only voters count
        (record(A, B, C, D, E, stages=(A, B)), {A, B}, True),
        (record(A, B, C, D, E, stages=(A, C)), {A, B}, False),
        (record(A, B, C, D, E, stages=(A, B), has_quorum=False), {A, B}, False),
    ],
)
def test_half_of_the_holders_or_all_stages_are_a_quorum(
    known: DeploymentRecord, granted: set[NodeId], is_enough: bool
) -> None:
    assert is_quorum(known, granted) is is_enough


class Nodes(PlayedMembership):
    """Members by what they answer; None of one that does not."""

    def __init__(self, **answers: ClaimAnswer | None) -> None:
        by_node = {NodeId(name * 16): answer for name, answer in answers.items()}

        async def decide(node: NodeId, payload: bytes) -> bytes:
            decode(payload, Claim)
            answer = by_node[node]
            if answer is None:
                await asyncio.sleep(0.01)
                raise CallError("no answer")
            return encode(answer)

        super().__init__(others={*by_node} - {A}, answers={"deployment.claim": decide})

    def claim(
        self, known: DeploymentRecord, *required: NodeId, may_be_alone: bool = False
    ) -> Grant | Refusal:
        return run_in_virtual_time(
            claim(
                cast(Any, self),
                known,
                above=known.epoch,
                required=required,
                may_be_alone=may_be_alone,
            )
        )


def test_everybody_in_reach_holds_the_deployment_then() -> None:
    """Not only those who answered first: they would be few enough to be outvoted later."""
    nodes = Nodes(a=GRANTED, b=GRANTED, c=None, d=GRANTED)
    grant = nodes.claim(record(A, B), A)
    assert grant == Grant(
        epoch=Epoch(number=4, coordinator=A), voters=(A, B, C, D), has_quorum=True
    )


def test_a_side_that_goes_on_alone_does_not_outvote_the_others_later() -> None:
    nodes = Nodes(a=GRANTED)
    known = record(A, B, C, stages=(B,))
    assert nodes.claim(known, A) == Refusal(
        reason="only 1 of the 3 nodes that knew of the deployment are reachable", is_alone=True
    )
    grant = nodes.claim(known, A, may_be_alone=True)
    assert isinstance(grant, Grant)
    assert not grant.has_quorum
    assert grant.voters == (A, B, C)
    alone = record(*grant.voters, stages=(A,), has_quorum=False)
    again = nodes.claim(alone, A, may_be_alone=True)
    assert isinstance(again, Grant)
    assert not again.has_quorum


def test_whoever_objects_keeps_a_side_from_going_on_alone() -> None:
    later = a_record(9, B)
    nodes = Nodes(
        a=GRANTED,
        b=ClaimAnswer(is_granted=False, reason="at 9", highest=later.epoch, record=later),
    )
    refusal = nodes.claim(record(A, B, C, D, E), A, may_be_alone=True)
    assert refusal == Refusal(reason="at 9", is_alone=False, highest=later.epoch, record=later)


def test_every_node_of_the_plan_has_to_agree() -> None:
    refusal = Nodes(a=GRANTED, b=GRANTED, c=None).claim(record(A, B, C), A, C)
    assert isinstance(refusal, Refusal)
    assert f"node {C} does not answer" in refusal.reason
