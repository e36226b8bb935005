"""The identity of this node at its start, and the addresses of the others for the next start."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace

from potluck.cluster.agent.config import AgentConfig
from potluck.cluster.agent.removals import read_removals
from potluck.cluster.agent.state import StateDirectory
from potluck.cluster.coordinator.survey import ask_report
from potluck.cluster.invitations.identity import (
    Identity,
    identity_by_invitation,
    identity_by_secret,
)
from potluck.cluster.invitations.joined import with_addresses
from potluck.cluster.network.membership import Membership, parse_address
from potluck.cluster.network.trust.pem_files import PemPaths
from potluck.cluster.network.trust.removals import encode_lines, is_genuine
from potluck.errors import PotluckError, RemovedFromClusterError, UsageError
from potluck.host.private_files import replace_file

_log = logging.getLogger(__name__)

_FIRST_SECONDS = 5.0
_ADDRESS_SECONDS = 600.0
"""How often the addresses of the others are recorded; they rarely change."""


def own_identity(config: AgentConfig, state: StateDirectory) -> tuple[Identity, PemPaths]:
    """Return this node's identity, and the paths of its credentials for Zenoh.

    Raises ``UsageError`` without a secret or a membership, and ``RemovedFromClusterError``.
    """
    if config.secret is not None:
        found = identity_by_secret(config.secret, state.node_id(), [config.listen.host])
    elif (joined := state.joined()) is not None:
        found = identity_by_invitation(joined)
    else:
        raise UsageError(
            "this node has neither the cluster's secret nor an invitation",
            hint="run potluck invite on a member for a command that adds it",
        )
    paths = state.write_credentials(found.credentials)
    _keep_genuine(found, paths, state)
    credentials = replace(found.credentials, removed_path=str(paths.removed))
    return replace(found, credentials=credentials), paths


def _keep_genuine(identity: Identity, paths: PemPaths, state: StateDirectory) -> None:
    """Drop entries of other clusters from the file of removed nodes, such as after a new secret."""
    with state.errors("cannot store the list of removed nodes"):
        try:
            found = read_removals(paths.removed)
        except FileNotFoundError:
            return
        authority = identity.credentials.authority_pem
        genuine = [each for each in found if is_genuine(each, identity.cluster_id, authority)]
        if len(genuine) != len(found):
            replace_file(paths.removed, encode_lines(genuine))
    if any(each.node_id == identity.node_id for each in genuine):
        raise RemovedFromClusterError(identity.node_id)


async def keep_addresses(membership: Membership, state: StateDirectory) -> None:
    """Store the addresses of members, so that an invited node finds them at its next start."""
    await asyncio.sleep(_FIRST_SECONDS)
    while True:
        addresses: list[str] = []
        for node in sorted(membership.nodes()):
            with suppress(PotluckError):
                report = await ask_report(membership, node)
                addresses.append(str(parse_address(report.address)))
        try:
            joined = state.joined() if addresses else None
            if joined is not None and (after := with_addresses(joined, addresses)) != joined:
                state.keep_joined(after)
        except PotluckError as error:
            _log.warning("%s", error.message)
        await asyncio.sleep(_ADDRESS_SECONDS)
