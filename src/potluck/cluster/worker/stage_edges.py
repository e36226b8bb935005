"""The edges of a stage at one epoch: in the pipeline, and within its group if it is in one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from potluck.cluster.network.edges.edge import IncomingEdge, OutgoingEdge
from potluck.cluster.network.edges.frames import Hello, Scope
from potluck.cluster.wire.worker_messages import Connect, Peer
from potluck.cluster.worker.group import ExchangeTotals, FromLeader, Group, NullEdge
from potluck.errors import EngineError
from potluck.types.cluster import NodeId
from potluck.types.groups import GroupPart


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedEdges:
    """The peers that connect to a stage, and those that it connects to, with their hellos."""

    awaited: dict[Hello, NodeId]
    dialed: dict[Hello, Peer]

    @classmethod
    def of(cls, request: Connect, scope: Scope) -> WantedEdges:
        """Return the wanted edges of a request."""
        awaited: dict[Hello, NodeId] = {}
        dialed: dict[Hello, Peer] = {}
        first, own = request.index - request.member, request.member
        if own == 0:
            following = first + max(1, len(request.members))
            before = Hello(scope=scope, index=first, is_reversed=request.dials_preceding)
            after = Hello(scope=scope, index=following, is_reversed=request.awaits_following)
            if request.dials_preceding:
                dialed[before] = request.preceding
            else:
                awaited[before] = request.preceding.node_id
            if request.awaits_following:
                awaited[after] = request.following.node_id
            else:
                dialed[after] = request.following
        for member, peer in enumerate(request.members):
            if member != own:
                theirs = Hello(scope=scope, index=first, sender=member, receiver=own)
                ours = Hello(scope=scope, index=first, sender=own, receiver=member)
                awaited[theirs] = peer.node_id
                dialed[ours] = peer
        return cls(awaited=awaited, dialed=dialed)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEdges:
    """The edges over which a stage receives steps and sends results, and its group."""

    incoming: IncomingEdge | FromLeader
    outgoing: OutgoingEdge | NullEdge
    group: Group | None

    @classmethod
    def of(
        cls,
        part: GroupPart | None,
        incoming: Mapping[Hello, IncomingEdge],
        outgoing: Mapping[Hello, OutgoingEdge],
        totals: ExchangeTotals,
    ) -> StageEdges:
        """Return the edges of a stage with this part, given the opened ones.

        Raise ``EngineError`` if it was connected as a different member than it was loaded as.
        """
        to_members = {each.receiver: edge for each, edge in outgoing.items()}
        from_members = {each.sender: edge for each, edge in incoming.items()}
        before, after = from_members.pop(None, None), to_members.pop(None, None)
        members = {each for each in to_members if each is not None}
        own = None if part is None else part.member
        wanted = set() if part is None else set(range(len(part.shares))) - {own}
        if members != wanted or (before is None) != (own not in (None, 0)):
            raise EngineError(f"the stage was loaded as {part}, but connected differently")
        if part is None:
            group = None
        else:
            group = Group(
                part,
                {member: to_members[member] for member in members},
                {member: from_members[member] for member in members},
                totals,
            )
        if group is None or group.is_leader:
            if before is None or after is None:
                raise RuntimeError("a required edge is missing")
            return cls(incoming=before, outgoing=after, group=group)
        leader = from_members[0].peer_node_id
        return cls(
            incoming=FromLeader(group=group, peer_node_id=leader),
            outgoing=NullEdge(peer_node_id=leader),
            group=group,
        )
