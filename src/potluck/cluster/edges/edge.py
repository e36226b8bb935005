"""The two ends of an edge after the hello: one sends frames, the other receives them.

Each end is used by one thread at a time, the thread that computes. OpenSSL allows no read and
write on one connection at once; CPython does not keep them apart (python/cpython#143756), and its
one attempt at that, 3.13.6, let them wait for each other (#137583). An edge goes one way, so no end
ever needs both; where a connection is used both ways, to measure it, one thread does that in turn.
``close`` alone may come from any thread; it ends what the other one waits for.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import termios
import threading
from collections.abc import Callable
from dataclasses import dataclass

from potluck.cluster.edges.frames import (
    MAX_COUNT,
    PREAMBLE_BYTES,
    SCOPE_BYTES,
    Frame,
    FrameKind,
    Scope,
    decode_preamble,
    decode_rest,
    describe_difference,
    encode_preamble_into,
    encode_scope,
)
from potluck.cluster.edges.path_figures import PathFigures, path_figures
from potluck.cluster.trust.handshakes import describe
from potluck.errors import EdgeClosedError, EdgeError
from potluck.types.cluster import NodeId
from potluck.types.step import StepId

_FIRST_BUFFER_BYTES = 64 * 1024
"""Holds the frames of decoding; prefill grows the buffer to what it needs."""

_SMALL_BYTES = 16 * 1024
"""A frame that fits in one TLS record."""

_MAX_FILLED = 4
"""What lies in the kernel's buffer counts several times as much with its overhead: a quarter of the
buffer in bytes of frames never fills it (``SO_RCVBUF`` and ``SO_SNDBUF`` in ``socket(7)``)."""

_WAKE_SECONDS = 2.0
"""For a thread to leave its call on a connection that was shut down: microseconds, as a rule."""

_INTEGER = struct.Struct("i")
_NO_INTEGER = bytes(_INTEGER.size)

_PAYLOAD_ALIGNMENT = 16
"""Of a received payload in memory: that of ``malloc``, hence of a bytearray's start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeLimits:
    """How large frames can get, from the plan. A buffer never grows beyond."""

    max_header_bytes: int
    max_payload_bytes: int

    def __post_init__(self) -> None:
        for count in (self.max_header_bytes, self.max_payload_bytes):
            if not 0 <= count <= MAX_COUNT:
                raise ValueError(f"{count} bytes do not fit in a frame")


class _Locks:
    """The locks of a connection: of one end, or of the two ends of ``both_ends``."""

    def __init__(self) -> None:
        self.using = threading.Lock()  # held during a call that may wait
        self.descriptor = threading.Lock()  # held while it is shut down or given up


