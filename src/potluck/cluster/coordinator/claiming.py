"""Claim an epoch: the nodes that know of a deployment are asked to agree to it.

In a network partition, the smaller side must not outrun the larger one. A coordinator therefore
claims an epoch only when it has a plan, and gets it only if enough of the deployment's voters
promise it that epoch. How a node decides is described in ``calls.Claim``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass

from potluck.cluster.network.membership import Membership
from potluck.cluster.wire.calls import Claim, ClaimAnswer
from potluck.cluster.wire.methods import CLAIM
from potluck.errors import CallError
from potluck.types.cluster import Epoch, NodeId
from potluck.types.deployment import DeploymentRecord

_MORE_SECONDS = 0.1
"""The time for others to object, if those who have agreed suffice only without an objection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A successful claim.

    ``voters`` are the reachable nodes, which are all told of the epoch. Without a quorum they
    remain those of the last epoch that had one: a minority that continues alone must not outvote
    the others later.
    """

    epoch: Epoch
    voters: tuple[NodeId, ...]
    has_quorum: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A refused claim.

    ``is_alone``: nobody objects, but too few nodes are reachable. ``highest`` is the highest epoch
    that a node has seen or promised, and ``record`` one that supersedes the claimant's.
    """

    reason: str
    is_alone: bool
    highest: Epoch | None = None
    record: DeploymentRecord | None = None


def is_quorum(
    record: DeploymentRecord, granted: Collection[NodeId], *, is_disputed: bool = False
) -> bool:
    """Return whether the nodes that ``granted`` an epoch suffice: half of the record's voters or
    more, or every node that has a stage.

    Exactly half suffices because in a cluster of two nodes either can be lost. If both halves
    continue, the higher epoch wins once they are connected again. Half does not suffice if the
    claim ``is_disputed``, which means that nodes of the other half are reachable. The stages of a
    record without a quorum are those of a minority that continues alone, and do not give it one.
    """
    num_granted = sum(voter in granted for voter in record.voters)
    nodes = {stage.node_id for stage in record.stages} if record.has_quorum else set()
    return (
        2 * num_granted > len(record.voters)
        or (2 * num_granted == len(record.voters) and not is_disputed)
        or (bool(nodes) and nodes <= set(granted))
    )


async def claim(
    membership: Membership,
    record: DeploymentRecord,
    *,
    above: Epoch,
    required: Collection[NodeId],
    may_be_alone: bool,
) -> Grant | Refusal:
    """Ask all reachable nodes, including this one, for an epoch above ``above``.

    Returns as soon as there is a quorum that includes all ``required`` nodes (those of the plan),
    or soon after if others could still object. ``may_be_alone`` accepts less than a quorum, if
    nobody objects.
    """
    own = membership.node_id
    epoch = Epoch(number=max(above, record.epoch).number + 1, coordinator=own)
    request = Claim(deployment=record.deployment, epoch=epoch, known=record.epoch)
    pending = {
        asyncio.ensure_future(_ask(membership, node, request))
        for node in membership.reachable_nodes()
    }
    granted: set[NodeId] = set()
    refusals: list[ClaimAnswer] = []
    loop, deadline = asyncio.get_running_loop(), None
    try:
        while pending:
            seconds = None if deadline is None else deadline - loop.time()
            done, pending = await asyncio.wait(
                pending, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                break
            for node, answer in (task.result() for task in done):
                if answer is not None and answer.is_granted:
                    granted.add(node)
                elif answer is not None:
                    refusals.append(answer)
            if not granted.issuperset({own, *required}):
                continue
            if is_quorum(record, granted, is_disputed=True):
                break
            if deadline is None and is_quorum(record, granted, is_disputed=bool(refusals)):
                deadline = loop.time() + _MORE_SECONDS
    finally:
        for task in pending:
            task.cancel()
    is_enough = is_quorum(record, granted, is_disputed=bool(refusals))
    if granted.issuperset({own, *required}) and (is_enough or (may_be_alone and not refusals)):
        there = tuple(sorted(membership.nodes() | granted))
        voters = there if is_enough else record.voters
        return Grant(epoch=epoch, voters=voters, has_quorum=is_enough)
    if refusals:
        seen = [answer.highest for answer in refusals if answer.highest is not None]
        records = [answer.record for answer in refusals if answer.record is not None]
        return Refusal(
            reason=refusals[0].reason,
            is_alone=False,
            highest=max(seen, default=None),
            record=max(records, key=lambda each: (each.has_quorum, each.epoch), default=None),
        )
    missing = [node for node in required if node not in granted]
    if missing and is_enough:
        reason = f"node {missing[0]} does not answer"
        return Refusal(reason=reason, is_alone=False)
    num_reached = sum(voter in granted for voter in record.voters)
    return Refusal(
        reason=f"only {num_reached} of the {len(record.voters)} nodes that knew of the deployment"
        " are reachable",
        is_alone=True,
    )


async def _ask(
    membership: Membership, node: NodeId, request: Claim
) -> tuple[NodeId, ClaimAnswer | None]:
    try:
        return node, await CLAIM.call(membership, node, request)
    except CallError:
        return node, None
