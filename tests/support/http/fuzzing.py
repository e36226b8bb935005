"""Clients that send many strange requests, and what came of them."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from support.http.mutations import Request

from potluck.api.errors import internal_error

NUM_CLIENTS = 4
SECONDS_PER_ANSWER = 20.0
_MISTAKE = str(internal_error().message).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fuzzed:
    """How many answers had each status, what failed, and the slowest answer by its number."""

    statuses: Counter[int]
    failures: tuple[str, ...]
    slowest: tuple[float, int]


class _Client:
    """Sends every ``NUM_CLIENTS``-th request, over one connection for as long as it lasts.

    It goes on after a failure, ``max_failures`` times.
    """

    def __init__(
        self, port: int, request_of: Callable[[int], Request], first: int, max_failures: int
    ) -> None:
        self._port = port
        self._request_of = request_of
        self._first = first
        self._max_failures = max_failures
        self._connection: socket.socket | None = None
        self.statuses: Counter[int] = Counter()
        self.failures: list[str] = []
        self.slowest = (0.0, -1)

    def run(self, start: int, end: int) -> None:
        for number in range(start + self._first, end, NUM_CLIENTS):
            began = time.monotonic()
            try:
                self._send(self._request_of(number))
            except Exception as error:  # noqa: BLE001 - told by the test, with the seed
                self.failures.append(f"request {number}: {error!r}")
                self._close()
                if len(self.failures) > self._max_failures:
                    break
            self.slowest = max(self.slowest, (time.monotonic() - began, number))
        self._close()

    def _send(self, request: Request) -> None:
        if self._connection is None:
            self._connection = socket.create_connection(
                ("127.0.0.1", self._port), timeout=SECONDS_PER_ANSWER
            )
        try:
            self._connection.sendall(request.encoded())
            if not request.is_framed:
                self._connection.shutdown(socket.SHUT_WR)
                self._read_to_end()
                return
            method = request.method.decode()
            with http.client.HTTPResponse(self._connection, method=method) as response:
                response.begin()
                body = response.read()
        except (ConnectionError, BrokenPipeError):
            if request.is_framed:
                raise
            self._close()
            return
        assert response.status != 500, response.status
        assert _MISTAKE not in body, body[-300:]
        self.statuses[response.status] += 1
        if response.will_close:
            self._close()

    def _read_to_end(self) -> None:
        assert self._connection is not None
        received = b""
        while part := self._connection.recv(65536):
            received += part
        assert not received.startswith(b"HTTP/1.1 500")
        assert _MISTAKE not in received
        self._close()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def fuzz(
    port: int,
    request_of: Callable[[int], Request],
    start: int,
    end: int,
    *,
    max_failures: int = 0,
) -> Fuzzed:
    """Send the requests from ``start`` to ``end``, all but those after too many failures."""
    clients = [_Client(port, request_of, first, max_failures) for first in range(NUM_CLIENTS)]
    threads = [threading.Thread(target=client.run, args=(start, end)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    statuses: Counter[int] = Counter()
    for client in clients:
        statuses += client.statuses
    return Fuzzed(
        statuses=statuses,
        failures=tuple(failure for client in clients for failure in client.failures),
        slowest=max(client.slowest for client in clients),
    )
