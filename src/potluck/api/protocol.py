"""HTTP connections that clients cannot hold open without using them.

uvicorn does not limit how long a request's head may take to arrive, nor how long a client may leave
a response unread. This protocol adds both limits. Time-outs of bodies are enforced by the code that
reads them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from potluck.api.config import ApiLimits
from potluck.host.log_rate import LogRateFilter

_log = logging.getLogger(__name__)
_log.addFilter(LogRateFilter())

MIN_TAKEN_BYTES = 16 * 2**10
"""Minimum that a client must receive of a response in ``ApiLimits.send_seconds``."""

_NEVER_FULL_BYTES = 2**40

RECEIVED_BYTES = 32 * 2**10
"""Maximum read from a connection at a time, instead of asyncio's 256 KiB.

Otherwise, with 64 large bodies arriving at once, one iteration of the event loop would take 16 MiB,
and every stream would wait for it.
"""


class LimitedProtocol(H11Protocol):
    """A connection with time-outs for request heads and for unread responses.

    The transport's buffer counts as full when it contains anything, so at most one piece of a
    response waits in this process.
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
        self.logger = _log  # uvicorn's own has no limit on what clients can make it write
        self._limits = limits
        self.silent_since = time.monotonic()
        self.is_aborted = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None
        self._below_tls: asyncio.WriteTransport | None = None

    @property
    def is_between_requests(self) -> bool:
        """Whether no request is being read or answered."""
        return self.cycle is None or self.cycle.response_complete

    def abort(self) -> None:
        """Close immediately and discard unsent data."""
        self.is_aborted = True
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See ``asyncio.Protocol``."""
        super().connection_made(transport)
        self._below_tls = _hook_below_tls(transport, self.pause_writing, self.resume_writing)
        if self._below_tls is None:
            # asyncio's TLS transport considers a buffer full at ``high``, other transports above
            # it.
            is_tls = transport.get_extra_info("sslcontext") is not None
            transport.set_write_buffer_limits(high=int(is_tls), low=0)
        else:
            # Data passes on to the underlying transport, which does the counting.
            transport.set_write_buffer_limits(high=_NEVER_FULL_BYTES)
            self._below_tls.set_write_buffer_limits(high=0)
        transport.max_size = RECEIVED_BYTES  # type: ignore[attr-defined]
        self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        super().data_received(data)
        if not self.is_between_requests:
            self._stop_head_timer()
        elif self._head_timer is None:
            self._start_head_timer()

    def send_400_response(self, msg: str) -> None:
        """Respond to invalid HTTP; if a response is in progress, it can only be cut off."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.abort()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def on_response_complete(self) -> None:
        """Note that a response is complete."""
        self.silent_since = time.monotonic()
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

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self._limits.head_seconds, self._on_head_timeout)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _on_head_timeout(self) -> None:
        self._head_timer = None
        if self.is_between_requests:
            self.abort()

    def _start_send_timer(self) -> None:
        self._send_timer = self.loop.call_later(
            self._limits.send_seconds, self._on_send_timeout, self._num_unsent_bytes()
        )

    def _num_unsent_bytes(self) -> int:
        below = self._below_tls
        return self.transport.get_write_buffer_size() + (
            0 if below is None else below.get_write_buffer_size()
        )

    def _stop_send_timer(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None

    def _on_send_timeout(self, previous_bytes: int) -> None:
        self._send_timer = None
        if previous_bytes - self._num_unsent_bytes() < MIN_TAKEN_BYTES:
            self.abort()
        else:
            self._start_send_timer()


def _hook_below_tls(
    transport: asyncio.BaseTransport, pause: Callable[[], None], resume: Callable[[], None]
) -> asyncio.WriteTransport | None:
    """Return the transport below TLS, and get notified when its buffer becomes full or empty.

    Returns None for a transport without TLS. asyncio does not forward these events: a whole
    response would count as sent once it is encrypted, and nothing would show how much of it a
    client has received. There is no public API for this.
    """
    protocol = getattr(transport, "_ssl_protocol", None)
    below = getattr(protocol, "_transport", None)
    if protocol is None or not isinstance(below, asyncio.WriteTransport):
        return None
    pause_tls, resume_tls = protocol.pause_writing, protocol.resume_writing

    def pause_both() -> None:
        pause_tls()
        pause()

    def resume_both() -> None:
        resume_tls()
        if not below.get_write_buffer_size():  # TLS had more to send
            resume()

    protocol.pause_writing, protocol.resume_writing = pause_both, resume_both
    return below
