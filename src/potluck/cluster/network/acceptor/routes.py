"""Routes: which process a connection is for, by the server name (SNI) that the client asks for.

The agent sends one message per name over a ``SOCK_SEQPACKET`` socket, which either carries the
sending end of a channel (``trust.connection_sources``) or withdraws the name.
"""

from __future__ import annotations

import contextlib
import re
import socket
from dataclasses import dataclass

from potluck.cluster.network.trust.connection_sources import receive_descriptors, send_descriptor

DOMAIN = ".potluck"
"""The suffix of all route names."""

JOIN_NAME = "join.potluck"
"""The route of clients without a name that cannot be nodes (see ``ClientHello.may_be_member``)."""

MAX_NAME_BYTES = 64
_NAME = re.compile(r"[a-z0-9]+(\.[a-z0-9]+)*\.potluck")

_ADD, _REMOVE = b"+", b"-"


MAX_HELLO_BYTES = 16_384
"""Real clients send 0.2 to 2 KB, the latter with a post-quantum key share."""

_RECORD_BYTES = 5
_HANDSHAKE_BYTES = 4
_HANDSHAKE_RECORD = 22
_CLIENT_HELLO = 1
_RANDOM_BYTES = 32

_SERVER_NAME = 0
_HOST_NAME = 0
_ALPN = 16
_SUPPORTED_VERSIONS = 43

_TLS_1_3 = 0x0304


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientHello:
    """The server ``name`` (SNI) in lower case, or empty; the offered ``protocols`` (ALPN) and TLS
    versions from 1.3 on (RFC 8446, section 4.2.1).

    The ClientHello (RFC 8446, section 4.1.2) may have arrived only in part. Fields that routing
    does not need are left to the TLS implementation of the connection's receiver.
    """

    name: str = ""
    protocols: tuple[bytes, ...] = ()
    versions: frozenset[int] = frozenset()

    @property
    def may_be_member(self) -> bool:
        """Whether this may have come from a node of the cluster.

        Nodes, Zenoh's TLS included, offer TLS 1.3 only, and no protocol. HTTPS clients offer a
        protocol (curl, Python's ``http.client``), or TLS 1.2 as well (wget, Python's ``ssl`` by
        default), or only TLS 1.2 (BusyBox).
        """
        return self.versions == {_TLS_1_3} and not self.protocols


@dataclass(frozen=True, slots=True)
class Incomplete:
    """A partial ClientHello. ``num_bytes`` is how much of its start is needed to read on."""

    num_bytes: int


def read_client_hello(data: bytes) -> ClientHello | Incomplete:
    """Return the ClientHello that ``data`` begins with. Raise ``ValueError`` if it is something
    else.

    The work is proportional to the number of bytes; ``MAX_HELLO_BYTES`` are always enough.
    """
    message = bytearray()
    position = 0
    while True:
        start = position + _RECORD_BYTES
        if data[position : position + 1] not in (b"", bytes([_HANDSHAKE_RECORD])):
            raise ValueError("it does not speak TLS")
        if start > len(data):
            return _incomplete(start)
        num_bytes = int.from_bytes(data[start - 2 : start], "big")
        if num_bytes == 0:
            raise ValueError("it sent an empty TLS record")
        message += data[start : start + num_bytes]
        position = start + num_bytes
        if message[0:1] not in (b"", bytes([_CLIENT_HELLO])):
            raise ValueError("it did not begin with a ClientHello")
        if len(message) >= _HANDSHAKE_BYTES:
            end = _HANDSHAKE_BYTES + int.from_bytes(message[1:_HANDSHAKE_BYTES], "big")
            if len(message) >= end:
                return _read_message(_Reader(bytes(message[_HANDSHAKE_BYTES:end])))
            if end > MAX_HELLO_BYTES:
                raise ValueError("its ClientHello is too long")
        if position > len(data):
            return _incomplete(position)


def _incomplete(num_bytes: int) -> Incomplete:
    if num_bytes > MAX_HELLO_BYTES:
        raise ValueError("its ClientHello is too long")
    return Incomplete(num_bytes)


