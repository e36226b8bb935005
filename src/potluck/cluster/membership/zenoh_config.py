"""A node's configuration in Zenoh's own words."""

from __future__ import annotations

import json
from typing import Any

from potluck.cluster.membership.address import Address
from potluck.cluster.membership.config import MembershipConfig, PemPaths
from potluck.cluster.membership.messages import MAX_PAYLOAD_BYTES

_MAX_MESSAGE_BYTES = 2 * MAX_PAYLOAD_BYTES
"""A payload and its header, with room; Zenoh's own limit (1 GiB) is more than a small board has."""

_BLOCK_MICROSECONDS = 500_000
"""How long a send may wait for a peer that does not read, before Zenoh closes the transport.

Meanwhile nothing may be sent to others (``sockets``), so it is less than a lease. It hardly ever
waits: an outbox sends nothing while its peer's socket is full, and then a whole message finds room.
"""

_NUM_BATCHES = 16
"""Of 64 KiB for each peer, made as they are needed: as much as Zenoh allows, and a message."""

_KEEP_ALIVES = 8
"""In a lease: a single lost one is noticed and sent again within it, also where a round trip takes
0.4 s. Zenoh also waits for as long as between two of them to flush a link that has ended."""

_HANDSHAKE_MILLISECONDS = 3000
"""How long a connection that says nothing may hold one of the 100 places for newcomers, or the
closing of a session; a small board takes some 20 ms to shake hands."""


def zenoh_json(config: MembershipConfig, listen: Address, inner: Address | None) -> str:
    """The session's configuration; ``listen`` is ``config.listen`` with the port to use.

    ``inner`` is the loopback address where the acceptor of control connections brings members.
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
            "mode": "peer",
            "listen": {
                "endpoints": [f"{protocol}/{address}" for address in (listen, inner) if address],
                "exit_on_failure": True,
            },
            "connect": {
                "endpoints": [f"{protocol}/{address}" for address in config.connect],
                # Without end and in the background: with a time-out of 0 opening waits 10 s for
                # every address that is silent, and does not try again.
                "timeout_ms": -1,
                "exit_on_failure": False,
                "retry": {
                    "period_init_ms": 250,
                    "period_max_ms": 2000,
                    "period_increase_factor": 2,
                },
            },
            # Do not wait half a second for whoever may be there: tokens tell.
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


def _tls(pem: PemPaths) -> dict[str, Any]:
    return {
        "enable_mtls": True,
        # Members are known by their authority; boards change addresses more often than keys.
        "verify_name_on_connect": False,
        "root_ca_certificate": str(pem.authority),
        "listen_certificate": str(pem.certificate),
        "listen_private_key": str(pem.key),
        "connect_certificate": str(pem.certificate),
        "connect_private_key": str(pem.key),
    }
