"""Cluster membership, and control calls between agents, over Zenoh.

Zenoh does discovery, failure detection and transport, except that ``cluster.network.acceptor``
accepts incoming connections and lets only members connect to Zenoh. This package decides who counts
as a member, defines how calls begin, are ordered and end, and turns silence into error messages. It
carries control messages only: weights and activations use edges. A hung agent still looks alive
here, because Zenoh's threads keep running; use a call with a timeout to find out.
"""

from __future__ import annotations

from potluck.cluster.network.membership.address import Address, parse_address
from potluck.cluster.network.membership.config import MembershipConfig
from potluck.cluster.network.membership.diagnosis import unreachable
from potluck.cluster.network.membership.membership import Membership, Observer
from potluck.cluster.network.membership.messages import MAX_PAYLOAD_BYTES
from potluck.cluster.network.membership.server import Handler, MethodTable, StreamHandler
from potluck.cluster.network.trust.pem_files import PemPaths

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
    "address",
    "parse_address",
    "unreachable",
]
