"""Removal of nodes from the cluster: signing, distributing and enforcing it.

Removals are signed by the cluster's authority, so any node may pass them on. When a node joins, it
and each member exchange all removals that they know, so a node that was away learns what it missed
from the first member that it meets.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from potluck.cluster.agent.member_events import MemberEvents
from potluck.cluster.background import Spawn
from potluck.cluster.invitations.identity import Identity
from potluck.cluster.network.membership import Membership, MethodTable
from potluck.cluster.network.trust.removals import (
    MOST_REMOVALS,
    Removal,
    decode_lines,
    encode_lines,
    is_genuine,
    sign_removal,
)
from potluck.cluster.wire.calls import RemovalList
from potluck.cluster.wire.methods import REMOVALS
from potluck.errors import PotluckError, RemovedFromClusterError, UsageError
from potluck.host.private_files import replace_file
from potluck.host.system import read_regular_file
from potluck.types.cluster import NodeId

_log = logging.getLogger(__name__)

_MAX_FILE_BYTES = 1 << 21
_TELL_SECONDS = 2.0
_ATTEMPTS = 5
_AGAIN_SECONDS = 2.0


def read_removals(path: Path) -> tuple[Removal, ...]:
    """Return the entries of the file of removed nodes. Raise ``OSError``."""
    return decode_lines(read_regular_file(path, _MAX_FILE_BYTES))


class Removals:
    """The removals. For use in the agent's event loop.

    ``path`` is the file that all processes of the node read. ``removed`` is called with each node
    that is removed from now on, and ``refuse`` with all removed nodes, to close what is open
    between them and this one.
    """

    def __init__(
        self,
        membership: Membership,
        identity: Identity,
        path: Path,
        *,
        spawn: Spawn,
        events: MemberEvents,
        removed: Callable[[NodeId], None],
        refuse: Callable[[frozenset[NodeId]], None],
    ) -> None:
        self._membership = membership
        self._identity = identity
        self._path = path
        self._spawn = spawn
        self._events = events
        self._removed = removed
        self._refuse = refuse
        self._known: dict[str, Removal] = {}
        self._holders: dict[NodeId, bool] = {}
        try:
            self._known = {each.node_id: each for each in read_removals(path)}
        except FileNotFoundError:
            return
        self._refuse(frozenset(map(NodeId, self._known)))

    def register(self, methods: MethodTable) -> None:
        """Register the calls of other nodes."""
        REMOVALS.serve(methods, self._on_removals)

    def times(self) -> dict[str, int]:
        """Return when each node was removed, in seconds since 1970."""
        return {node: each.time for node, each in self._known.items()}

    def holds_secret(self, node: NodeId) -> bool | None:
        """Return whether a node says that it has the cluster's secret; None if it has not said."""
        if node == self._identity.node_id:
            return self._identity.authority is not None
        return self._holders.get(node)

    def joined(self, node: NodeId) -> None:
        """Exchange removals with a node that joined."""
        self._spawn(self._exchange(node))

    async def remove(self, node: NodeId) -> None:
        """Remove a node permanently. Returns when this node refuses it and others were told.

        Raises ``UsageError`` if that is not possible.
        """
        authority = self._identity.authority
        if authority is None:
            raise UsageError(
                "this node was invited, and only a node that has the cluster's secret can remove "
                "others",
                hint="find one with: potluck nodes",
            )
        if node == self._identity.node_id:
            raise UsageError("a node cannot remove itself", hint="stop it with: potluck down")
        if len(self._known) >= MOST_REMOVALS:
            raise UsageError(
                f"this cluster has reached its limit of {MOST_REMOVALS} removed nodes",
                hint="start a new cluster with another secret (docs/design/security.md)",
            )
        removal = sign_removal(authority, self._identity.cluster_id, node, int(time.time()))
        # The node itself, too, so that it exits with a message. Nodes that cannot be
        # reached now receive it when they rejoin.
        await REMOVALS.call_all(
            self._membership,
            dict.fromkeys(sorted(self._membership.nodes()), self._list(removal)),
            timeout_seconds=_TELL_SECONDS,
            level=logging.INFO,
        )
        self._take((removal,))

    async def _exchange(self, node: NodeId) -> None:
        for _ in range(_ATTEMPTS):
            if node not in self._membership.nodes():
                return
            try:
                theirs = await REMOVALS.call(self._membership, node, self._list())
                self._holders[node] = theirs.holds_secret
                self._take(theirs.removals)
                return
            except PotluckError as error:
                _log.debug(
                    "node %s did not send its list of removed nodes: %s", node, error.message
                )
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _on_removals(self, theirs: RemovalList) -> RemovalList:
        self._take(theirs.removals)
        return self._list()

    def _list(self, *further: Removal) -> RemovalList:
        return RemovalList(
            removals=(*self._known.values(), *further),
            holds_secret=self._identity.authority is not None,
        )

    def _take(self, removals: tuple[Removal, ...]) -> None:
        """Store new, genuine removals before acting on them."""
        authority = self._identity.credentials.authority_pem
        new = []
        for each in removals[: 2 * MOST_REMOVALS]:
            if each.node_id in self._known or len(self._known) >= MOST_REMOVALS:
                continue
            if not is_genuine(each, self._identity.cluster_id, authority):
                _log.warning("ignored a removal that was not signed by this cluster")
                continue
            self._known[each.node_id] = each
            new.append(each.node_id)
        if not new:
            return
        try:
            replace_file(self._path, encode_lines(self._known.values()))
        except OSError as error:
            for node in new:
                del self._known[node]
            raise PotluckError(
                f"cannot store the list of removed nodes: {error.strerror or error}",
                hint="free space on the disk of the state directory",
            ) from error
        for node in new:
            _log.warning("node %s was removed from the cluster", node)
        if self._identity.node_id in new:
            self._events.has_to_leave(RemovedFromClusterError(self._identity.node_id))
            return
        self._membership.refuse_removed()
        for node in sorted(new):
            self._removed(NodeId(node))
        self._refuse(frozenset(map(NodeId, self._known)))
