"""HTTP connections that nobody can hold without using them.

uvicorn has no limit on how long a request's head may take to come, nor on how long a client may
leave an answer unread. Both are added to its protocol here; time-outs of bodies are with those who
read them.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from potluck.api.config import ApiLimits

MIN_TAKEN_BYTES = 16 * 2**10
"""What a client must take of an answer in ``ApiLimits.send_seconds``."""


class LimitedProtocol(H11Protocol):
    """A connection with a time-out for heads and one for unread answers.

    The transport's buffer counts as full when it holds anything, so at most one piece of an answer
    waits in this process.
    """

    def __init__(
        self,
        limits: ApiLimits,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self._silent_since = time.monotonic()
        self._head_timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None

    @property
    def is_between_requests(self) -> bool:
        """Whether no request is being read or answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See ``asyncio.Protocol``."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)
        self._start_head_timer()
        if len(self.connections) > self._limits.max_connections:
            self._close_most_silent()

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        super().data_received(data)
        if not self.is_between_requests:
            self._stop_head_timer()
        elif self._head_timer is None:
            self._start_head_timer()

    def on_response_complete(self) -> None:
        """A request has been answered."""
        self._silent_since = time.monotonic()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """See ``asyncio.Protocol``."""
        super().pause_writing()
        self._start_send_timer()

    def resume_writing(self) -> None:
        """See ``asyncio.Protocol``."""
        super().resume_writing()
        self._stop_send_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``asyncio.Protocol``."""
        self._stop_head_timer()
        self._stop_send_timer()
        super().connection_lost(exc)

    def _close_most_silent(self) -> None:
        """Make room: without it, connections that say nothing would keep others out."""
        silent = [
            each
            for each in self.connections
            if isinstance(each, LimitedProtocol) and each.is_between_requests
        ]
        # One between requests there always is: this very connection.
        min(silent, key=lambda each: each._silent_since).transport.abort()

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self._limits.head_seconds, self._on_head_timeout)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _on_head_timeout(self) -> None:
        self._head_timer = None
        if self.is_between_requests:
            self.transport.abort()

    def _start_send_timer(self) -> None:
        left_bytes = self.transport.get_write_buffer_size()
        self._send_timer = self.loop.call_later(
            self._limits.send_seconds, self._on_send_timeout, left_bytes
        )

    def _stop_send_timer(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None

    def _on_send_timeout(self, previous_bytes: int) -> None:
        self._send_timer = None
        if previous_bytes - self.transport.get_write_buffer_size() < MIN_TAKEN_BYTES:
            self.transport.abort()
        else:
            self._start_send_timer()
