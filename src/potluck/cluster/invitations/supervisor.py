"""The invitation server as seen by its agent. Asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Self

from potluck.cluster.background import cancel_all
from potluck.cluster.invitations.channel import (
    MAX_LINE_BYTES,
    CurrentInvitations,
    KnownInvitation,
    LogLine,
    Question,
    Reply,
    Settings,
    decode_from_server,
    encoded,
)
from potluck.host.python_child import ConnectedChild, start_connected_child

SERVER_MODULE = "potluck.cluster.invitations"
_log = logging.getLogger(__name__)

_END_SECONDS = 1.0
_RESTART_SECONDS = 0.5

AnswerQuestion = Callable[[Question], Reply]


class InvitationServer:
    """Made by :meth:`start`; restarts the process if it ends. For its own loop only."""

    def __init__(
        self,
        source: socket.socket,
        settings: Settings,
        answer: AnswerQuestion,
        child: ConnectedChild,
    ) -> None:
        self._source = source
        self._settings = settings
        self._answer = answer
        self._child = child
        self._known = CurrentInvitations(invitations=())
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, source: socket.socket, settings: Settings, answer: AnswerQuestion) -> Self:
        """Serve connections from ``source``, which belongs to this object if it returns.

        ``answer`` answers what only the agent can. Raise ``OSError``.
        """
        return cls(source, settings, answer, await _spawn(source, settings))

    def know(self, invitations: Sequence[KnownInvitation]) -> None:
        """Make the process use these invitations from now on."""
        self._known = CurrentInvitations(invitations=tuple(invitations))
        self._child.writer.write(encoded(self._known))

    async def close(self) -> None:
        """Stop, aborting what is being served. Idempotent; takes about a second at worst."""
        await cancel_all([self._listening])
        self._source.close()
        await self._child.end(timeout_seconds=_END_SECONDS)

    async def _listen(self) -> None:
        while True:
            with contextlib.suppress(OSError, ValueError):  # or a malformed line
                async for line in self._child.reader:
                    self._take(line)
            await self._child.end(timeout_seconds=_END_SECONDS)
            status = self._child.process.returncode
            _log.error("the invitation server exited with status %s", status)
            await asyncio.sleep(_RESTART_SECONDS)
            try:
                self._child = await _spawn(self._source, self._settings)
                self._child.writer.write(encoded(self._known))
            except OSError as error:
                _log.error("the invitation server cannot be started: %s", error.strerror)

    def _take(self, line: bytes) -> None:
        match decode_from_server(line):
            case LogLine(text=text):
                _log.warning("%s", text)
            case Question() as question:
                self._child.writer.write(encoded(self._reply(question)))

    def _reply(self, question: Question) -> Reply:
        try:
            return self._answer(question)
        except Exception:  # noqa: BLE001 - the newcomer would wait until it gives up
            _log.exception("could not answer a newcomer")
            return Reply(
                number=question.number,
                status=500,
                content_type="application/json",
                body=b'{"error": {"message": "internal error of the node that invites", '
                b'"hint": "its log has the details"}}\n',
            )


async def _spawn(source: socket.socket, settings: Settings) -> ConnectedChild:
    number = source.fileno()
    child = await start_connected_child(
        SERVER_MODULE, str(number), descriptors=[number], max_line_bytes=MAX_LINE_BYTES
    )
    child.writer.write(encoded(settings))
    return child
