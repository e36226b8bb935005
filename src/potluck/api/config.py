"""Where the HTTP address listens, who may use it, and how much of it anybody may take."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from potluck.api.keys import ApiKeys
from potluck.api.system_lines import KNOWN_CHANGING_LINES


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiLimits:
    """What clients may take. Times are seconds.

    Bodies: one may have ``max_body_bytes``, all that are held at once ``max_buffered_bytes``, and
    each must have come after ``body_seconds``.

    Requests: ``max_concurrent_requests`` are worked on, ``max_queued_requests`` wait for that, and
    others are told to come again, after ``retry_after_seconds`` or more. A request may have
    ``max_sequences`` (prompts times ``n``), and a prompt ``max_prompt_tokens`` (None: what the
    context holds).

    Connections: at most ``max_connections``, and at most half of the descriptors that the process
    may have; beyond it the one that has been silent for longest is closed, and where none is
    silent the new one is refused. A request's head must have come after ``head_seconds``, a
    connection between requests may be silent for ``idle_seconds``, and a client that does not read
    must have taken 16 KiB, or all there is, every ``send_seconds``. A stream that has had nothing
    to send for ``silence_seconds`` sends a comment.

    The end: requests may go on for ``shutdown_seconds``, then they end with an error.
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
    """``host`` is an IP address or a name of this machine; ``port`` 0 takes a free one.

    Without ``keys`` everybody who reaches the address may use it, so it must be a loopback one.

    Lines of system messages that begin with one of ``dropped_system_lines`` do not reach the model.
    Web pages of ``cors_origins`` may use the address, as browsers write them in ``Origin``. With
    ``tls`` clients speak HTTPS.
    """

    host: str = "127.0.0.1"
    port: int = 0
    keys: ApiKeys | None = None
    limits: ApiLimits = field(default_factory=ApiLimits)
    dropped_system_lines: tuple[str, ...] = KNOWN_CHANGING_LINES
    cors_origins: frozenset[str] = frozenset()
    tls: ssl.SSLContext | None = None
