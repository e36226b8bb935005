"""Invitations of a node whose server cannot be started, or whose disk is full."""

from __future__ import annotations

import asyncio
import errno
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.cluster.edges import authority

from potluck.cluster.agent import inviting
from potluck.cluster.agent.inviting import Inviting
from potluck.cluster.invitations.ledger import Ledger, LedgerFile
from potluck.cluster.network.membership import Membership, parse_address
from potluck.cluster.network.trust.connection_sources import HandedConnections, connection_channel
from potluck.errors import PotluckError
from potluck.types.cluster import NodeId


class PlayedServer:
    """An invitation server in no process."""

    def know(self, invitations: object) -> None:
        pass

    async def close(self) -> None:
        pass


class Members:
    """A membership with routes that lead nowhere."""

    address = parse_address("10.0.0.1:7333")

    def add_route(self, name: str) -> HandedConnections:
        channel, sending = connection_channel()
        sending.close()
        return HandedConnections(channel)

    def remove_route(self, name: str) -> None:
        pass


class FullDisk(LedgerFile):
    """A file on a disk that ``is_full``."""

    is_full = False

    def write(self, ledger: Ledger) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(ledger)


def test_a_node_without_room_or_processes_moves_and_lists_only_invitations_that_it_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cannot_start: list[OSError] = []

    async def start(source: HandedConnections, *given: Any) -> PlayedServer:
        if cannot_start:
            raise cannot_start.pop()
        source.close()
        return PlayedServer()

    async def body() -> None:
        file = FullDisk(tmp_path / "invitations.json")
        identity = cast(
            Any, SimpleNamespace(authority=authority(), cluster_id="c", node_id=NodeId("a" * 16))
        )
        made = Inviting(cast(Membership, Members()), identity, file, multicast=False)
        cannot_start.append(OSError(errno.EAGAIN, "no processes left"))
        with pytest.raises(PotluckError, match="cannot start the invitation server: no processes"):
            await made.invite(num_uses=1, seconds=60)
        file.is_full = True
        with pytest.raises(PotluckError, match="No space left on device"):
            await made.invite(num_uses=1, seconds=60)
        assert not made.ledger.invitations
        file.is_full = False
        await made.invite(num_uses=1, seconds=60)
        file.is_full = True
        await made.moved()
        assert not caplog.text
        cannot_start.append(OSError(errno.EAGAIN, "no processes left"))
        await made.moved()
        assert "cannot start the invitation server: no processes left" in caplog.text
        file.is_full = False
        await made.invite(num_uses=1, seconds=60)
        assert len(made.ledger.invitations) == 2
        await made.close()

    monkeypatch.setattr(inviting, "InvitationServer", SimpleNamespace(start=start))
    with caplog.at_level(logging.WARNING):
        asyncio.run(body())
