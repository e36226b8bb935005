"""The identity of a member: the cluster's secret, or a certificate from an invitation.

An invited node keeps its key and certificate (``membership.json`` in its state directory) and needs
nothing else at later starts. It can do everything that a member can, except admit other members and
remove some, which requires the authority's key.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from potluck.cluster.invitations.joined import JoinedCluster
from potluck.cluster.network.trust.authority import (
    Authority,
    cluster_id,
    derive_authority,
    issue_credentials,
)
from potluck.cluster.network.trust.credentials import Credentials, check_node_id
from potluck.cluster.network.trust.secret import Secret
from potluck.types.cluster import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The identity of a node. ``authority`` is None if it was invited.

    ``client_chain_pem`` is empty if the authority creates such certificates on demand.
    """

    credentials: Credentials
    cluster_id: str
    authority: Authority | None
    client_chain_pem: bytes = field(default=b"", repr=False)

    @property
    def node_id(self) -> NodeId:
        """Return the node's id."""
        return self.credentials.node_id


def identity_by_secret(secret: Secret, node_id: NodeId, addresses: Iterable[str]) -> Identity:
    """Return the identity of a node that has the secret: a new key, with a self-signed
    certificate.
    """
    authority = derive_authority(secret)
    return Identity(
        credentials=issue_credentials(authority, node_id, addresses),
        cluster_id=cluster_id(secret),
        authority=authority,
    )


def identity_by_invitation(joined: JoinedCluster) -> Identity:
    """Return the identity of an invited node."""
    return Identity(
        credentials=Credentials(
            node_id=check_node_id(joined.node_id),
            certificate_pem=joined.certificate_pem.encode("ascii"),
            private_key_pem=joined.private_key_pem.encode("ascii"),
            authority_pem=joined.authority_pem.encode("ascii"),
        ),
        cluster_id=joined.cluster_id,
        authority=None,
        client_chain_pem=joined.client_chain_pem.encode("ascii"),
    )
