"""Messages and descriptors over a Unix stream socket: a length of 4 bytes, then msgpack."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from typing import Generic, TypeVar

import msgspec

from potluck.errors import TransferError

LENGTH = struct.Struct("<I")
MAX_MESSAGE_BYTES = 2**28
"""The digests of a file of 8 TB."""

_T = TypeVar("_T")


class ChannelClosedError(Exception):
    """The other end is closed."""


class Channel(Generic[_T]):
    """One end. ``send`` may be called by any thread, ``receive`` by one at a time."""

    def __init__(self, connection: socket.socket, received: object) -> None:
        """``received`` is the type (or union of types) of incoming messages."""
        self._connection = connection
        self._decoder: msgspec.msgpack.Decoder[_T] = msgspec.msgpack.Decoder(received)
        self._sending = threading.Lock()

    def send(self, message: msgspec.Struct, descriptor: int | None = None) -> None:
        """Send a message, and optionally a descriptor, which stays open here.

        Raise ``ChannelClosedError``.
        """
        data = encode(message)
        try:
            with self._sending:
                if descriptor is not None:
                    sent = socket.send_fds(self._connection, [data], [descriptor])
                    data = data[sent:]
                self._connection.sendall(data)
        except OSError as error:
            raise ChannelClosedError from error

    def receive(self) -> tuple[_T, int | None]:
        """Return the next message, and the descriptor that came with it, which the caller owns.

        Raise ``ChannelClosedError``.
        """
        descriptor: int | None = None
        try:
            head, descriptors, _, _ = socket.recv_fds(self._connection, LENGTH.size, 1)
            for each in descriptors:
                os.set_inheritable(each, False)
                descriptor = each
            head += self._read(LENGTH.size - len(head)) if head else b""
            if len(head) < LENGTH.size:
                raise ChannelClosedError
            (num_bytes,) = LENGTH.unpack(head)
            if num_bytes > MAX_MESSAGE_BYTES:
                raise ChannelClosedError
            return self._decoder.decode(self._read(num_bytes)), descriptor
        except (OSError, msgspec.MsgspecError, ChannelClosedError) as error:
            if descriptor is not None:
                os.close(descriptor)
            raise ChannelClosedError from error

    def is_ended(self) -> bool:
        """Return whether the other end is closed, as far as known without further reading."""
        try:
            flags = socket.MSG_PEEK | socket.MSG_DONTWAIT
            return not self._connection.recv(1, flags)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def shut_down(self) -> None:
        """End both directions; a ``receive`` in another thread raises ``ChannelClosedError``."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this end. Idempotent."""
        self._connection.close()

    def _read(self, num_bytes: int) -> bytearray:
        data = bytearray(num_bytes)
        done = 0
        with memoryview(data) as view:
            while done < num_bytes:
                count = self._connection.recv_into(view[done:])
                if count == 0:
                    raise ChannelClosedError
                done += count
        return data


def encode(message: msgspec.Struct) -> bytes:
    """Return a message in the form in which it is sent."""
    data = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(data)) + data


def process_gone() -> TransferError:
    """Return the error of calls to a process that has ended."""
    return TransferError(
        "the transfer process of this node has exited",
        hint="the agent restarts it; see the agent's log",
    )
