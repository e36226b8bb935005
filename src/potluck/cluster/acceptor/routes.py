"""Routes: which process a connection is for, by the server name (SNI) that the client asks for.

The agent sends one message per name over a ``SOCK_SEQPACKET`` socket, which either carries the
sending end of a channel (``trust.connection_sources``) or withdraws the name.
"""

from __future__ import annotations

import contextlib
import re
import socket

from potluck.cluster.acceptor.client_hello import ClientHello
from potluck.cluster.trust.connection_sources import receive_descriptors, send_descriptor

DOMAIN = ".potluck"
"""The suffix of all route names."""

JOIN_NAME = "join.potluck"
"""The route of clients without a name that cannot be nodes (see ``ClientHello.may_be_member``)."""

MAX_NAME_BYTES = 64
_NAME = re.compile(r"[a-z0-9]+(\.[a-z0-9]+)*\.potluck")

_ADD, _REMOVE = b"+", b"-"


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
