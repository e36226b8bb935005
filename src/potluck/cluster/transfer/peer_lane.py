"""Fetch chunks from one peer, over one connection that is opened when it is needed.

If this node cannot connect to the peer, it asks the peer to connect (``DialBacks``).
"""

from __future__ import annotations

import itertools
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable

from potluck.cluster.network.trust.credentials import peer_node_id
from potluck.cluster.network.trust.handshakes import describe
from potluck.cluster.transfer.lane_work import LaneWork
from potluck.cluster.transfer.peer_frames import (
    HEAD,
    HELLO,
    MOST_BODY_BYTES,
    MOST_OUTSTANDING,
    SERVER_NAME,
    SILENCE_SECONDS,
    Kind,
    check_hello,
    decode_chunk,
    decode_lack,
    encode_want,
)
from potluck.cluster.transfer.share import Share, set_bulk_options
from potluck.cluster.transfer.shared_file import Item, Origin, WrongBytesError
from potluck.errors import ParameterError
from potluck.types.cluster import NodeId
from potluck.types.content import runs_in_order

_LOG = logging.getLogger(__name__)

_IDLE_SECONDS = 20.0
_PAUSES = (0.5, 1.0, 2.0)
"""The pauses before a connection that was lost, or could not be opened, is reopened. A chunk in
between resets the count."""

_PIECE_BYTES = 2**16
"""Bytes that are read between two checks of the share of the link."""

_GUESS_SECONDS = 10.0
"""How long a peer that was not named for a chunk may wait for it itself. Peers that were named form
no circle; one that was not may wait, through others, for this node."""

_CONNECT_SECONDS = 5.0

DIAL_BACK_SECONDS = 10.0
"""The time for a peer to connect: a call, and its own limit for connecting."""


class PeerFailedError(Exception):
    """The peer is unreachable, is a different node, or violates the protocol."""


def connect_to_peer(
    peer: NodeId, address: tuple[str, int], context: ssl.SSLContext
) -> ssl.SSLSocket:
    """Return a connection to the node ``peer``, which the caller owns.

    Raise ``OSError`` if it cannot be opened, and ``PeerFailedError`` if another node answers.
    """
    raw = socket.create_connection(address, timeout=_CONNECT_SECONDS)
    try:
        set_bulk_options(raw)
        connection = context.wrap_socket(raw, server_hostname=SERVER_NAME)
    except BaseException:
        raw.close()
        raise
    try:
        found = peer_node_id(connection)
    except ParameterError as error:
        connection.close()
        raise PeerFailedError(error.message) from error
    if found != peer:
        connection.close()
        raise PeerFailedError(f"a different node ({found}) answers at its address")
    return connection


class DialBacks:
    """The lanes that wait for their peers to connect. Thread-safe.

    ``ask`` requests that a peer connects to this node. It must not block; ``answer`` is called with
    the outcome, by any thread.

    A node behind a firewall or address translation can connect to others, which cannot connect to
    it. To fetch from such a node, a lane asks it to connect (the agents pass the request on,
    ``weights.dial``), and then uses the connection as one that it opened itself. TLS has the roles
    reversed; the protocol of ``peer_frames`` has not.
    """

    def __init__(self, ask: Callable[[NodeId], None]) -> None:
        self._ask = ask
        self._changed = threading.Condition()
        self._answers: dict[NodeId, ssl.SSLSocket | str | None] = {}  # None while a lane waits
        self._needed: set[NodeId] = set()

    def is_needed(self, node: NodeId) -> bool:
        """Return whether the latest connection with a peer could only be opened by the peer."""
        with self._changed:
            return node in self._needed

    def connection(self, node: NodeId) -> ssl.SSLSocket:
        """Ask a peer to connect, and return the connection. For the peer's lane only.

        Raise ``PeerFailedError``, with the reason, if it does not connect in time.
        """
        with self._changed:
            self._answers[node] = None
        self._ask(node)
        with self._changed:
            self._changed.wait_for(lambda: self._answers[node] is not None, DIAL_BACK_SECONDS)
            answer = self._answers.pop(node)
            if isinstance(answer, ssl.SSLSocket):
                self._needed.add(node)
                return answer
            self._needed.discard(node)
            raise PeerFailedError(answer or f"it did not connect within {DIAL_BACK_SECONDS:g} s")

    def answer(self, node: NodeId, answer: ssl.SSLSocket | str) -> bool:
        """Give a connection from a peer, or the reason why there will be none, to the lane that
        waits for it.

        Return False if none does; a connection then still belongs to the caller.
        """
        with self._changed:
            if node not in self._answers or self._answers[node] is not None:
                return False
            self._answers[node] = answer
            self._changed.notify_all()
            return True


