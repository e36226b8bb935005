"""The validated configuration of a node's membership, and the same in Zenoh's format."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from potluck.cluster.network.membership.address import Address
from potluck.cluster.network.membership.messages import MAX_PAYLOAD_BYTES
from potluck.cluster.network.trust.credentials import is_node_id
from potluck.cluster.network.trust.pem_files import PemPaths
from potluck.errors import ParameterError
from potluck.types.cluster import WIRE_VERSION, NodeId

_CLUSTER_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

_MIN_LEASE_MILLISECONDS = 200
"""The shortest lease. Keep-alives are sent eight times per lease; with a shorter one, a node with a
busy CPU would be taken for dead."""

_MAX_MESSAGE_BYTES = 2 * MAX_PAYLOAD_BYTES
"""The message limit: a payload and its header, with room to spare. Zenoh's default (1 GiB) is more
memory than a small board has."""

_BLOCK_MICROSECONDS = 500_000
"""How long a send may wait for a peer that does not read, before Zenoh closes the transport.

Meanwhile nothing can be sent to others (``sockets``), so it is shorter than a lease. It rarely
applies: an outbox sends nothing while its peer's socket is full, and otherwise there is room for a
whole message."""

_NUM_BATCHES = 16
"""Buffers of 64 KiB per peer, allocated on demand: as many as Zenoh allows, and enough for a
message."""

_KEEP_ALIVES = 8
"""Keep-alives per lease: a single lost one is detected and retransmitted within the lease, even
with a round trip of 0.4 s. Zenoh also waits as long as the interval between two to flush a closed
link."""

_HANDSHAKE_MILLISECONDS = 3000
"""How long a silent connection may occupy one of the 100 slots for new ones, or delay closing a
session; a small board takes about 20 ms for a handshake."""

_MESSAGES = (
    "put",
    "delete",
    "declare_subscriber",
    "query",
    "reply",
    "declare_queryable",
    "liveliness_token",
    "liveliness_query",
    "declare_liveliness_subscriber",
)
"""All message kinds that Zenoh's access control distinguishes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipConfig:
    """The configuration of one node's membership.

    ``listen`` is one specific IP address (with several, some unreachable from elsewhere, discovery
    takes minutes); port 0 takes a free port. ``connect`` are addresses of members to join; any one
    suffices. ``multicast`` finds members by scouting on the interface of ``listen``. ``pem``
    enables mutual TLS on every link; without it everything stays on loopback. After
    ``lease_milliseconds`` of silence other nodes consider this node dead. ``join_timeout_seconds``
    is how long to try the ``connect`` addresses. If ``has_to_join``, opening fails after that;
    otherwise the node runs alone and keeps trying.

    Raises ``ParameterError`` for invalid values, and for values that would contact other machines
    without TLS.
    """

    node_id: NodeId
    cluster_id: str
    listen: Address
    connect: tuple[Address, ...] = ()
    multicast: bool = False
    pem: PemPaths | None = None
    lease_milliseconds: int = 1000
    join_timeout_seconds: float = 5.0
    has_to_join: bool = True
    wire_version: int = WIRE_VERSION

    def __post_init__(self) -> None:
        if not is_node_id(self.node_id):
            raise ParameterError("node_id", f"{self.node_id!r} is not 16 hexadecimal digits")
        if _CLUSTER_ID.fullmatch(self.cluster_id) is None:
            raise ParameterError(
                "cluster_id", f"{self.cluster_id!r} is not 1 to 64 letters, digits, - or _"
            )
        ip = self.listen.ip
        if ip is None or ip.is_unspecified or ip.is_multicast:
            raise ParameterError(
                "listen",
                f"cannot listen on {self.listen}: one specific IP address is required",
                hint="give the address at which other machines reach this one",
            )
        if self.pem is None:
            for address in (self.listen, *self.connect):
                if not address.is_loopback:
                    raise ParameterError(
                        "pem",
                        f"{address} is not a loopback address, and there are no certificates",
                        hint="a cluster of several machines requires a secret (--lan)",
                    )
        if self.multicast and self.listen.is_loopback:
            raise ParameterError(
                "multicast",
                f"multicast discovery is not possible from {self.listen}",
                hint="listen on an address of the local network, or name members to join",
            )
        if self.lease_milliseconds < _MIN_LEASE_MILLISECONDS:
            raise ParameterError(
                "lease_milliseconds", f"the lease must be at least {_MIN_LEASE_MILLISECONDS} ms"
            )
        if not self.join_timeout_seconds > 0:
            raise ParameterError(
                "join_timeout_seconds", "the time limit for joining must be positive"
            )

    @property
    def stall_milliseconds(self) -> int:
        """How long a peer may acknowledge or read nothing before a connection to it is closed.

        Twice the lease, so that usually the lease of one side or the other expires first.
        """
        return 2 * self.lease_milliseconds


