"""Forwards data between a member's connection and one to the node's own Zenoh.

Nothing here blocks. Each direction holds one chunk at a time and reads the next when that is sent,
so that a peer that does not read slows down nobody else.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import ssl
import struct

from potluck.types.cluster import NodeId

_PIECE_BYTES = 65_536
"""Zenoh's largest batch. ``ssl`` returns one record at a time, of 16 KiB at most."""

_RESET = struct.pack("ii", 1, 0)
"""A linger time of zero, so that closing resets the connection: socket(7)."""

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class _Flow:
    """One direction. ``needs`` are the events on source and sink that let it continue."""

    def __init__(self, source: ssl.SSLSocket, sink: ssl.SSLSocket) -> None:
        self._source = source
        self._sink = sink
        self._piece = memoryview(b"")
        self.needs = (_READ, 0)

    def move(self) -> bool:
        """Read a chunk and send it, as far as possible; return False at the end of the source."""
        if not self._piece:
            try:
                data = self._source.recv(_PIECE_BYTES)
            except ssl.SSLWantReadError:
                self.needs = (_READ, 0)
                return True
            except ssl.SSLWantWriteError:
                self.needs = (_WRITE, 0)
                return True
            if not data:
                return False
            self._piece = memoryview(data)
        try:
            # The same bytes again after an incomplete write, as OpenSSL requires.
            self._piece = self._piece[self._sink.send(self._piece) :]
        except ssl.SSLWantWriteError:
            self.needs = (0, _WRITE)
        except ssl.SSLWantReadError:
            self.needs = (0, _READ)
        else:
            self.needs = (0, _WRITE) if self._piece else (_READ, 0)
        return True


class Splice:
    """A member's authenticated connection, which it owns, and its connection to Zenoh."""

    def __init__(
        self,
        member: ssl.SSLSocket,
        peer: NodeId,
        host: str,
        inner: tuple[str, int],
        context: ssl.SSLContext,
    ) -> None:
        """Begin to connect to Zenoh at ``inner``. On ``OSError``, ``member`` stays open."""
        self.peer = peer
        self.host = host
        self._member = member
        self._inner: ssl.SSLSocket | None = None
        self._context = context
        self._flows: tuple[_Flow, _Flow] | None = None
        self._watched: dict[socket.socket, int] = {}
        self._raw = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._raw.setblocking(False)
            self._raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            code = self._raw.connect_ex(inner)
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, os.strerror(code))
        except OSError:
            self._raw.close()
            raise

    @property
    def is_open(self) -> bool:
        """Whether Zenoh has accepted the connection."""
        return self._flows is not None

    def start(self, selector: selectors.BaseSelector) -> None:
        """Register with ``selector``; the keys carry this object as data."""
        self._watch(selector, {self._raw: _WRITE})

    def advance(self, selector: selectors.BaseSelector) -> bool:
        """Transfer what is ready. Return False, or raise ``OSError``, once either side ended."""
        if self._inner is None:
            code = self._raw.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))
            self._watch(selector, {})
            self._inner = self._context.wrap_socket(self._raw, do_handshake_on_connect=False)
        if self._flows is None:
            try:
                self._inner.do_handshake()
            except ssl.SSLWantReadError:
                self._watch(selector, {self._inner: _READ})
                return True
            except ssl.SSLWantWriteError:
                self._watch(selector, {self._inner: _WRITE})
                return True
            self._flows = (_Flow(self._member, self._inner), _Flow(self._inner, self._member))
        up, down = self._flows
        if not up.move() or not down.move():
            return False
        self._watch(
            selector,
            {
                self._member: up.needs[0] | down.needs[1],
                self._inner: up.needs[1] | down.needs[0],
            },
        )
        return True

    def close(self, selector: selectors.BaseSelector, *, is_broken: bool = False) -> None:
        """Close both sides immediately; unsent data is lost.

        ``is_broken`` resets them, which also reaches a peer whose acknowledgements do not arrive.
        """
        self._watch(selector, {})
        for side in (self._member, self._inner or self._raw):
            if is_broken:
                with contextlib.suppress(OSError):  # closed by ``ssl``: it was reset
                    side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            side.close()

    def _watch(self, selector: selectors.BaseSelector, wanted: dict[socket.socket, int]) -> None:
        for each, events in {**dict.fromkeys(self._watched, 0), **wanted}.items():
            known = self._watched.get(each, 0)
            if events == known:
                continue
            if not events:
                selector.unregister(each)
                del self._watched[each]
                continue
            (selector.modify if known else selector.register)(each, events, self)
            self._watched[each] = events