class PeerLane:
    """For one thread, which is ``run``."""

    def __init__(
        self,
        work: LaneWork,
        peer: NodeId,
        context: ssl.SSLContext,
        share: Share,
        dial_backs: DialBacks,
    ) -> None:
        self._work = work
        self._peer = peer
        self._origin = Origin(peer)
        self._context = context
        self._share = share
        self._dial_backs = dial_backs
        self._connection: ssl.SSLSocket | None = None
        self._outstanding: dict[tuple[str, int], Item] = {}
        self._asked_at: dict[Item, float] = {}
        self._buffer = bytearray()

    def run(self) -> None:
        """Fetch until nothing more was requested for a while."""
        num_failures = 0
        while True:
            try:
                if not self._ask():
                    if self._work.lane_ends(self._origin):
                        self._close()
                        return
                    continue
                if not self._work.is_wanted(self._outstanding.values()):
                    self._close()  # it is no longer read
                    continue
                if self._receive():
                    num_failures = 0
            except WrongBytesError as error:
                self._work.assignments.ban(self._peer, self._close(), error.message)
            except (PeerFailedError, OSError) as error:
                reason = describe(error) if isinstance(error, OSError) else str(error)
                items = self._close()
                is_silent = isinstance(error, TimeoutError)
                if num_failures < len(_PAUSES) and not is_silent:
                    self._work.assignments.put_back(self._origin, items)
                    time.sleep(_PAUSES[num_failures])
                    num_failures += 1
                    continue
                _LOG.warning("no bytes received from node %s: %s", self._peer, reason)
                self._work.assignments.fail_all(self._origin, items, f"node {self._peer}: {reason}")
                num_failures = 0

    def _ask(self) -> bool:
        """Request what is wanted, within the limits; return whether there is any."""
        room = MOST_OUTSTANDING - len(self._outstanding)
        if room > 0:
            seconds = 0.0 if self._outstanding else _IDLE_SECONDS
            items = self._work.take(self._origin, room, seconds=seconds, is_range=False)
            self._outstanding |= {
                (file.content.sha256, chunk): (file, chunk) for file, chunk in items
            }
            if items:
                now = time.monotonic()
                self._asked_at = {
                    item: self._asked_at.get(item, now) for item in self._outstanding.values()
                }
                connection = self._connected()
                for file, of_file in itertools.groupby(items, key=lambda item: item[0]):
                    for first, end in runs_in_order(chunk for _, chunk in of_file):
                        connection.sendall(encode_want(file.content, first, end))
        return bool(self._outstanding)

    def _receive(self) -> bool:
        """Process one frame; return whether it was a chunk."""
        kind, num_bytes = HEAD.unpack(self._read(HEAD.size))
        if num_bytes > MOST_BODY_BYTES:
            raise PeerFailedError(f"it sent a frame of {num_bytes} bytes")
        body = self._read(num_bytes)
        try:
            match kind:
                case Kind.CHUNK:
                    sha256, chunk, digest, data = decode_chunk(body)
                    item = self._outstanding.pop((sha256, chunk), None)
                    if item is None:
                        raise PeerFailedError("it sent a chunk that was not requested")
                    if len(data) != item[0].content.chunk_bytes(chunk):
                        self._outstanding[sha256, chunk] = item
                        raise WrongBytesError(f"{len(data)} bytes for chunk {chunk}")
                    try:
                        self._work.bring(item, data, self._origin, digest)
                    except WrongBytesError:
                        self._outstanding[sha256, chunk] = item
                        raise
                    return True
                case Kind.LACK:
                    sha256, chunk, reason = decode_lack(body)
                    item = self._outstanding.pop((sha256, chunk), None)
                    if item is not None:
                        why = f"node {self._peer}: {reason}"
                        self._work.assignments.fail(self._origin, [item], why)
                case Kind.WAIT:
                    self._give_up_guesses()
                case _:
                    raise PeerFailedError(f"it sent a frame of the unknown kind {kind}")
        except ValueError as error:
            raise PeerFailedError(str(error)) from error
        return False

    def _give_up_guesses(self) -> None:
        """Ask others for chunks that the peer was not named for, and has been waiting for."""
        asked_by = time.monotonic() - _GUESS_SECONDS
        late = [
            item
            for item in self._outstanding.values()
            if self._asked_at[item] <= asked_by and self._work.is_guess(item, self._origin)
        ]
        if late:
            items = self._close()  # or the peer could still send them
            self._work.assignments.fail(self._origin, late, f"node {self._peer} waits for it, too")
            self._work.assignments.put_back(self._origin, items)

    def _connected(self) -> ssl.SSLSocket:
        if self._connection is not None:
            return self._connection
        if self._work.assignments.is_refused(self._peer):
            raise PeerFailedError("it was removed from the cluster")
        self._connection = connection = self._opened()
        self._share.bound_queue(connection, socket.SO_RCVBUF)
        connection.settimeout(SILENCE_SECONDS)
        connection.sendall(HELLO)
        try:
            check_hello(self._read(len(HELLO)).tobytes())
        except ValueError as error:
            raise PeerFailedError(str(error)) from error
        return connection

    def _opened(self) -> ssl.SSLSocket:
        """Connect, or have the peer connect if that is impossible."""
        address = self._work.peer_address(self._peer)
        if address is None:
            raise PeerFailedError("its address is unknown")
        if self._dial_backs.is_needed(self._peer):
            return self._dial_backs.connection(self._peer)
        try:
            return connect_to_peer(self._peer, address, self._context)
        except OSError as error:
            try:
                return self._dial_backs.connection(self._peer)
            except PeerFailedError as failure:
                _LOG.debug("node %s does not connect to this node: %s", self._peer, failure)
                raise error from failure

    def _read(self, num_bytes: int) -> memoryview:
        """Return the next bytes, which are valid until the next call."""
        connection = self._connection
        if connection is None:
            raise PeerFailedError("the connection was lost")
        if len(self._buffer) < num_bytes:
            self._buffer = bytearray(num_bytes)
        view = memoryview(self._buffer)[:num_bytes]
        done = 0
        while done < num_bytes:
            piece = min(_PIECE_BYTES, num_bytes - done)
            if num_bytes > HEAD.size:
                self._share.spend(piece)
            end = done + piece
            while done < end:
                count = connection.recv_into(view[done:end])
                if count == 0:
                    raise PeerFailedError("it closed the connection")
                done += count
        return view

    def _close(self) -> list[Item]:
        """Close the connection; return what was requested and not delivered."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        items = list(self._outstanding.values())
        self._outstanding.clear()
        self._asked_at = {}
        self._buffer = bytearray()
        return items
