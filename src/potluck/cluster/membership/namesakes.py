"""Other agents under this node's own id: an earlier run of it that is not forgotten yet, or a copy.

A state directory that was copied (with a whole SD card, as a rule) makes two nodes of one id. The
agent that has run longer goes on undisturbed; the other one has to leave. An earlier run of the
same agent leaves a token too, which answers nothing, and goes within the lease.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import msgspec

from potluck.cluster.membership.client import CallClient
from potluck.cluster.membership.keys import SessionId, Sighting
from potluck.cluster.membership.server import MethodTable
from potluck.errors import CallError, NodeIdInUseError
from potluck.types.cluster import NodeId

_log = logging.getLogger(__name__)

_METHOD = "membership.run"

_MORE_SECONDS = 0.5
"""Beyond the lease: a token that is still there then is of an agent that runs."""

_AGAIN_SECONDS = 0.05
"""Before it is asked again; its token may be known before the way to it is."""

_SURELY_OLDER_SECONDS = 1.0
"""Answers take time. Where two started at about the same time, their session ids decide."""


class _Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run of an agent: where it listens, and for how long."""

    address: str
    seconds: float


class Namesakes:
    """The other sessions of this node's id. For use in the session's loop.

    ``on_conflict`` is called once, with what to tell the user, when this node has to leave.
    """

    def __init__(
        self,
        node_id: NodeId,
        session_id: SessionId,
        address: str,
        client: CallClient,
        *,
        wire_version: int,
        lease_milliseconds: int,
        on_conflict: Callable[[NodeIdInUseError], None],
    ) -> None:
        self._node_id = node_id
        self._session_id = session_id
        self._address = address
        self._client = client
        self._wire_version = wire_version
        self._patience_seconds = lease_milliseconds / 1000 + _MORE_SECONDS
        self._on_conflict = on_conflict
        self._started = time.monotonic()
        self._examinations: dict[Sighting, asyncio.Task[None]] = {}

    def register(self, methods: MethodTable) -> None:
        """Have this run be asked about."""
        methods.register(_METHOD, self._on_run)

    def appeared(self, sighting: Sighting) -> None:
        """A token under this node's id; its own does not count."""
        is_other = sighting.node_id == self._node_id and sighting.session_id != self._session_id
        if is_other and sighting not in self._examinations:
            self._examinations[sighting] = asyncio.create_task(self._examine(sighting))

    def vanished(self, sighting: Sighting) -> None:
        """It is gone: it was an earlier run, or a copy has left."""
        examination = self._examinations.pop(sighting, None)
        if examination is not None:
            examination.cancel()

    def close(self) -> None:
        """Ask no more: this node leaves."""
        for examination in self._examinations.values():
            examination.cancel()
        self._examinations.clear()

    async def _on_run(self, _: bytes) -> bytes:
        return msgspec.msgpack.encode(self._run())

    def _run(self) -> _Run:
        return _Run(address=self._address, seconds=time.monotonic() - self._started)

    async def _examine(self, sighting: Sighting) -> None:
        deadline = time.monotonic() + self._patience_seconds
        other = None
        while other is None and (left := deadline - time.monotonic()) > 0:
            if sighting.wire_version == self._wire_version:
                other = await self._ask(sighting.session_id, left)
            await asyncio.sleep(_AGAIN_SECONDS if other is None else 0)
        where = "that does not answer" if other is None else f"at {other.address}"
        if self._stays(sighting.session_id, other):
            _log.warning(
                "another agent, %s, has this node's id %s: its state directory is probably a copy "
                "of this one. It has to leave, and to start with --new-node-id",
                where,
                self._node_id,
            )
            return
        self._on_conflict(
            NodeIdInUseError(
                self._node_id,
                f"node id {self._node_id} is in use by the agent {where}: this state directory was "
                "probably copied",
                hint="potluck up --new-node-id gives this node an id of its own",
            )
        )

    async def _ask(self, session_id: SessionId, seconds: float) -> _Run | None:
        try:
            answer = await self._client.call(
                self._node_id, session_id, _METHOD, b"", timeout_seconds=seconds
            )
            return msgspec.msgpack.decode(answer, type=_Run)
        except (CallError, msgspec.DecodeError) as error:
            _log.debug("another session of this node's id: %s", error)
            return None

    def _stays(self, session_id: SessionId, other: _Run | None) -> bool:
        """Whether this run is the one that goes on; it asks itself, and so does the other one.

        One that does not answer is taken to be older than a run that has only just begun.
        """
        own_seconds = self._run().seconds
        if other is None:
            return own_seconds > 2 * self._patience_seconds
        if abs(own_seconds - other.seconds) < _SURELY_OLDER_SECONDS:
            return self._session_id < session_id
        return own_seconds > other.seconds
