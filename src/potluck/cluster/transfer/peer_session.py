"""Send chunks to one connected peer: those that are here, and others as they arrive."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import ssl
import time

from potluck.cluster.network.trust.handshakes import describe
from potluck.cluster.transfer.peer_frames import (
    HEAD,
    HELLO,
    MOST_OUTSTANDING,
    MOST_REQUEST_BYTES,
    WAIT_SECONDS,
    Kind,
    check_hello,
    decode_want,
    encode_chunk,
    encode_lack,
    encode_wait,
)
from potluck.cluster.transfer.reading import Serving, UnknownChunkError
from potluck.cluster.transfer.share import Share
from potluck.cluster.transfer.shared_file import SharedFile
from potluck.types.cluster import NodeId
from potluck.types.content import FileContent

_LOG = logging.getLogger(__name__)

_IDLE_SECONDS = 60.0
_STALL_SECONDS = 60.0
"""For a peer that does not read."""

_GRACE_SECONDS = 20.0
"""For a chunk that this node does not expect yet: peers may learn of their sources, and begin to
read, seconds before this node does."""

_LOOK_SECONDS = 0.5
"""The interval between two searches for a file that is unknown here."""

_PIECE_BYTES = 2**16
_MOST_FILES = 1024


class PeerSession:
    """For one thread, which is ``run``. ``connection``, with TLS, belongs to it.

    ``received`` is what was already read from it.
    """

    def __init__(
        self,
        serving: Serving,
        connection: ssl.SSLSocket,
        peer: NodeId,
        share: Share,
        received: bytes = b"",
    ) -> None:
        connection.setblocking(False)
        self._serving = serving
        self._connection = connection
        self._peer = peer
        self._share = share
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)
        self._received = bytearray(received)
        self._has_greeted = False
        self._files: dict[FileContent, SharedFile] = {}
        self._looked_at: dict[FileContent, float] = {}  # when a missing file was last searched
        self._wanted: dict[tuple[FileContent, int], float] = {}  # since when
        self._counted: set[tuple[FileContent, int]] = set()

    def run(self) -> None:
        """Serve until the peer closes the connection, is silent for too long or violates the
        protocol.
        """
        self._serving.changes.add_waker(self._wake)
        try:
            self._send(HELLO)
            self._process()
            self._serve()
        except OSError as error:
            _LOG.debug("lost a connection from node %s: %s", self._peer, describe(error))
        except ValueError as error:
            _LOG.warning("closed a connection from node %s: %s", self._peer, error)
        finally:
            self._serving.changes.drop_waker(self._wake)
            os.close(self._wake)
            self._connection.close()
            for content, chunk in list(self._counted):
                self._serving.served(self._files[content], chunk)
            for file in self._files.values():
                self._serving.release(file)

    def _serve(self) -> None:
        sent_at = received_at = time.monotonic()
        while not self._serving.assignments.is_refused(self._peer):
            num_received = self._receive()
            if num_received is None:
                return
            now = time.monotonic()
            if num_received:
                received_at = now
            if self._serve_one():
                sent_at = time.monotonic()
                continue
            if self._wanted:
                if now - sent_at >= WAIT_SECONDS:
                    self._send(encode_wait())
                    sent_at = now
                self._await(sent_at + WAIT_SECONDS - now)
            elif now - received_at >= _IDLE_SECONDS:
                return
            else:
                self._await(received_at + _IDLE_SECONDS - now)

    def _receive(self) -> int | None:
        """Process what has arrived; return its length, and None at the end."""
        total = 0
        while True:
            try:
                data = self._connection.recv(4096)
            except ssl.SSLWantReadError:
                return total
            if not data:
                return None
            total += len(data)
            self._received += data
            self._process()

    def _process(self) -> None:
        """Carry out the complete frames that have arrived."""
        if not self._has_greeted and len(self._received) >= len(HELLO):
            check_hello(self._received[: len(HELLO)])
            del self._received[: len(HELLO)]
            self._has_greeted = True
        while self._has_greeted and len(self._received) >= HEAD.size:
            kind, num_bytes = HEAD.unpack_from(self._received)
            if kind != Kind.WANT or num_bytes > MOST_REQUEST_BYTES:
                raise ValueError(f"it sent a frame of kind {kind} and {num_bytes} bytes")
            if len(self._received) < HEAD.size + num_bytes:
                break
            body = bytes(self._received[HEAD.size : HEAD.size + num_bytes])
            del self._received[: HEAD.size + num_bytes]
            self._take(*decode_want(body))

    def _take(self, content: FileContent, first: int, end: int) -> None:
        if len(self._wanted) + end - first > MOST_OUTSTANDING:
            raise ValueError("it requests too much at once")
        now = time.monotonic()
        for chunk in range(first, end):
            self._wanted[content, chunk] = now

    def _file(self, content: FileContent) -> SharedFile | None:
        file = self._files.get(content)
        now = time.monotonic()
        is_due = now - self._looked_at.get(content, -_LOOK_SECONDS) >= _LOOK_SECONDS
        if file is None and is_due and len(self._files) < _MOST_FILES:
            file = self._serving.use(content)
            if file is None:
                self._looked_at[content] = now
            else:
                self._files[content] = file
                self._looked_at.pop(content, None)
        return file

    def _serve_one(self) -> bool:
        """Send one chunk that is here, the one that was requested first."""
        now = time.monotonic()
        for (content, chunk), since in list(self._wanted.items()):
            found = None
            file = self._file(content)
            is_expected = True
            if file is None:
                is_expected = False
            else:
                if (content, chunk) not in self._counted:
                    self._counted.add((content, chunk))
                    self._serving.will_serve(file, chunk)
                try:
                    found = self._serving.serve(file, chunk, self._peer)
                except UnknownChunkError:
                    is_expected = False
            if found is None and (is_expected or now - since < _GRACE_SECONDS):
                continue
            del self._wanted[content, chunk]
            if found is None:
                self._send(encode_lack(content.sha256, chunk, "it is not available here"))
            else:
                data, digest = found
                self._send(encode_chunk(content.sha256, chunk, digest, len(data)))
                view = memoryview(data)
                for start in range(0, len(view), _PIECE_BYTES):
                    piece = view[start : start + _PIECE_BYTES]
                    self._share.spend(len(piece))
                    self._send(piece)
            if file is not None:
                self._counted.discard((content, chunk))
                self._serving.served(file, chunk)
            return True
        return False

    def _send(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._connection.send(rest) :]
                continue
            except ssl.SSLWantWriteError:
                events = select.POLLOUT
            except ssl.SSLWantReadError:
                events = select.POLLIN
            poll = select.poll()
            poll.register(self._connection, events)
            if not poll.poll(_STALL_SECONDS * 1000):
                raise TimeoutError

    def _await(self, seconds: float) -> None:
        """Wait until the peer sends something, or something changes here."""
        self._poll.poll(max(0.0, min(seconds, WAIT_SECONDS)) * 1000)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
