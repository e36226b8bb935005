"""The two ends of an established edge: one sends frames, the other receives them.

Each end is used by one thread at a time, the thread that computes. OpenSSL does not allow
concurrent reads and writes on one connection. CPython does not serialize them
(python/cpython#143756), and its one attempt to, in 3.13.6, could deadlock (#137583). An edge is
one-way, so no end ever needs both; where a connection is used in both directions, to measure it,
one thread does so in turn. Only ``close`` may be called from any thread; it interrupts the other.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import ssl
import struct
import termios
import threading
from collections.abc import Callable
from dataclasses import dataclass

from potluck.cluster.network.edges.frames import (
    NUMBER_BYTES,
    PREAMBLE_BYTES,
    SCOPE_BYTES,
    SLICE_BYTES,
    Frame,
    FrameKind,
    Scope,
    decode_preamble,
    decode_rest,
    decode_slice,
    describe_difference,
    encode_preamble_into,
    encode_scope,
    encode_slice_into,
)
from potluck.cluster.network.edges.path_figures import PathFigures, path_figures
from potluck.cluster.network.trust.handshakes import describe
from potluck.errors import EdgeClosedError, EdgeError
from potluck.scheduling.frame_limits import EdgeLimits
from potluck.types.cluster import NodeId
from potluck.types.step import StepId

_FIRST_BUFFER_BYTES = 64 * 1024
"""The initial buffer size, enough for frames of decoding; it grows for prefill."""

MAX_SLICE_BYTES = _FIRST_BUFFER_BYTES - SLICE_BYTES
"""The most bytes of a slice's payload: its frame fills the initial buffer, and four TLS records."""

_SMALL_BYTES = 16 * 1024
"""The size of a frame that fits in one TLS record."""

_MAX_FILLED = 4
"""Data in the kernel's buffer takes several times its size with overhead: a quarter of the buffer
in bytes of frames never fills it (``SO_RCVBUF`` and ``SO_SNDBUF`` in ``socket(7)``)."""

_WAKE_SECONDS = 2.0
"""How long a thread may take to return from a call on a connection that was shut down; usually it
takes microseconds."""

_INTEGER = struct.Struct("i")
_NO_INTEGER = bytes(_INTEGER.size)

_PAYLOAD_ALIGNMENT = 16
"""The alignment of a received payload in memory, which is that of ``malloc``, hence of a bytearray.
"""


class _Locks:
    """The locks of a connection: of one end, or of the two ends of ``both_ends``."""

    def __init__(self) -> None:
        self.using = threading.Lock()  # held during a call that may block
        self.descriptor = threading.Lock()  # held while it is shut down or closed