class _End:
    """A connected socket, whose it is, and how it is closed."""

    def __init__(
        self,
        connection: socket.socket,
        peer: NodeId,
        scope: Scope,
        limits: EdgeLimits,
        *,
        locks: _Locks | None = None,
    ) -> None:
        """Own ``connection``, which is blocking and connected."""
        locks = _Locks() if locks is None else locks
        self.peer_node_id = peer
        self.scope = scope
        self._connection = connection
        self._scope = encode_scope(scope)
        self._limits = limits
        self._using = locks.using
        self._descriptor = locks.descriptor
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Whether either side has closed it, as far as is known here."""
        return self._is_closed

    def path(self) -> PathFigures | None:
        """Return what the kernel has seen of the way to the peer; from any thread.

        None if the end is closed, or the kernel is too old to say.
        """
        with self._descriptor:
            return None if self._connection.fileno() < 0 else path_figures(self._connection)

    def wake(self) -> None:
        """Close as far as that takes no time; ``close`` is to follow. From any thread."""
        self._is_closed = True
        with self._descriptor:
            _shut_down(self._connection)

    def close(self) -> None:
        """Close, from any thread: what waits in the other one ends with ``EdgeClosedError``."""
        self.wake()
        # Then no thread is in a call with the descriptor any more. One that the shutdown does not
        # wake keeps it, and gives it up itself.
        if self._using.acquire(timeout=_WAKE_SECONDS):
            try:
                self._give_up()
            finally:
                self._using.release()

    def _failed(self, reason: str) -> EdgeError:
        """Close, from inside a call, and say why; the call holds the lock."""
        if self._is_closed:
            return EdgeClosedError(self.peer_node_id, "closed")
        self._give_up()
        return EdgeError(self.peer_node_id, reason)

    def _give_up(self) -> None:
        self._is_closed = True
        with self._descriptor:
            self._connection.close()


class OutgoingEdge(_End):
    """The sending end."""

    def __init__(
        self,
        connection: socket.socket,
        peer: NodeId,
        scope: Scope,
        limits: EdgeLimits,
        *,
        locks: _Locks | None = None,
    ) -> None:
        super().__init__(connection, peer, scope, limits, locks=locks)
        self._buffer = memoryview(bytearray(_FIRST_BUFFER_BYTES))

    def takes_at_once(self, num_bytes: int) -> bool:
        """Whether ``send`` would return without waiting for the peer, with so large a header.

        True only for small frames, while the kernel has room: the buffer is far from full of what
        the peer has not acknowledged. For the thread that sends.
        """
        if num_bytes > _SMALL_BYTES:
            return False
        try:
            unsent = fcntl.ioctl(self._connection, termios.TIOCOUTQ, _NO_INTEGER)
            room = self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        except (OSError, ValueError):  # closed
            return False
        num_unsent: int = _INTEGER.unpack(unsent)[0]
        return _MAX_FILLED * (num_unsent + num_bytes + PREAMBLE_BYTES) <= room

    def send(
        self,
        kind: FrameKind,
        step_id: StepId,
        header: bytes | bytearray | memoryview = b"",
        payload: bytes | bytearray | memoryview = b"",
    ) -> None:
        """Send a frame; returns when the kernel has taken it all.

        ``payload`` is C-contiguous, of any item type; it is copied. Raises ``ValueError`` if it or
        the header is over the edge's limits, and nothing is sent then; ``EdgeClosedError`` if the
        edge is closed; ``EdgeError``, after closing it, if the connection failed.
        """
        header_bytes = memoryview(header).nbytes
        payload_bytes = memoryview(payload).nbytes
        if header_bytes > self._limits.max_header_bytes:
            raise ValueError(f"a header of {header_bytes} bytes is over the edge's limit")
        if payload_bytes > self._limits.max_payload_bytes:
            raise ValueError(f"a payload of {payload_bytes} bytes is over the edge's limit")
        payload_start = PREAMBLE_BYTES + header_bytes
        num_bytes = payload_start + payload_bytes
        with self._using:
            if self._is_closed:
                raise EdgeClosedError(self.peer_node_id, "closed")
            if num_bytes > len(self._buffer):
                self._buffer = memoryview(bytearray(_grown(num_bytes, self._limits)))
            buffer = self._buffer
            encode_preamble_into(buffer, self._scope, kind, step_id, header_bytes, payload_bytes)
            buffer[PREAMBLE_BYTES:payload_start] = header
            if payload_bytes:
                buffer[payload_start:num_bytes] = memoryview(payload).cast("B")
            try:
                self._connection.sendall(buffer[:num_bytes])
            except OSError as error:
                raise self._failed(describe(error)) from error


class IncomingEdge(_End):
    """The receiving end."""

    def __init__(
        self,
        connection: socket.socket,
        peer: NodeId,
        scope: Scope,
        limits: EdgeLimits,
        *,
        locks: _Locks | None = None,
    ) -> None:
        super().__init__(connection, peer, scope, limits, locks=locks)
        self._preamble = bytearray(PREAMBLE_BYTES)
        self._buffer = memoryview(bytearray(_FIRST_BUFFER_BYTES))

    def receive(
        self,
        silence_seconds: float | None = None,
        on_silence: Callable[[], float] | None = None,
    ) -> Frame:
        """Wait for the next frame; None waits as long as the connection stands.

        With ``on_silence`` it goes on waiting after ``silence_seconds``, for as long as that
        returns, and so on; ``TimeoutError`` raised there ends the wait as silence does without.

        Its header and payload lie in a buffer of the edge, the payload at a multiple of 16 bytes,
        and are overwritten by the next call. Raises ``EdgeClosedError`` when either side closed
        the edge between frames; ``EdgeError``, after closing it, when the connection failed or
        the peer sent what has no place here, or nothing at all for ``silence_seconds``.
        """
        with self._using:
            if self._is_closed:
                raise EdgeClosedError(self.peer_node_id, "closed")
            try:
                if self._connection.gettimeout() != silence_seconds:
                    self._connection.settimeout(silence_seconds)
                return self._receive(on_silence)
            except OSError as error:
                raise self._failed(describe(error)) from error
            except ValueError as error:
                raise self._failed(str(error)) from error

    def _receive(self, on_silence: Callable[[], float] | None) -> Frame:
        preamble = self._preamble
        num_read = read_into(self._connection, memoryview(preamble), on_silence)
        if num_read == 0:
            if self._is_closed:
                raise EdgeClosedError(self.peer_node_id, "closed")
            self._give_up()
            raise EdgeClosedError(self.peer_node_id, "closed by the peer")
        if num_read < PREAMBLE_BYTES:
            raise ValueError(_CUT_OFF)
        if preamble[:SCOPE_BYTES] != self._scope:
            found = decode_preamble(preamble).scope
            raise ValueError(describe_difference(self.scope, found))
        kind, step_id, header_bytes, payload_bytes = decode_rest(preamble)
        check_counts(header_bytes, payload_bytes, self._limits)
        start = -header_bytes % _PAYLOAD_ALIGNMENT
        payload_start = start + header_bytes
        end = payload_start + payload_bytes
        if end > len(self._buffer):
            # Not resized: the last frame's views may still point into the old one.
            self._buffer = memoryview(bytearray(_grown(end, self._limits)))
        view = self._buffer[:end]
        if read_into(self._connection, view[start:], on_silence) < end - start:
            raise ValueError(_CUT_OFF)
        return Frame(
            kind=kind,
            deployment=self.scope.deployment,
            epoch=self.scope.epoch,
            step_id=step_id,
            header=view[start:payload_start],
            payload=view[payload_start:],
        )


def both_ends(
    connection: socket.socket, peer: NodeId, scope: Scope, limits: EdgeLimits
) -> tuple[OutgoingEdge, IncomingEdge]:
    """Return both ends on one connection, for one thread that sends and receives in turn.

    Closing either of them closes the connection.
    """
    locks = _Locks()
    return (
        OutgoingEdge(connection, peer, scope, limits, locks=locks),
        IncomingEdge(connection, peer, scope, limits, locks=locks),
    )


_CUT_OFF = "it closed the connection in the middle of a frame"


def read_into(
    connection: socket.socket, view: memoryview, on_silence: Callable[[], float] | None = None
) -> int:
    """Fill ``view``; returns how many bytes came before the peer closed, if it did.

    ``on_silence``: see ``IncomingEdge.receive``.
    """
    num_read = 0
    while num_read < len(view):
        try:
            count = connection.recv_into(view[num_read:])
        except TimeoutError:
            if on_silence is None:
                raise
            connection.settimeout(on_silence())
            continue
        if count == 0:
            break
        num_read += count
    return num_read


def check_counts(header_bytes: int, payload_bytes: int, limits: EdgeLimits) -> None:
    """Raise ``ValueError`` if a frame says that it is larger than the limits."""
    if header_bytes > limits.max_header_bytes:
        raise ValueError(f"it announced a header of {header_bytes} bytes, over the limit")
    if payload_bytes > limits.max_payload_bytes:
        raise ValueError(f"it announced a payload of {payload_bytes} bytes, over the limit")


def _shut_down(connection: socket.socket) -> None:
    """End both directions and wake whoever waits, without giving up the descriptor.

    Not ``SSLSocket.shutdown``, which also forgets the TLS state: what the other thread sent
    next would go out in the clear.
    """
    with contextlib.suppress(OSError):  # The peer was first, or it is closed.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _most(limits: EdgeLimits) -> int:
    return PREAMBLE_BYTES + _PAYLOAD_ALIGNMENT + limits.max_header_bytes + limits.max_payload_bytes


def _grown(num_bytes: int, limits: EdgeLimits) -> int:
    """A size that holds ``num_bytes``, with room for more, within the limits."""
    return min(2 * num_bytes, _most(limits))