def zenoh_json(
    config: MembershipConfig,
    listen: Address,
    inner: Address | None,
    removed: Collection[NodeId] = (),
) -> str:
    """Return the session's configuration; ``listen`` is ``config.listen`` with the actual port.

    ``inner`` is the loopback address to which the acceptor connects members. ``removed`` are nodes
    with which no message is exchanged: a connection that this session opens to one is reset, but
    only after it is established.
    """
    protocol = "tcp" if config.pem is None else "tls"
    link: dict[str, Any] = {
        "protocols": [protocol],
        "rx": {"max_message_size": _MAX_MESSAGE_BYTES},
        "tx": {
            "lease": config.lease_milliseconds,
            "keep_alive": _KEEP_ALIVES,
            "queue": {
                "size": {"data": _NUM_BATCHES},
                "congestion_control": {"block": {"wait_before_close": _BLOCK_MICROSECONDS}},
            },
        },
    }
    if config.pem is not None:
        link["tls"] = _tls(config.pem)
    return json.dumps(
        {
            **({"access_control": _refusing(removed)} if removed else {}),
            "mode": "peer",
            "listen": {
                "endpoints": [f"{protocol}/{address}" for address in (listen, inner) if address],
                "exit_on_failure": True,
            },
            "connect": {
                "endpoints": [f"{protocol}/{address}" for address in config.connect],
                # Forever and in the background: with a timeout of 0 opening waits 10 s for every
                # address that does not answer, and does not retry.
                "timeout_ms": -1,
                "exit_on_failure": False,
                "retry": {
                    "period_init_ms": 250,
                    "period_max_ms": 2000,
                    "period_increase_factor": 2,
                },
            },
            # Do not wait half a second for other nodes: liveliness tokens announce them.
            "open": {"return_conditions": {"connect_scouted": False, "declares": False}},
            "scouting": {
                "gossip": {"enabled": True},
                "multicast": {"enabled": config.multicast, "interface": listen.host},
            },
            "transport": {
                "shared_memory": {"enabled": False},
                "unicast": {
                    "accept_timeout": _HANDSHAKE_MILLISECONDS,
                    "open_timeout": _HANDSHAKE_MILLISECONDS,
                },
                "link": link,
            },
        }
    )


def _refusing(nodes: Collection[NodeId]) -> dict[str, Any]:
    return {
        "enabled": True,
        "default_permission": "allow",
        "rules": [
            {
                "id": "everything",
                "messages": _MESSAGES,
                "flows": ["egress", "ingress"],
                "permission": "deny",
                "key_exprs": ["**"],
            }
        ],
        "subjects": [{"id": "removed", "cert_common_names": sorted(nodes)}],
        "policies": [{"rules": ["everything"], "subjects": ["removed"]}],
    }


def _tls(pem: PemPaths) -> dict[str, Any]:
    return {
        "enable_mtls": True,
        # Members are identified by their authority; boards change addresses more often than keys.
        "verify_name_on_connect": False,
        "root_ca_certificate": str(pem.authority),
        "listen_certificate": str(pem.certificate),
        "listen_private_key": str(pem.key),
        "connect_certificate": str(pem.certificate),
        "connect_private_key": str(pem.key),
    }
