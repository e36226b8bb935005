"""Messages of control calls that no node sends."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from potluck.cluster.network.membership.client import CallClient
from potluck.cluster.network.membership.messages import KeySpace, SessionId
from potluck.cluster.network.membership.node_id_conflicts import NodeIdConflicts
from potluck.cluster.network.membership.server import CallServer, MethodTable
from potluck.cluster.network.membership.session import ZenohSession
from potluck.errors import CallError
from potluck.types.cluster import NodeId

NODE, OTHER = NodeId("0" * 16), NodeId("1" * 16)
TOO_DEEP = b"\x91" * 3000 + b"\x90"
MALFORMED = [b"", b"\xc1", b"\x94\xa1\xff\xa1b\x01\xa1m", b"\x95\xa1a\xa1b\x01\xa1m" + TOO_DEEP]


class PlayedSession:
    """A session whose peers answer every query with ``reply``."""

    session_id = SessionId("own")

    def __init__(self, reply: bytes = b"") -> None:
        self._reply = reply
        self.num_dropped = 0

    def query(self, *given: Any, lifetime_seconds: float) -> asyncio.Future[None]:
        given[4](self._reply, b"")
        sent = asyncio.get_running_loop().create_future()
        sent.set_result(None)
        return sent

    def put(self, *given: Any) -> None:
        pass

    def run(self, peer: SessionId, work: Any, *, is_last: bool) -> None:
        self.num_dropped += 1


@pytest.mark.parametrize("message", MALFORMED)
def test_a_malformed_call_is_ignored_and_released(
    message: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    session = PlayedSession()
    server = CallServer(cast(ZenohSession, session), MethodTable(), lambda node: False)
    query = SimpleNamespace(attachment=SimpleNamespace(to_bytes=lambda: message), drop=None)
    with caplog.at_level(logging.WARNING):
        server.on_query(cast(Any, query))
        server.on_cancel(message)
    assert "ignored a malformed call" in caplog.text
    assert "ignored a malformed cancellation" in caplog.text
    assert session.num_dropped == 1


@pytest.mark.parametrize("reply", [*MALFORMED, b"\x93\x01\x00" + TOO_DEEP])
def test_a_malformed_answer_fails_its_own_call(reply: bytes) -> None:
    async def body() -> None:
        keys = KeySpace(cluster_id="c", wire_version=1)
        client = CallClient(cast(ZenohSession, PlayedSession(reply)), keys, NODE)
        with pytest.raises(CallError, match=f"node {OTHER} sent a malformed answer"):
            await client.call(OTHER, SessionId("other"), "method", b"", timeout_seconds=5)

    asyncio.run(body())


def test_a_malformed_run_of_another_agent_is_refused() -> None:
    async def body() -> None:
        conflicts = NodeIdConflicts(
            NODE,
            SessionId("own"),
            "127.0.0.1:1",
            cast(CallClient, None),
            wire_version=1,
            lease_milliseconds=1000,
            on_conflict=lambda error: None,
        )
        run = msgspec.msgpack.encode({"session_id": "a", "address": "b", "seconds": 1.0})
        with pytest.raises(CallError, match="this is not a run of an agent"):
            await conflicts._on_run(b"\x84" + run[1:] + b"\xa1x" + TOO_DEEP)

    asyncio.run(body())
