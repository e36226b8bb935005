"""Invitations and nodes as JSON documents."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from potluck.types.document import Count, Document, NodeIdText, PositiveCount, Sha256Text

InvitationIdText = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{8}$")]


class NewInvitationDocument(Document, frozen=True, kw_only=True):
    """A new invitation with its token, for the user who created it: anyone who has it can join."""

    schema: Literal["potluck.invite/1"] = "potluck.invite/1"
    invitation_id: InvitationIdText
    """The id for ``--list`` and ``--withdraw``."""
    invitation: str
    """The invitation, for ``potluck up --join``."""
    addresses: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    token: Annotated[str, msgspec.Meta(pattern="^[0-9A-HJKMNP-TV-Z]{32}$")]
    key_sha256: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9+/]{43}=$")]
    """SHA-256 of the SubjectPublicKeyInfo of the server's key in base64, as for
    ``curl --pinnedpubkey``."""
    certificate_sha256: Sha256Text
    """SHA-256 of the server's certificate (DER)."""
    expires: float
    """Seconds since 1970."""
    num_uses: PositiveCount


class InvitationDocument(Document, frozen=True, kw_only=True):
    """An invitation, without its token."""

    invitation_id: InvitationIdText
    created: float
    """Seconds since 1970."""
    expires: float
    """Seconds since 1970."""
    num_uses: PositiveCount
    num_used: Count
    closed: str | None
    """Why it can no longer be used; null while it is open."""
    nodes: tuple[NodeIdText, ...]
    """The nodes that have joined with it."""


class InvitationsDocument(Document, frozen=True, kw_only=True):
    """The output of ``potluck invite --list --json`` and ``potluck invite --withdraw ID --json``.

    The latest invitation is the last.
    """

    schema: Literal["potluck.invitations/1"] = "potluck.invitations/1"
    invitations: tuple[InvitationDocument, ...]


class NodeDocument(Document, frozen=True, kw_only=True):
    """A node that is a member, was invited by this node, or was removed."""

    node_id: NodeIdText
    name: str | None = None
    """The host's name; null if it is unknown, as for a silent member."""
    address: str | None = None
    """The address for joining it; null while it is away."""
    state: Literal["ready", "draining", "silent", "away", "removed"]
    """``silent``: a member that does not answer; ``away``: invited by this node, and no member."""
    membership: Literal["secret", "invitation"] | None = None
    """``secret``: the node has the cluster's secret, and could rejoin after it was removed; null if
    unknown."""
    invitation_id: str | None = None
    """The invitation of this node that it joined with."""
    joined_from: str | None = None
    """The IP address from which it requested its certificate."""
    invited_at: float | None = None
    """Seconds since 1970."""
    removed_at: float | None = None
    """Seconds since 1970."""


class NodesDocument(Document, frozen=True, kw_only=True):
    """The output of ``potluck nodes --json``."""

    schema: Literal["potluck.nodes/1"] = "potluck.nodes/1"
    nodes: tuple[NodeDocument, ...]


class JoinLines(Document, frozen=True, kw_only=True):
    """The commands for a new machine. One of them is enough.

    The first two are missing if this node has no wheels of Potluck for others.
    """

    python: str | msgspec.UnsetType = msgspec.UNSET
    """With Python 3.11 or newer."""
    shell: str | msgspec.UnsetType = msgspec.UNSET
    """With a shell, and curl or GNU wget."""
    potluck: str
    """With Potluck."""


class InviteDocument(NewInvitationDocument, frozen=True, kw_only=True):
    """The output of ``potluck invite --json``. Anyone who has its token can join."""

    lines: JoinLines
