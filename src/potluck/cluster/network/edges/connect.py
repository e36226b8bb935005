"""The connecting side of an edge: usually its sender."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable

from potluck.cluster.network.edges.address import EdgeAddress
from potluck.cluster.network.edges.edge import IncomingEdge, OutgoingEdge, both_ends, check_counts
from potluck.cluster.network.edges.frames import (
    HELLO_LIMITS,
    PREAMBLE_BYTES,
    Hello,
    Preamble,
    check_answer,
    decode_preamble,
    encode_hello,
)
from potluck.cluster.network.edges.options import set_edge_options
from potluck.cluster.network.trust.credentials import Credentials, peer_node_id
from potluck.cluster.network.trust.handshakes import describe
from potluck.errors import EdgeError, ParameterError
from potluck.scheduling.frame_limits import EdgeLimits
from potluck.types.cluster import NodeId


def connect_end(
    address: EdgeAddress,
    credentials: Credentials,
    hello: Hello,
    *,
    peer: NodeId,
    limits: EdgeLimits,
    timeout_seconds: float,
) -> OutgoingEdge | IncomingEdge:
    """Connect to the other end of an edge, which must be the node ``peer``, and agree on the edge.

    This end is the sender or, of a reversed edge, the receiver. Raises ``EdgeError`` if the other
    one cannot be reached, is another node, refuses, or does not answer in time.
    """
    connection = _connect(address, credentials, hello, peer, timeout_seconds)
    end = IncomingEdge if hello.is_reversed else OutgoingEdge
    return end(connection, peer, hello.scope, limits)


def connect_both_ways(
    address: EdgeAddress,
    credentials: Credentials,
    hello: Hello,
    *,
    peer: NodeId,
    limits: EdgeLimits,
    timeout_seconds: float,
) -> tuple[OutgoingEdge, IncomingEdge]:
    """Connect as ``connect_end`` does, for a connection that is used both ways in turn."""
    connection = _connect(address, credentials, hello, peer, timeout_seconds)
    return both_ends(connection, peer, hello.scope, limits)


def _connect(
    address: EdgeAddress,
    credentials: Credentials,
    hello: Hello,
    peer: NodeId,
    timeout_seconds: float,
) -> ssl.SSLSocket:
    deadline = time.monotonic() + timeout_seconds

    def remaining_seconds() -> float:
        seconds = deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        return seconds

    name = f"{peer} at {address}"
    with contextlib.ExitStack() as on_failure:
        try:
            raw = socket.create_connection(address.endpoint, timeout=remaining_seconds())
            on_failure.callback(raw.close)
            set_edge_options(raw)
            connection = credentials.client_context().wrap_socket(
                raw, do_handshake_on_connect=False, server_hostname=address.name or None
            )
            on_failure.callback(connection.close)
            connection.settimeout(remaining_seconds())
            connection.do_handshake()
            found = peer_node_id(connection)
            if found != peer:
                raise EdgeError(name, f"node {found} answers there")
            connection.settimeout(remaining_seconds())
            connection.sendall(encode_hello(hello))
            check_answer(hello, *_read_answer(connection, remaining_seconds))
            connection.settimeout(None)
        except OSError as error:
            raise EdgeError(name, describe(error), hint=_hint(error)) from error
        except ParameterError as error:
            raise EdgeError(name, error.message) from error
        except ValueError as error:
            raise EdgeError(name, str(error)) from error
        on_failure.pop_all()
    return connection


def _hint(error: OSError) -> str:
    """Return a hint. A node that refuses a certificate just closes the connection or sends an
    alert.
    """
    if isinstance(error, ssl.SSLError | ConnectionResetError | BrokenPipeError):
        return "check that both nodes have the same secret; the other node's log may have details"
    return ""


def _read_answer(
    connection: ssl.SSLSocket, remaining_seconds: Callable[[], float]
) -> tuple[Preamble, bytes]:
    preamble = decode_preamble(_read(connection, PREAMBLE_BYTES, remaining_seconds))
    check_counts(preamble.header_bytes, preamble.payload_bytes, HELLO_LIMITS)
    return preamble, bytes(_read(connection, preamble.header_bytes, remaining_seconds))


def _read(
    connection: ssl.SSLSocket, num_bytes: int, remaining_seconds: Callable[[], float]
) -> bytearray:
    data = bytearray()
    while len(data) < num_bytes:
        connection.settimeout(remaining_seconds())
        part = connection.recv(num_bytes - len(data))
        if not part:
            raise ValueError("it closed the connection instead of answering")
        data += part
    return data
