"""Configuration of the HTTP API: address, keys and limits."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from potluck.api.keys import ApiKeys
from potluck.api.system_lines import KNOWN_CHANGING_LINES


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiLimits:
    """Limits on clients. Times are in seconds.

    Bodies: ``max_body_bytes`` is the limit of one, ``max_buffered_bytes`` that of all held at once.
    Each must arrive within ``body_seconds``.

    Requests: ``max_concurrent_requests`` run at once and ``max_queued_requests`` wait. Others are
    rejected with a Retry-After of at least ``retry_after_seconds``. A request can have
    ``max_sequences`` sequences (prompts times ``n``), and a prompt ``max_prompt_tokens`` (None:
    limited by the context length).

    Connections: at most ``max_connections``, and at most half of the process's file descriptors.
    Beyond that limit the connection that has been idle longest is closed; if none is idle, the new
    one is refused. A request's head must arrive within ``head_seconds``, an idle connection is
    closed after ``idle_seconds``, and a client must receive 16 KiB, or all pending data, every
    ``send_seconds``. A stream with nothing to send for ``silence_seconds`` sends a comment.

    Shutdown: running requests have ``shutdown_seconds`` to complete, then they end with an error.
    """

    max_body_bytes: int = 4 * 2**20
    max_buffered_bytes: int = 32 * 2**20
    body_seconds: float = 30.0
    max_concurrent_requests: int = 64
    max_queued_requests: int = 256
    retry_after_seconds: int = 2
    max_sequences: int = 16
    max_prompt_tokens: int | None = None
    max_connections: int = 512
    head_seconds: float = 10.0
    idle_seconds: int = 15
    send_seconds: float = 20.0
    silence_seconds: float = 5.0
    shutdown_seconds: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiConfig:
    """The address to listen on, and what the API allows. ``host`` is an IP address or host name;
    ``port`` 0 picks a free port.

    Without ``keys``, anyone who can connect can use the API, so the address must be loopback.

    Lines of system messages that start with one of ``dropped_system_lines`` are removed before the
    model sees them. Web pages of ``cors_origins``, given as browsers send them in ``Origin``, can
    use the API. With ``tls``, the server speaks HTTPS. With ``strict_tools``, requests with
    tools that only another server executes are refused; otherwise such tools are ignored.
    """

    host: str = "127.0.0.1"
    port: int = 0
    keys: ApiKeys | None = None
    limits: ApiLimits = field(default_factory=ApiLimits)
    dropped_system_lines: tuple[str, ...] = KNOWN_CHANGING_LINES
    cors_origins: frozenset[str] = frozenset()
    tls: ssl.SSLContext | None = None
    strict_tools: bool = False
