"""Connect to a peer's transfer process."""

from __future__ import annotations

import socket
import ssl

from potluck.cluster.transfer.peer_frames import SERVER_NAME
from potluck.cluster.transfer.share import set_bulk_options
from potluck.cluster.trust.credentials import peer_node_id
from potluck.errors import ParameterError
from potluck.types.cluster import NodeId

_CONNECT_SECONDS = 5.0


class PeerFailedError(Exception):
    """The peer is unreachable, is a different node, or violates the protocol."""


def connect_to_peer(
    peer: NodeId, address: tuple[str, int], context: ssl.SSLContext
) -> ssl.SSLSocket:
    """Return a connection to the node ``peer``, which the caller owns.

    Raise ``OSError`` if it cannot be opened, and ``PeerFailedError`` if another node answers.
    """
    raw = socket.create_connection(address, timeout=_CONNECT_SECONDS)
    try:
        set_bulk_options(raw)
        connection = context.wrap_socket(raw, server_hostname=SERVER_NAME)
    except BaseException:
        raw.close()
        raise
    try:
        found = peer_node_id(connection)
    except ParameterError as error:
        connection.close()
        raise PeerFailedError(error.message) from error
    if found != peer:
        connection.close()
        raise PeerFailedError(f"a different node ({found}) answers at its address")
    return connection
