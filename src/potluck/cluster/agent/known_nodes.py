"""The names and addresses of other nodes, known for as long as this node's agent runs.

They are kept when a node is lost, since a message about the loss needs its name, and this node may
have to find it again at its address.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence

from potluck.cluster.background import Spawn
from potluck.cluster.coordinator.survey import ask_report
from potluck.cluster.network.membership import Address, Membership, parse_address
from potluck.errors import PotluckError
from potluck.host.uname import host_name
from potluck.types.cluster import NodeId
from potluck.types.node_names import NodeNames

_log = logging.getLogger(__name__)

_FURTHER_ATTEMPTS = 5
_AGAIN_SECONDS = 10.0
"""A slow board may still be starting its agent when the first call times out."""


class KnownNodes:
    """Asks each node that joins for its report. For use in the agent's event loop."""

    def __init__(self, membership: Membership, *, spawn: Spawn) -> None:
        self._membership = membership
        self._spawn = spawn
        self._host_names: dict[str, str] = {membership.node_id: host_name()}
        self._addresses: dict[NodeId, Address] = {}
        self.names = NodeNames(self._host_names)

    @property
    def host_names(self) -> Mapping[str, str]:
        """Return the host name of each node by its id."""
        return self._host_names

    def joined(self, node: NodeId) -> None:
        """Handle a node that joined."""
        self._spawn(self._learn(node))

    def addresses(self) -> Sequence[Address]:
        """Return where the nodes listened when they last joined."""
        return tuple(self._addresses.values())

    async def _learn(self, node: NodeId) -> None:
        has_answered = await self._has_answered(node)
        _log.info("node %s joined", node)  # with its name
        for _ in range(_FURTHER_ATTEMPTS):
            if has_answered or node not in self._membership.nodes():
                return
            await asyncio.sleep(_AGAIN_SECONDS)
            has_answered = await self._has_answered(node)

    async def _has_answered(self, node: NodeId) -> bool:
        """Ask a node for its report; return whether it has answered."""
        try:
            report = await ask_report(self._membership, node)
        except PotluckError:
            return False
        self._host_names[node] = report.name
        self.names = NodeNames(self._host_names)
        with contextlib.suppress(PotluckError):
            self._addresses[node] = parse_address(report.address)
        return True


class NamesInLog(logging.Filter):
    """Puts the names of nodes in place of their ids in a log's messages."""

    def __init__(self, nodes: KnownNodes) -> None:
        super().__init__()
        self._nodes = nodes

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record, and pass it on."""
        record.msg, record.args = self._nodes.names.in_text(record.getMessage()), None
        return True
