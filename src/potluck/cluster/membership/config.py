"""What a node needs to know to take part, checked when it is made."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from potluck.cluster.membership.address import Address
from potluck.errors import ParameterError
from potluck.types.cluster import WIRE_VERSION, NodeId

_NODE_ID = re.compile(r"[0-9a-f]{16}")
_CLUSTER_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

_MIN_LEASE_MILLISECONDS = 200
"""Keep-alives go out eight times a lease; below this a busy core is taken for a dead one."""


def is_node_id(text: str) -> bool:
    """Whether ``text`` is 16 lower-case hexadecimal digits."""
    return _NODE_ID.fullmatch(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class PemPaths:
    """The cluster's authority and this node's certificate and key, as PEM files."""

    authority: Path
    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipConfig:
    """How one node takes part.

    ``listen``: one concrete IP address (several locators, some unreachable from elsewhere, slow
    discovery to minutes); port 0 takes a free one. ``connect``: members to join at; any of them
    will do. ``multicast``: find members by scouting on the interface of ``listen``. ``pem``:
    mutual TLS on every link; without it everything stays on loopback. ``lease_milliseconds``:
    after so long a silence others take this node for dead. ``join_timeout_seconds``: how long
    to try the ``connect`` addresses before giving up.

    Raises ``ParameterError`` for values that make no sense or that would speak to other machines
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
                f"cannot listen on {self.listen}: one concrete IP address is needed",
                hint="give the address that the other machines reach this one at",
            )
        if self.pem is None:
            for address in (self.listen, *self.connect):
                if not address.is_loopback:
                    raise ParameterError(
                        "pem",
                        f"{address} is not on loopback, and there are no certificates",
                        hint="a cluster of several machines needs a secret (--lan)",
                    )
        if self.multicast and self.listen.is_loopback:
            raise ParameterError(
                "multicast",
                f"nobody can be found by multicast from {self.listen}",
                hint="listen on an address of the local network, or name members to join at",
            )
        if self.lease_milliseconds < _MIN_LEASE_MILLISECONDS:
            raise ParameterError(
                "lease_milliseconds", f"a lease takes at least {_MIN_LEASE_MILLISECONDS} ms"
            )
        if not self.join_timeout_seconds > 0:
            raise ParameterError("join_timeout_seconds", "the time to join must be positive")

    @property
    def stall_milliseconds(self) -> int:
        """How long a peer may acknowledge or take nothing before a connection to it is given up.

        Twice the lease: as a rule the lease of one side or the other is over first.
        """
        return 2 * self.lease_milliseconds
