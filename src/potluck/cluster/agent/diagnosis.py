"""How this node and the others get along: clocks, ports, multicast (for ``potluck doctor``).

A node that is asked to try a connection makes it to whoever asks, at the address that its link
comes from, and to two ports: members cannot have others look around in the network for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from potluck.cluster.calls import (
    NUM_NONCE_BYTES,
    Clock,
    Multicast,
    Reach,
    Reached,
    decode,
    encode,
)
from potluck.cluster.membership import Address, Membership, unreachable
from potluck.errors import CallError
from potluck.probe.doctor.case import Cluster, Peer
from potluck.probe.doctor.multicast import (
    MAX_DATAGRAM_BYTES,
    nonce_of,
    open_ear,
    send_datagram,
)
from potluck.types.cluster import NodeId

_log = logging.getLogger(__name__)

_NUM_CLOCK_CALLS = 3
"""The quickest of them bounds the error; the first also waits for whatever sleeps."""

_CALL_SECONDS = 5.0

_NUM_DATAGRAMS = 3
_HEAR_SECONDS = 1.0
"""After each: Wi-Fi keeps multicast for sleeping stations some tenths of a second."""

_HOPS = 1
"""Multicast stays in the local network."""


async def diagnose(membership: Membership) -> Cluster:
    """Ask all other members at the same time; takes some seconds where something is blocked."""
    nodes = sorted(membership.nodes())
    host = membership.address.host
    try:
        server = await asyncio.start_server(_hang_up, host, 0)
    except OSError as error:
        raise CallError(f"cannot listen at {host}: {error.strerror or error}") from error
    async with server:
        edge_port = server.sockets[0].getsockname()[1]
        listening = _heard(membership, nodes)
        asking = asyncio.gather(*(_look_at(membership, node, edge_port) for node in nodes))
        peers, heard = await asyncio.gather(asking, listening)
    return Cluster(
        node_id=membership.node_id,
        address=str(membership.address),
        peers=tuple(replace(peer, is_heard=heard.get(NodeId(peer.node_id))) for peer in peers),
    )


async def _hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def _look_at(membership: Membership, node: NodeId, edge_port: int) -> Peer:
    request = encode(Reach(control_port=membership.address.port, edge_port=edge_port))
    try:
        skew, uncertainty = await _skew(membership, node)
        answer = await membership.call(node, "node.reach", request, timeout_seconds=_CALL_SECONDS)
        reached = decode(answer, Reached)
    except CallError as error:
        return Peer(node_id=node, problem=error.message)
    return Peer(
        node_id=node,
        skew_seconds=skew,
        uncertainty_seconds=uncertainty,
        control_problem=reached.control,
        edge_problem=reached.edge,
    )


async def _skew(membership: Membership, node: NodeId) -> tuple[float, float]:
    """Its clock less ours, as if it had been read half-way, and how far off that may be at most.

    Cristian's algorithm: the error is at most half of the round trip.
    """
    measured = []
    for _ in range(_NUM_CLOCK_CALLS):
        asked_at, start = time.time(), time.monotonic()
        answer = await membership.call(node, "node.clock", b"", timeout_seconds=_CALL_SECONDS)
        half = (time.monotonic() - start) / 2
        measured.append((half, decode(answer, Clock).seconds - (asked_at + half)))
    half, skew = min(measured)
    return skew, half


async def _heard(membership: Membership, nodes: Sequence[NodeId]) -> Mapping[NodeId, bool | None]:
    """Whose multicast arrives; None of a node that has none, nothing where none can arrive."""
    if not _has_multicast(membership.address) or not nodes:
        return {}
    try:
        ear = open_ear(membership.address.host)
    except OSError as error:
        _log.info("no multicast at %s: %s", membership.address, error)
        return dict.fromkeys(nodes, False)
    with ear:
        ear.setblocking(False)
        arrivals = {secrets.token_bytes(NUM_NONCE_BYTES): asyncio.Event() for _ in nodes}
        listening = asyncio.create_task(_listen(ear, arrivals))
        try:
            asking = (
                _is_heard(membership, node, nonce, arrival)
                for node, (nonce, arrival) in zip(nodes, arrivals.items(), strict=True)
            )
            return dict(zip(nodes, await asyncio.gather(*asking), strict=True))
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)


async def _listen(ear: socket.socket, arrivals: Mapping[bytes, asyncio.Event]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        nonce = nonce_of(await loop.sock_recv(ear, MAX_DATAGRAM_BYTES))
        if nonce is not None and nonce in arrivals:
            arrivals[nonce].set()


async def _is_heard(
    membership: Membership, node: NodeId, nonce: bytes, arrival: asyncio.Event
) -> bool | None:
    """Have ``node`` send until it is heard, a few times; None if it has no multicast."""
    request = encode(Multicast(nonce=nonce))
    for _ in range(_NUM_DATAGRAMS):
        try:
            await membership.call(node, "node.multicast", request, timeout_seconds=_CALL_SECONDS)
        except CallError:
            return None
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(arrival.wait(), _HEAR_SECONDS)
            return True
    return False


def _has_multicast(address: Address) -> bool:
    """Discovery is over IPv4, and pointless on loopback."""
    return isinstance(address.ip, ipaddress.IPv4Address) and not address.is_loopback


async def reach_back(membership: Membership, caller: NodeId, request: Reach) -> Reached:
    """Whether this node can connect to two ports of ``caller``, at the address it calls from."""
    host = membership.peer_host(caller)
    if host is None:
        raise CallError(f"node {caller} is not connected to this node")
    control, edge = await asyncio.gather(
        *(
            asyncio.to_thread(unreachable, Address(host=host, port=port))
            for port in (request.control_port, request.edge_port)
        )
    )
    return Reached(control=control, edge=edge)


async def be_heard(membership: Membership, request: Multicast) -> None:
    """Send one datagram to discovery's group from the interface that this node listens on."""
    address = membership.address
    if not _has_multicast(address):
        raise CallError(f"there is no multicast from {address}")
    try:
        send_datagram(address.host, request.nonce, hops=_HOPS)
    except OSError as error:  # the asker hears nothing, and says so
        _log.info("cannot send to multicast from %s: %s", address, error)
