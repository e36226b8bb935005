"""The credentials with which ``up`` and ``serve`` join: a secret, an invitation, or stored ones."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from potluck.cli.addresses import DEFAULT_LAN_PORT, LOOPBACK, lan_address, require_ipv4
from potluck.cli.output import note
from potluck.errors import UsageError
from potluck.host.child_environment import INVITATION_VARIABLE
from potluck.host.uname import host_name

if TYPE_CHECKING:
    from potluck.cluster.agent.state import StateDirectory
    from potluck.cluster.invitations.invitation import Invitation
    from potluck.cluster.invitations.joined import JoinedCluster
    from potluck.cluster.network.membership import Address
    from potluck.cluster.network.trust.secret import Secret

_STDIN = "-"
_MOST_CHARACTERS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOptions:
    """The value of ``--join``: addresses of members, an invitation, or nothing."""

    addresses: tuple[Address, ...]
    invitation: Invitation | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinIdentity:
    """The credentials with which a node joins, and the members that it connects to.

    ``secret`` is None if the node was invited; ``is_own`` is whether the secret is this node's own.
    ``is_multicast`` is whether the cluster uses multicast.
    """

    secret: Secret | None
    is_own: bool
    addresses: tuple[Address, ...]
    is_multicast: bool


def join_options(texts: Sequence[str]) -> JoinOptions:
    """Parse what was given for ``--join``, or in the environment. Raise ``UsageError``."""
    from potluck.cluster.invitations.invitation import is_invitation, parse_invitation
    from potluck.cluster.network.membership import parse_address

    given = [_first_line() if text == _STDIN else text for text in texts]
    invitations = [text for text in given if is_invitation(text)]
    variable = os.environ.pop(INVITATION_VARIABLE, None)
    if variable and not invitations:
        invitations = [variable]
    if len(invitations) > 1:
        raise UsageError("more than one invitation was given", hint="give only one")
    addresses = tuple(
        parse_address(text, name="join", default_port=DEFAULT_LAN_PORT)
        for text in given
        if not is_invitation(text)
    )
    for address in addresses:
        require_ipv4(address, "join")
    return JoinOptions(
        addresses=addresses,
        invitation=parse_invitation(invitations[0]) if invitations else None,
    )


def _first_line() -> str:
    """Return the first line of standard input; empty if that is closed."""
    return "" if sys.stdin is None else sys.stdin.readline(_MOST_CHARACTERS)


def join_identity(
    options: JoinOptions, directory: StateDirectory, secret_file: Path | None, *, new_node_id: bool
) -> JoinIdentity:
    """Return the credentials with which this node joins. Blocks while it joins by invitation.

    The order of precedence is: a given secret, an invitation, the identity that an earlier
    invitation left, the node's own secret. The directory must be locked. Raise ``UsageError`` and
    ``JoinError``.
    """
    from potluck.cluster.network.trust.secret import load_secret

    given = load_secret(os.environ, secret_file)
    if given is not None and options.invitation is not None:
        raise UsageError(
            "an invitation and the cluster secret cannot be used together",
            hint="omit the secret: POTLUCK_SECRET, --secret-file",
        )
    if given is None:
        joined = directory.joined()
        if options.invitation is not None:
            joined = _joined(options.invitation, joined, directory)
        if joined is not None:
            if new_node_id:
                raise UsageError(
                    "a node that joined by invitation cannot change its node id, which "
                    "is part of its certificate",
                    hint="rejoin with a new invitation, which gives it a new id: potluck up "
                    "--join INVITATION",
                )
            return _invited(joined, options)
    if new_node_id:
        directory.renew_node_id()
    if given is not None:
        return JoinIdentity(
            secret=given, is_own=False, addresses=options.addresses, is_multicast=False
        )
    if options.addresses:
        raise UsageError(
            "joining a cluster requires its secret or an invitation",
            hint="run potluck invite on a member to get a command for this machine; or set "
            "POTLUCK_SECRET or --secret-file as printed by potluck up --lan on the first "
            "node",
        )
    return JoinIdentity(
        secret=directory.own_secret(), is_own=True, addresses=(), is_multicast=False
    )


def _joined(
    invitation: Invitation, joined: JoinedCluster | None, directory: StateDirectory
) -> JoinedCluster:
    """Join, unless it was by this very invitation that the node has joined before."""
    from potluck.cluster.invitations.invitation import token_digest
    from potluck.cluster.invitations.joining import join

    if joined is not None and joined.token_sha256 == token_digest(invitation.token):
        return joined
    joined = join(invitation, host_name=host_name(), names=_names())
    directory.keep_joined(joined)
    note(
        f"this machine joined the cluster as node {joined.node_id}; from now on, potluck up "
        "is enough"
    )
    return joined


def _invited(joined: JoinedCluster, options: JoinOptions) -> JoinIdentity:
    from potluck.cluster.network.membership import parse_address

    known = tuple(parse_address(each) for each in joined.addresses)
    return JoinIdentity(
        secret=None,
        is_own=False,
        addresses=tuple(dict.fromkeys((*options.addresses, *known))),
        is_multicast=joined.multicast,
    )


def _names() -> tuple[str, ...]:
    from potluck.cli.clients import own_names

    try:
        return tuple(own_names(lan_address()))
    except UsageError:
        return tuple(own_names(LOOPBACK))
