"""Listens for edges at a node's single port, where the TLS server name selects the process."""

from __future__ import annotations

import socket
from collections.abc import Callable

from potluck.cluster.edges.address import EdgeAddress
from potluck.cluster.edges.listener import EdgeListener
from potluck.cluster.trust.connection_sources import HandedConnections
from potluck.cluster.trust.credentials import Credentials


class RoutedConnections(HandedConnections):
    """The connections that ask for ``address.name``, until ``close``."""

    def __init__(
        self,
        channel: socket.socket,
        find_address: Callable[[], EdgeAddress],
        ended: Callable[[], None],
    ) -> None:
        """Take ownership of ``channel``. ``ended`` is called once, on the thread that closes it."""
        super().__init__(channel)
        self._find_address = find_address
        self._ended = ended

    @property
    def address(self) -> EdgeAddress:
        """Return where they connect to: the node's address, which may have changed."""
        return self._find_address()

    def close(self) -> None:
        """Close waiting connections, and accept no more. Idempotent."""
        is_open = self.fileno() >= 0
        super().close()
        if is_open:
            self._ended()


OpenRoute = Callable[[], RoutedConnections]
"""Opens a route with a new name. Raises ``OSError``."""


def listen_for_edges(
    host: str, credentials: Credentials, open_route: OpenRoute | None
) -> EdgeListener:
    """Listen at the node's port or, if no route can be opened, at one of ``host``.

    Raises ``OSError`` if neither works.
    """
    if open_route is None:
        return EdgeListener.at(host, credentials)
    routed = open_route()
    return EdgeListener(routed, routed.address, credentials)
