"""Checks of this node's connections to the others for ``potluck doctor``: clocks, ports, multicast.

A node that is asked to try a connection makes it only to the caller, at the address that its link
comes from, so that members cannot make others scan the network.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from potluck.cluster.agent.own_address import is_own_address
from potluck.cluster.background import cancel_all, is_set_within
from potluck.cluster.coordinator.ways import known_reachability
from potluck.cluster.network.membership import Address, Membership, unreachable
from potluck.cluster.wire.calls import (
    NUM_NONCE_BYTES,
    CheckConnection,
    ConnectionCheck,
    Multicast,
)
from potluck.cluster.wire.methods import CLOCK, MULTICAST, REACH
from potluck.errors import CallError
from potluck.probe.doctor.case import Cluster, Peer
from potluck.probe.doctor.multicast import (
    MAX_DATAGRAM_BYTES,
    nonce_of,
    open_multicast_receiver,
    send_datagram,
)
from potluck.types.cluster import NodeId

_log = logging.getLogger(__name__)

_NUM_CLOCK_CALLS = 3
"""The number of clock readings. The quickest one bounds the error; the first also wakes idle CPUs.
"""

_NUM_DATAGRAMS = 3
_PROBE_WAIT_SECONDS = 1.0
"""How long to wait after each datagram: Wi-Fi access points delay multicast to sleeping stations by
some tenths of a second."""

_HOPS = 1
"""The multicast TTL, which keeps datagrams in the local network."""


async def diagnose(membership: Membership) -> Cluster:
    """Check all other members concurrently; takes a few seconds if something is blocked."""
    nodes = sorted(membership.nodes())
    listening = _multicast_received(membership, nodes)
    asking = asyncio.gather(*(_check_peer(membership, node) for node in nodes))
    ways = known_reachability(membership, [membership.node_id, *nodes])
    peers, received, known = await asyncio.gather(asking, listening, ways)
    return Cluster(
        node_id=membership.node_id,
        address=str(membership.address),
        is_address_gone=not is_own_address(membership.address.host),
        peers=tuple(
            replace(
                peer,
                is_heard=received.get(NodeId(peer.node_id)),
                is_reached=(membership.node_id, peer.node_id) not in known.closed,
            )
            for peer in peers
        ),
        silent_pairs=known.silent_pairs,
    )


async def _check_peer(membership: Membership, node: NodeId) -> Peer:
    request = CheckConnection(port=membership.address.port)
    try:
        skew, uncertainty = await _skew(membership, node)
        reached = await REACH.call(membership, node, request)
    except CallError as error:
        return Peer(node_id=node, problem=error.message)
    return Peer(
        node_id=node,
        skew_seconds=skew,
        uncertainty_seconds=uncertainty,
        port_problem=reached.problem,
    )


async def _skew(membership: Membership, node: NodeId) -> tuple[float, float]:
    """Return the node's clock minus ours, and the maximum error.

    Cristian's algorithm: the error is at most half the round trip.
    """
    measured = []
    for _ in range(_NUM_CLOCK_CALLS):
        sent_at, start = time.time(), time.monotonic()
        clock = await CLOCK.call(membership, node, None)
        half = (time.monotonic() - start) / 2
        measured.append((half, clock.seconds - (sent_at + half)))
    half, skew = min(measured)
    return skew, half


async def _multicast_received(
    membership: Membership, nodes: Sequence[NodeId]
) -> Mapping[NodeId, bool | None]:
    """Return whose multicast arrives here: None for nodes without any, empty if none can arrive."""
    if not _has_multicast(membership.address) or not nodes:
        return {}
    try:
        receiver = open_multicast_receiver(membership.address.host)
    except OSError as error:
        _log.info("cannot receive multicast at %s: %s", membership.address, error)
        return dict.fromkeys(nodes, False)
    with receiver:
        receiver.setblocking(False)
        arrivals = {secrets.token_bytes(NUM_NONCE_BYTES): asyncio.Event() for _ in nodes}
        listening = asyncio.create_task(_listen(receiver, arrivals))
        try:
            asking = (
                _receives_from(membership, node, nonce, arrival)
                for node, (nonce, arrival) in zip(nodes, arrivals.items(), strict=True)
            )
            return dict(zip(nodes, await asyncio.gather(*asking), strict=True))
        finally:
            await cancel_all([listening])


async def _listen(receiver: socket.socket, arrivals: Mapping[bytes, asyncio.Event]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        nonce = nonce_of(await loop.sock_recv(receiver, MAX_DATAGRAM_BYTES))
        if nonce is not None and nonce in arrivals:
            arrivals[nonce].set()


async def _receives_from(
    membership: Membership, node: NodeId, nonce: bytes, arrival: asyncio.Event
) -> bool | None:
    """Have ``node`` send until a datagram arrives, a few times; None if it has no multicast."""
    request = Multicast(nonce=nonce)
    for _ in range(_NUM_DATAGRAMS):
        try:
            await MULTICAST.call(membership, node, request)
        except CallError:
            return None
        if await is_set_within(arrival, _PROBE_WAIT_SECONDS):
            return True
    return False


def _has_multicast(address: Address) -> bool:
    """Return whether discovery works at an address: it uses IPv4, and is useless on loopback."""
    return isinstance(address.ip, ipaddress.IPv4Address) and not address.is_loopback


async def connect_back(
    membership: Membership, caller: NodeId, request: CheckConnection
) -> ConnectionCheck:
    """Try to connect to a port of ``caller``, at the address that it calls from."""
    host = membership.peer_host(caller)
    if host is None:
        raise CallError(f"node {caller} is not connected to this node")
    problem = await asyncio.to_thread(unreachable, Address(host=host, port=request.port))
    return ConnectionCheck(problem=problem)


async def send_multicast(membership: Membership, request: Multicast) -> None:
    """Send one datagram to the discovery group from the interface that this node listens on."""
    address = membership.address
    if not _has_multicast(address):
        raise CallError(f"multicast is not possible from {address}")
    try:
        send_datagram(address.host, request.nonce, hops=_HOPS)
    except OSError as error:  # the caller receives nothing, and reports that
        _log.info("cannot send multicast from %s: %s", address, error)
