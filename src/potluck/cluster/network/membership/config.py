"""The validated configuration of a node's membership."""

from __future__ import annotations

import re
from dataclasses import dataclass

from potluck.cluster.network.membership.address import Address
from potluck.cluster.network.trust.credentials import is_node_id
from potluck.cluster.network.trust.pem_files import PemPaths
from potluck.errors import ParameterError
from potluck.types.cluster import WIRE_VERSION, NodeId

_CLUSTER_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

_MIN_LEASE_MILLISECONDS = 200
"""The shortest lease. Keep-alives are sent eight times per lease; with a shorter one, a node with a
busy CPU would be taken for dead."""


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
