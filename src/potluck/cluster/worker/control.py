"""The worker's end of the socket pair: blocking, with one reader and any number of writers."""

from __future__ import annotations

import contextlib
import socket
import threading

from potluck.cluster.worker.messages import (
    LENGTH,
    FromWorker,
    ToWorker,
    checked_length,
    decode_to_worker,
    encode,
)


class ControlChannel:
    """Messages from and to the agent."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._writing = threading.Lock()

    def send(self, message: FromWorker) -> None:
        """Send a message. It is not an error if the agent has exited: its worker ends anyway."""
        with self._writing:
            try:
                self._connection.sendall(encode(message))
            except OSError:
                return

    def receive(self) -> ToWorker | None:
        """Return the next message; None once the agent has exited, and after ``stop_receiving``."""
        first = self._connection.recv(1)
        if not first:
            return None
        prefix = first + self._read(LENGTH.size - 1)
        message: ToWorker = decode_to_worker(self._read(checked_length(prefix)))
        return message

    def stop_receiving(self) -> None:
        """End a ``receive`` that waits in another thread, and make all later ones return None."""
        with contextlib.suppress(OSError):  # the agent has exited
            self._connection.shutdown(socket.SHUT_RD)

    def _read(self, num_bytes: int) -> bytes:
        data = bytearray()
        while len(data) < num_bytes:
            part = self._connection.recv(num_bytes - len(data))
            if not part:
                raise EOFError("the agent closed the channel in the middle of a message")
            data += part
        return bytes(data)
