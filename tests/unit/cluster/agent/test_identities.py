"""What an invited node keeps of the others for its next start."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest
from support.cluster.calls import A, B, C, PlayedMembership
from support.cluster.node_reports import node_report
from support.virtual_time.run import run_in_virtual_time

from potluck.cluster.agent.identities import keep_addresses
from potluck.cluster.agent.state import StateDirectory
from potluck.cluster.invitations.joined import JoinedCluster
from potluck.cluster.network.membership import Membership
from potluck.cluster.wire.calls import encode
from potluck.types.cluster import NodeId

JOINED = JoinedCluster(
    cluster_id="c",
    node_id=A,
    certificate_pem="",
    private_key_pem="",
    authority_pem="",
    client_chain_pem="",
)


class KeptInMemory(StateDirectory):
    """A state directory that keeps the membership in memory."""

    kept = JOINED

    def joined(self) -> JoinedCluster:
        return self.kept

    def keep_joined(self, joined: JoinedCluster) -> None:
        self.kept = joined


@pytest.mark.parametrize("malformed", ["", "nowhere", "10.0.0.2:7333/x", "10.0.0.2:99999"])
def test_only_addresses_that_the_next_start_can_read_are_kept(
    tmp_path: Path, malformed: str
) -> None:
    addresses = {B: malformed, C: "10.0.0.3:7333"}

    def report(node: NodeId, _: bytes) -> bytes:
        return encode(node_report(node, address=addresses[node]))

    played = PlayedMembership(others={B, C}, answers={"node.report": report})
    state = KeptInMemory(tmp_path)

    async def body() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(60):
                await keep_addresses(cast(Membership, played), state)

    run_in_virtual_time(body())
    assert state.kept.addresses == ("10.0.0.3:7333",)
