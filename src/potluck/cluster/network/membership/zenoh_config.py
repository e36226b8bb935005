"""A node's configuration in Zenoh's format."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from potluck.cluster.network.membership.address import Address
from potluck.cluster.network.membership.config import MembershipConfig
from potluck.cluster.network.membership.messages import MAX_PAYLOAD_BYTES
from potluck.cluster.network.trust.pem_files import PemPaths
from potluck.types.cluster import NodeId

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
