"""Credentials, edges between threads of the test, and connections that are up to no good."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache

from potluck.cluster.network.edges.address import EdgeAddress
from potluck.cluster.network.edges.connect import connect_end
from potluck.cluster.network.edges.edge import IncomingEdge, OutgoingEdge
from potluck.cluster.network.edges.frames import Hello, Scope
from potluck.cluster.network.edges.listener import EdgeListener
from potluck.cluster.network.trust.authority import Authority, derive_authority, issue_credentials
from potluck.cluster.network.trust.credentials import Credentials
from potluck.cluster.network.trust.secret import parse_secret
from potluck.scheduling.frame_limits import EdgeLimits
from potluck.types.cluster import DeploymentId, Epoch, NodeId

SECRET = "4f1d8a60b93ce27581f6d0ea427b9c35e8a71bd2064fc93d5e80a7b61c2f94d3"
OTHER_SECRET = "93e0b57cd6124af81b7e45a0f3c82d96507bf3a1e864d29c0d5b17ea42f6839c"

RECEIVER = NodeId("a" * 16)
SENDER = NodeId("b" * 16)
EPOCH = Epoch(number=7, coordinator=SENDER)
HELLO = Hello(scope=Scope(deployment=DeploymentId("demo"), epoch=EPOCH), index=2)
LIMITS = EdgeLimits(max_header_bytes=1000, max_payload_bytes=300_000)


@cache
def authority(secret: str = SECRET) -> Authority:
    return derive_authority(parse_secret(secret))


@cache
def credentials(node_id: NodeId, secret: str = SECRET) -> Credentials:
    return issue_credentials(authority(secret), node_id, ["127.0.0.1"])


@contextmanager
def listener(handshake_seconds: float = 5.0) -> Iterator[EdgeListener]:
    listening = EdgeListener.at(
        "127.0.0.1", credentials(RECEIVER), handshake_seconds=handshake_seconds
    )
    try:
        yield listening
    finally:
        listening.close()


def accept_edges(
    listening: EdgeListener,
    expected: Mapping[Hello, NodeId],
    *,
    limits: EdgeLimits = LIMITS,
    seconds: float = 10,
) -> dict[Hello, IncomingEdge]:
    """The receivers' ends of several edges."""
    ends = listening.accept_ends(expected, limits=limits, timeout_seconds=seconds)
    incoming = {hello: end for hello, end in ends.items() if isinstance(end, IncomingEdge)}
    assert incoming.keys() == ends.keys()
    return incoming


def accept(
    listening: EdgeListener,
    expected: Hello = HELLO,
    seconds: float = 10,
    *,
    peer: NodeId = SENDER,
    limits: EdgeLimits = LIMITS,
) -> IncomingEdge:
    return accept_edges(listening, {expected: peer}, limits=limits, seconds=seconds)[expected]


def connect_edge(
    address: EdgeAddress,
    credentials: Credentials,
    hello: Hello,
    *,
    peer: NodeId,
    limits: EdgeLimits,
    timeout_seconds: float,
) -> OutgoingEdge:
    """The sender's end of an edge."""
    end = connect_end(
        address, credentials, hello, peer=peer, limits=limits, timeout_seconds=timeout_seconds
    )
    assert isinstance(end, OutgoingEdge)
    return end


def connect(
    listening: EdgeListener,
    hello: Hello = HELLO,
    *,
    as_node: Credentials | None = None,
    to_node: NodeId = RECEIVER,
    seconds: float = 10,
) -> OutgoingEdge:
    return connect_edge(
        listening.address,
        as_node or credentials(SENDER),
        hello,
        peer=to_node,
        limits=LIMITS,
        timeout_seconds=seconds,
    )


@contextmanager
def edge() -> Iterator[tuple[OutgoingEdge, IncomingEdge]]:
    """Both ends of an edge over TLS."""
    with listener() as listening, ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(connect, listening)
        incoming = accept(listening)
        outgoing = connecting.result()
    try:
        yield outgoing, incoming
    finally:
        outgoing.close()
        incoming.close()


@contextmanager
def bare_edge(limits: EdgeLimits = LIMITS) -> Iterator[tuple[socket.socket, IncomingEdge]]:
    """A receiving end, and a plain socket for writing to it what no sender would."""
    writing, reading = socket.socketpair()
    incoming = IncomingEdge(reading, SENDER, HELLO.scope, limits)
    try:
        yield writing, incoming
    finally:
        writing.close()
        incoming.close()


@contextmanager
def tls_client(listening: EdgeListener, as_node: Credentials) -> Iterator[ssl.SSLSocket]:
    """A connection after the TLS handshake (as far as the client sees it)."""
    raw = socket.create_connection(listening.address.endpoint, timeout=10)
    with as_node.client_context().wrap_socket(raw) as connection:
        yield connection


@contextmanager
def in_thread(call: threading.Thread) -> Iterator[None]:
    call.start()
    try:
        yield
    finally:
        call.join(10)
        if call.is_alive():
            raise TimeoutError(f"{call.name} did not end")
