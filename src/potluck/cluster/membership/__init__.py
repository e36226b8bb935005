"""Who is in the cluster, and control calls between its agents, over Zenoh.

Discovery, failure detection and transport are Zenoh's, except that ``cluster.acceptor`` accepts the
connections of others and lets only members through to Zenoh. This package says who counts as a
member, gives calls a beginning, an order and an end, and turns silence into sentences. It carries
control messages only: weights and activations go by edges. A wedged agent still looks alive here,
because Zenoh's threads go on without it; whoever must know better calls it with a time-out.
"""

from __future__ import annotations

from potluck.cluster.membership.address import Address, parse_address
from potluck.cluster.membership.config import MembershipConfig, PemPaths
from potluck.cluster.membership.diagnosis import unreachable
from potluck.cluster.membership.membership import Membership, Observer
from potluck.cluster.membership.messages import MAX_PAYLOAD_BYTES
from potluck.cluster.membership.server import Handler, MethodTable, StreamHandler

__all__ = [
    "MAX_PAYLOAD_BYTES",
    "Address",
    "Handler",
    "Membership",
    "MembershipConfig",
    "MethodTable",
    "Observer",
    "PemPaths",
    "StreamHandler",
    "parse_address",
    "unreachable",
]
