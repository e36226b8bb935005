"""Routes from this node's port to processes that wait for edges: workers, and the agent itself."""

from __future__ import annotations

import asyncio
import contextlib
import secrets

from potluck.cluster.network.edges.address import EdgeAddress
from potluck.cluster.network.edges.listener import OpenRoute, RoutedConnections
from potluck.cluster.network.membership import Membership

_NAME_BYTES = 8


def edge_routes(membership: Membership) -> OpenRoute:
    """Return a function that opens routes at the address of ``membership``; for use in its event
    loop.

    Routes may be closed on any thread.
    """
    loop = asyncio.get_running_loop()

    def open_route() -> RoutedConnections:
        # Random, so that an edge of an earlier plan or start does not reach the wrong process.
        name = f"{secrets.token_hex(_NAME_BYTES)}.stage.potluck"
        channel = membership.add_route(name)
        if channel is None:
            raise OSError("this node does not use TLS")

        def ended() -> None:
            with contextlib.suppress(RuntimeError):  # the event loop and the acceptor are closed
                loop.call_soon_threadsafe(membership.remove_route, name)

        def find_address() -> EdgeAddress:
            address = membership.address
            return EdgeAddress(host=address.host, port=address.port, name=name)

        return RoutedConnections(channel, find_address, ended)

    return open_route