class _End:
    """A connected socket, its peer, and how it is closed."""

    def __init__(
        self,
        connection: socket.socket,
        peer: NodeId,
        scope: Scope,
        limits: EdgeLimits,
        *,
        locks: _Locks | None = None,
    ) -> None:
        """Take ownership of ``connection``, which is blocking and connected."""
        locks = _Locks() if locks is None else locks
        self.peer_node_id = peer
        self.scope = scope
        self._connection = connection
        self._scope = encode_scope(scope)
        self._limits = limits
        self._using = locks.using
        self._descriptor = locks.descriptor
        self._buffer = memoryview(bytearray(_FIRST_BUFFER_BYTES))
        self._is_closed = False

    def path(self) -> PathFigures | None:
        """Return the kernel's figures of the path to the peer. Thread-safe.

        None if the end is closed, or the kernel is too old.
        """
        with self._descriptor:
            return None if self._connection.fileno() < 0 else path_figures(self._connection)

    def wake(self) -> None:
        """Interrupt the connection without blocking; call ``close`` afterwards. Thread-safe."""
        self._is_closed = True
        with self._descriptor:
            _shut_down(self._connection)

    def close(self) -> None:
        """Close. Thread-safe: a call that another thread is in raises ``EdgeClosedError``."""
        self.wake()
        # After this no thread is in a call with the descriptor. A thread that the shutdown does
        # not wake keeps the descriptor, and closes it itself.
        if self._using.acquire(timeout=_WAKE_SECONDS):
            try:
                self._give_up()
            finally:
                self._using.release()

    def _failed(self, reason: str) -> EdgeError:
        """Close from inside a call, which holds the lock, and return the error to raise."""
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

    def reserve(self, num_bytes: int) -> None:
        """Enlarge the send buffer so that ``num_bytes`` of frames can be sent without waiting for
        the peer.
        """
        with self._descriptor, contextlib.suppress(OSError):  # closed: the next send reports it
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * num_bytes)

    def takes_at_once(self, num_bytes: int) -> bool:
        """Return whether sending a frame with a header of ``num_bytes`` would not block.

        True only for small frames while unacknowledged data is far from filling the kernel's
        buffer. For the thread that sends.
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
        """Send a frame; returns when the kernel has accepted all of it.

        ``payload`` is C-contiguous, of any item type; it is copied. Raises ``ValueError``, without
        sending anything, if it or the header exceeds the edge's limits; ``EdgeClosedError`` if the
        edge is closed; and ``EdgeError``, after closing it, if the connection fails.
        """
        header_bytes = memoryview(header).nbytes
        payload_bytes = memoryview(payload).nbytes
        if header_bytes > self._limits.max_header_bytes:
            limit = self._limits.max_header_bytes
            raise ValueError(
                f"a header of {header_bytes} bytes is over the edge's limit of {limit}"
            )
        if payload_bytes > self._limits.max_payload_bytes:
            limit = self._limits.max_payload_bytes
            raise ValueError(
                f"a payload of {payload_bytes} bytes is over the edge's limit of {limit}"
            )
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

    def send_slice(self, step_id: StepId, number: int, payload: memoryview) -> None:
        """Send a frame of kind ``SLICE`` with at most ``MAX_SLICE_BYTES``; see ``send``.

        A faster version of ``send``: a step has about a hundred slices.
        """
        payload_bytes = len(payload)
        num_bytes = SLICE_BYTES + payload_bytes
        with self._using:
            if self._is_closed:
                raise EdgeClosedError(self.peer_node_id, "closed")
            buffer, connection = self._buffer, self._connection
            buffer[:SCOPE_BYTES] = self._scope
            encode_slice_into(buffer, step_id, number, payload_bytes)
            buffer[SLICE_BYTES:num_bytes] = payload
            try:
                num_sent = connection.send(buffer[:num_bytes])
                if num_sent < num_bytes:
                    connection.sendall(buffer[num_sent:num_bytes])
            except OSError as error:
                raise self._failed(describe(error)) from error


@dataclass(frozen=True, slots=True)
class _Arriving:
    """A frame whose preamble has been received. The rest goes to ``view``, from ``start`` on."""

    kind: FrameKind
    step_id: StepId
    view: memoryview
    start: int
    payload_start: int


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
        self._slice_start = memoryview(bytearray(SLICE_BYTES))
        self._num_read = 0  # bytes of the incoming frame
        self._arriving: _Arriving | None = None  # once its preamble has been received

    def receive(
        self,
        silence_seconds: float | None = None,
        on_silence: Callable[[], float] | None = None,
    ) -> Frame:
        """Wait for the next frame; ``silence_seconds`` None waits as long as the connection is
        open.

        With ``on_silence``, it is called after ``silence_seconds`` and returns how much longer to
        wait, and so on; a ``TimeoutError`` that it raises ends the wait as silence does without it.
        The header and payload returned are views of the edge's buffer, the payload aligned to 16
        bytes, and are overwritten by the next call. Raises ``EdgeClosedError`` if either side
        closed the edge between frames; ``EdgeError``, after closing it, if the connection failed,
        the peer sent something unexpected, or it sent nothing for ``silence_seconds``.
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

    def receive_slice(
        self,
        step_id: StepId,
        number: int,
        payload: memoryview,
        spin: Callable[[int], None] | None = None,
        check_abandoned: Callable[[StepId], None] | None = None,
    ) -> memoryview | None:
        """Receive the slice ``number`` of a step into ``payload``; see ``receive``.

        ``spin`` is called with the descriptor before this blocks. If the peer cannot compute the
        step, return the header of the frame in which it says so. Frames of earlier steps are
        dropped; ``check_abandoned`` is called with one that the peer could not compute, and may
        raise ``ValueError``. The last frame returned by ``receive`` stays valid. Raises
        ``EdgeError``, after closing the edge, for any other frame.
        """
        start = self._slice_start
        with self._using:
            if self._is_closed:
                raise EdgeClosedError(self.peer_node_id, "closed")
            try:
                while True:
                    if spin is not None:
                        spin(self._connection.fileno())
                    num_read = self._connection.recv_into(start)
                    if num_read < SLICE_BYTES:
                        self._fill_slice(start[num_read:], is_first=num_read == 0)
                    if start[:SCOPE_BYTES] != self._scope:
                        raise ValueError(
                            describe_difference(self.scope, decode_preamble(start).scope)
                        )
                    kind, found_id, header_bytes, payload_bytes, found = decode_slice(start)
                    if (kind, found_id, found, payload_bytes) == (
                        FrameKind.SLICE,
                        step_id,
                        number,
                        len(payload),
                    ):
                        self._fill_slice(payload)
                        return None
                    header = self._not_that_slice(kind, header_bytes, payload_bytes)
                    if found_id < step_id:  # which of the two was abandoned
                        if kind == FrameKind.ABANDON and check_abandoned is not None:
                            check_abandoned(found_id)
                        continue
                    if found_id == step_id and kind == FrameKind.ABANDON:
                        return header
                    raise ValueError(
                        f"it sent slice {found} of step {found_id} with {payload_bytes} bytes "
                        f"instead of slice {number} of step {step_id} with {len(payload)} bytes"
                    )
            except OSError as error:
                raise self._failed(describe(error)) from error
            except ValueError as error:
                raise self._failed(str(error)) from error

    def _not_that_slice(self, kind: int, header_bytes: int, payload_bytes: int) -> memoryview:
        """Read the rest of the frame that starts with ``_slice_start``; return its header."""
        if kind not in (FrameKind.SLICE, FrameKind.ABANDON) or header_bytes < NUMBER_BYTES:
            raise ValueError(f"it sent a frame of kind {kind} instead of a slice")
        check_counts(header_bytes, payload_bytes, self._limits)
        # Not into the edge's buffer, which holds the frame of the step being computed.
        view = memoryview(bytearray(header_bytes + payload_bytes))
        view[:NUMBER_BYTES] = self._slice_start[PREAMBLE_BYTES:]
        self._fill_slice(view[NUMBER_BYTES:])
        return view[:header_bytes]

    def _fill_slice(self, view: memoryview, *, is_first: bool = False) -> None:
        """Read the frame in progress to its end. ``is_first``: it may not have begun."""
        num_read = 0
        while num_read < len(view):
            count = self._connection.recv_into(view[num_read:])
            if count == 0 and is_first and num_read == 0:
                self._give_up()
                raise EdgeClosedError(self.peer_node_id, "closed by the peer")
            if count == 0:
                raise ValueError(_CUT_OFF)
            num_read += count

    def poll(self) -> Frame | None:
        """Return the next frame, as ``receive`` does, if it has arrived completely; never blocks.

        A partial frame is kept in the buffer for the next call of either method, so the views of
        the last frame are no longer valid.
        """
        with self._using:
            if self._is_closed:
                raise EdgeClosedError(self.peer_node_id, "closed")
            try:
                self._connection.settimeout(0)
                return self._receive(None)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return None
            except OSError as error:
                raise self._failed(describe(error)) from error
            except ValueError as error:
                raise self._failed(str(error)) from error

    def _receive(self, on_silence: Callable[[], float] | None) -> Frame:
        arriving = self._arriving
        if arriving is None:
            self._fill(memoryview(self._preamble), 0, on_silence)
            if self._num_read == 0:
                if self._is_closed:
                    raise EdgeClosedError(self.peer_node_id, "closed")
                self._give_up()
                raise EdgeClosedError(self.peer_node_id, "closed by the peer")
            if self._num_read < PREAMBLE_BYTES:
                raise ValueError(_CUT_OFF)
            arriving = self._arriving = self._announced()
        self._fill(arriving.view[arriving.start :], PREAMBLE_BYTES, on_silence)
        if self._num_read < PREAMBLE_BYTES + len(arriving.view) - arriving.start:
            raise ValueError(_CUT_OFF)
        self._num_read, self._arriving = 0, None
        return Frame(
            kind=arriving.kind,
            step_id=arriving.step_id,
            header=arriving.view[arriving.start : arriving.payload_start],
            payload=arriving.view[arriving.payload_start :],
        )

    def _fill(
        self, view: memoryview, num_before: int, on_silence: Callable[[], float] | None
    ) -> None:
        """Read into ``view``, which starts ``num_before`` bytes into the frame, until it is full.

        Or until the peer closes the connection.
        """
        while self._num_read - num_before < len(view):
            try:
                count = self._connection.recv_into(view[self._num_read - num_before :])
            except TimeoutError:
                if on_silence is None:
                    raise
                self._connection.settimeout(on_silence())
                continue
            if count == 0:
                return
            self._num_read += count

    def _announced(self) -> _Arriving:
        """Decode the preamble, and make the buffer large enough for the frame."""
        preamble = self._preamble
        if preamble[:SCOPE_BYTES] != self._scope:
            found = decode_preamble(preamble).scope
            raise ValueError(describe_difference(self.scope, found))
        kind, step_id, header_bytes, payload_bytes = decode_rest(preamble)
        check_counts(header_bytes, payload_bytes, self._limits)
        start = -header_bytes % _PAYLOAD_ALIGNMENT
        payload_start = start + header_bytes
        end = payload_start + payload_bytes
        if end > len(self._buffer):
            # Not resized in place: the last frame's views may still point into the old one.
            self._buffer = memoryview(bytearray(_grown(end, self._limits)))
        return _Arriving(kind, step_id, self._buffer[:end], start, payload_start)


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


def check_counts(header_bytes: int, payload_bytes: int, limits: EdgeLimits) -> None:
    """Raise ``ValueError`` if the sizes that a frame announces exceed the limits."""
    if header_bytes > limits.max_header_bytes:
        limit = limits.max_header_bytes
        raise ValueError(
            f"it announced a header of {header_bytes} bytes, over the limit of {limit}"
        )
    if payload_bytes > limits.max_payload_bytes:
        limit = limits.max_payload_bytes
        raise ValueError(
            f"it announced a payload of {payload_bytes} bytes, over the limit of {limit}"
        )


def _shut_down(connection: socket.socket) -> None:
    """Shut down both directions and wake waiting threads, without closing the descriptor.

    Not with ``SSLSocket.shutdown``, which also discards the TLS state: whatever the other thread
    sent next would be unencrypted.
    """
    with contextlib.suppress(OSError):  # Already shut down by the peer, or closed.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _grown(num_bytes: int, limits: EdgeLimits) -> int:
    """Return a size of at least ``num_bytes``, with spare room, within the limits."""
    most = PREAMBLE_BYTES + _PAYLOAD_ALIGNMENT + limits.max_header_bytes + limits.max_payload_bytes
    return min(2 * num_bytes, most)