class _Reader:
    """Reads values from the start of a byte string. Raises ``ValueError`` at its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def is_at_end(self) -> bool:
        return self._position == len(self._data)

    def take(self, num_bytes: int) -> bytes:
        end = self._position + num_bytes
        if end > len(self._data):
            raise ValueError("its ClientHello is malformed")
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def number(self, num_bytes: int) -> int:
        return int.from_bytes(self.take(num_bytes), "big")

    def vector(self, length_bytes: int) -> _Reader:
        """Read a vector with a length prefix."""
        return _Reader(self.take(self.number(length_bytes)))

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._position)


def _read_message(reader: _Reader) -> ClientHello:
    reader.take(2 + _RANDOM_BYTES)  # legacy version and random
    reader.vector(1)  # session id
    reader.vector(2)  # cipher suites
    reader.vector(1)  # compression methods
    name = ""
    protocols: tuple[bytes, ...] = ()
    versions: frozenset[int] = frozenset()
    if not reader.is_at_end:  # before TLS 1.3 there may be no extensions
        extensions = reader.vector(2)
        while not extensions.is_at_end:
            kind = extensions.number(2)
            body = extensions.vector(2)
            if kind == _SERVER_NAME:
                name = _name(body)
            elif kind == _ALPN:
                protocols = _protocols(body)
            elif kind == _SUPPORTED_VERSIONS:
                versions = _versions(body)
    return ClientHello(name=name, protocols=protocols, versions=versions)


def _name(body: _Reader) -> str:
    names = body.vector(2)
    while not names.is_at_end:
        kind, name = names.number(1), names.vector(2).rest().decode("latin-1")
        if kind == _HOST_NAME:
            if not name.isascii() or not name.isprintable():
                raise ValueError("it asks for an invalid server name")
            return name.lower()
    return ""


def _protocols(body: _Reader) -> tuple[bytes, ...]:
    names = body.vector(2)
    found: list[bytes] = []
    while not names.is_at_end:
        found.append(names.vector(1).rest())
    return tuple(found)


def _versions(body: _Reader) -> frozenset[int]:
    """Return the versions, without GREASE values (RFC 8701)."""
    versions = body.vector(1)
    found: set[int] = set()
    while not versions.is_at_end:
        version = versions.number(2)
        if version & 0x0F0F != 0x0A0A:
            found.add(version)
    return frozenset(found)


def check_name(name: str) -> str:
    """Return ``name``. Raises ``ValueError`` if it is not a valid route name."""
    if len(name) > MAX_NAME_BYTES or not _NAME.fullmatch(name):
        raise ValueError(f"{name[:80]!r} is not a valid route name")
    return name


def send_route(channel: socket.socket, name: str, sending: socket.socket | None) -> None:
    """Tell the acceptor to pass connections for ``name`` to ``sending``, or to refuse them if None.

    Raises ``BlockingIOError``, rather than waiting, if it has to be retried later.
    """
    kind = _REMOVE if sending is None else _ADD
    send_descriptor(channel, kind + name.encode("ascii"), sending)


class Routes:
    """The routes received from the agent over ``channel``, which this object owns."""

    def __init__(self, channel: socket.socket) -> None:
        channel.setblocking(False)
        self._channel = channel
        self._sending: dict[str, socket.socket] = {}
        self._has_ended = False

    def fileno(self) -> int:
        """Return a descriptor that is readable when the agent has sent a change."""
        return self._channel.fileno()

    def refresh(self) -> bool:
        """Apply all changes that the agent has sent; return False once the agent has closed its
        end.
        """
        with contextlib.suppress(BlockingIOError):
            while not self._has_ended:
                data, descriptors = receive_descriptors(self._channel, MAX_NAME_BYTES + 1)
                self._take(data, descriptors)
                self._has_ended = not data and not descriptors
        return not self._has_ended

    def find(self, hello: ClientHello | None) -> tuple[str, socket.socket | None]:
        """Return the name that a connection is for, and the channel to pass it to, if any.

        The name is empty if the connection is a node's, for Zenoh.
        """
        self.refresh()  # the agent sent a name here before it told any client
        if hello is None:
            return "", None
        if hello.name.endswith(DOMAIN):
            return hello.name, self._sending.get(hello.name)
        if not hello.may_be_member and JOIN_NAME in self._sending:
            return JOIN_NAME, self._sending[JOIN_NAME]
        return "", None

    def close(self) -> None:
        """Stop passing connections on."""
        for sending in self._sending.values():
            sending.close()
        self._sending.clear()
        self._channel.close()

    def _take(self, data: bytes, descriptors: list[int]) -> None:
        name = data[1:].decode("ascii", "replace")
        known = self._sending.pop(name, None)
        if known is not None:
            known.close()
        for descriptor in descriptors:
            self._sending[name] = socket.socket(fileno=descriptor)
