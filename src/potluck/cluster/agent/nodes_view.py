"""Invitations and members as JSON documents, for the command line."""

from __future__ import annotations

import base64
import hashlib
import ssl
from typing import Literal

from potluck.cluster.agent.inviting import Inviting, NewInvitation
from potluck.cluster.agent.removals import Removals
from potluck.cluster.invitations.ledger import Ledger
from potluck.cluster.network.trust.credentials import is_node_id
from potluck.errors import UsageError
from potluck.types.cluster import NodeId
from potluck.types.document import document_of
from potluck.types.documents.cluster import ClusterDocument, DrainingNode, ReadyNode, SilentNode
from potluck.types.documents.nodes import (
    InvitationDocument,
    InvitationsDocument,
    NewInvitationDocument,
    NodeDocument,
    NodesDocument,
)
from potluck.types.node_names import NodeNames

_LEAST_PREFIX = 4


def new_invitation_view(made: NewInvitation) -> NewInvitationDocument:
    """Return a new invitation with its token."""
    certificate = ssl.PEM_cert_to_DER_cert(made.certificate_pem)
    invitation = made.invitation
    return document_of(
        NewInvitationDocument,
        made,
        invitation=str(invitation),
        addresses=tuple(str(each) for each in invitation.addresses),
        token=invitation.token,
        key_sha256=base64.b64encode(invitation.key_sha256).decode("ascii"),
        certificate_sha256=hashlib.sha256(certificate).hexdigest(),
    )


def invitations_view(ledger: Ledger, now: float) -> InvitationsDocument:
    """Return the invitations that this node has made."""
    return InvitationsDocument(
        invitations=tuple(
            document_of(
                InvitationDocument,
                each,
                num_used=ledger.num_used(each),
                closed=ledger.closed(each, now) or None,
                nodes=tuple(
                    member.node_id
                    for member in ledger.members
                    if member.invitation_id == each.invitation_id
                ),
            )
            for each in ledger.invitations
        )
    )


def nodes_view(cluster: ClusterDocument, removals: Removals, inviting: Inviting) -> NodesDocument:
    """Return the members, the absent nodes that this node invited, and the removed nodes."""
    removed = {NodeId(node): time for node, time in removals.times().items()}
    invited = {NodeId(each.node_id): each for each in inviting.ledger.members}
    here = {each.node_id: each for each in cluster.nodes}
    nodes = []
    for node in dict.fromkeys((*sorted(here), *invited, *sorted(removed))):
        member, issued = here.get(node), invited.get(node)
        report = member if isinstance(member, ReadyNode) else None
        named = report or issued
        holds_secret = removals.holds_secret(node) if node in here else None
        membership: Literal["secret", "invitation"] | None = None
        if holds_secret is not None:
            membership = "secret" if holds_secret else "invitation"
        elif issued is not None:
            membership = "invitation"
        nodes.append(
            NodeDocument(
                node_id=node,
                name=None if named is None else named.name,
                address=None if report is None else report.address,
                state="removed" if node in removed else _state(member),
                membership=membership,
                invitation_id=None if issued is None else issued.invitation_id,
                joined_from=None if issued is None else issued.host,
                invited_at=None if issued is None else issued.time,
                removed_at=removed.get(node),
            )
        )
    return NodesDocument(nodes=tuple(nodes))


def _state(
    member: ReadyNode | DrainingNode | SilentNode | None,
) -> Literal["ready", "draining", "silent", "away"]:
    match member:
        case DrainingNode():
            return "draining"
        case ReadyNode():
            return "ready"
        case SilentNode():
            return "silent"
    return "away"


def find_node(view: NodesDocument, wanted: str) -> NodeDocument:
    """Return the node with a node id, a unique prefix of one, or a name, as ``NodeNames`` has it.

    A full node id need not be known here. Raises ``UsageError`` if none or several nodes match.
    """
    names = NodeNames({node.node_id: node.name or "" for node in view.nodes})
    found = [
        node
        for node in view.nodes
        if wanted in (node.node_id, node.name, names.of(node.node_id))
        or (len(wanted) >= _LEAST_PREFIX and node.node_id.startswith(wanted))
    ]
    exact = [node for node in found if node.node_id == wanted]
    if len(exact) == 1:
        found = exact
    if len(found) > 1:
        found = [node for node in found if node.state != "removed"] or found
    if not found and is_node_id(wanted):
        return NodeDocument(node_id=NodeId(wanted), state="away")
    if len(found) != 1:
        raise UsageError(
            f"{'several nodes match' if found else 'no known node matches'} {wanted[:64]!r}",
            hint="list them with potluck nodes, and give the full node id",
        )
    if found[0].state == "removed":
        raise UsageError(f"node {found[0].node_id} has already been removed")
    return found[0]
