"""How much of the node's link transfers may use: all of it, or a share while others need it; and
how much of a slow link's queue.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

from potluck.cluster.network.edges.options import set_edge_options
from potluck.cluster.network.edges.path_figures import path_figures

SHARE_WHILE_SERVING = 0.25
LEAST_BYTES_PER_SECOND = 2e6
"""While a deployment is being served: a stage of 3 GB arrives in 25 minutes at worst."""

MOST_WHILE_SERVING = 0.85
"""The largest part of the link. The minimum alone exceeds a link of 10 Mbit/s."""

SLOW_BYTES_PER_SECOND = 6e6
"""About 50 Mbit/s. On slower links a few connections fill the queue for so long that keep-alives
are lost or arrive too late."""

_BURST_SECONDS = 0.05
"""The burst after a pause: at 1 Gbit/s 1.5 MB of a share, which delay a step's frame by at most 12
ms if the kernel does not send that first."""

_QUEUE_SECONDS = 0.03
"""How long the data of one connection may wait in a slow link's queue. There are one to three
connections at a time, and queues of 100 ms are common."""

_MOST_ROUND_TRIP_SECONDS = 0.3
_LEAST_BUFFER_BYTES = 2**14
"""A record of TLS."""

_PRIORITY = 2
"""``TC_PRIO_BULK``: the last band of ``pfifo_fast``, which requires no privilege."""

_TCP_NOTSENT_LOWAT = 25  # tcp(7)
_UNSENT_BYTES = 128 * 1024
"""The maximum unsent data in the kernel, so that frames of others do not queue behind megabytes."""


class Share:
    """One direction. Thread-safe. Without a limit nothing waits."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._rate: float | None = None
        self._link_rate = 0.0
        self._free_at = 0.0

    def set_limit(
        self, bytes_per_second: float | None, *, link_bytes_per_second: float = 0.0
    ) -> None:
        """Limit the rate from now on; None for no limit.

        ``link_bytes_per_second`` is the rate of the link; 0 if unknown.
        """
        with self._lock:
            self._rate = bytes_per_second
            self._link_rate = link_bytes_per_second
            self._free_at = self._clock()

    def bound_queue(self, connection: socket.socket, buffer: int) -> None:
        """Limit the data that a connection has in transit on a slow link, where it queues.

        ``buffer`` is ``socket.SO_RCVBUF`` or ``socket.SO_SNDBUF``, depending on the direction. A
        limit of the rate is not enough: the rate of a link is not known exactly, and what has
        accumulated in the buffers during a pause arrives at once.
        """
        rate = self._link_rate
        if not 0 < rate < SLOW_BYTES_PER_SECOND:
            return
        figures = path_figures(connection)
        round_trip = None if figures is None else figures.round_trip_seconds
        seconds = _QUEUE_SECONDS + min(round_trip or 0.0, _MOST_ROUND_TRIP_SECONDS)
        num_bytes = max(_LEAST_BUFFER_BYTES, round(rate * seconds))
        connection.setsockopt(socket.SOL_SOCKET, buffer, num_bytes)

    def spend(self, num_bytes: int) -> None:
        """Wait until this many bytes may be sent or received, and count them."""
        if self._rate is None:
            return
        with self._lock:
            if self._rate is None:
                return
            now = self._clock()
            start = max(self._free_at, now - _BURST_SECONDS)
            self._free_at = start + num_bytes / self._rate
            wait = start - now
        if wait > 0:
            self._sleep(wait)


def limit_for(link_bytes_per_second: float, *, is_serving: bool) -> float | None:
    """Return the limit of transfers in bytes per second; None for no limit.

    ``link_bytes_per_second`` is what the link can transport; 0 if unknown.
    """
    if not is_serving:
        return None
    share = max(LEAST_BYTES_PER_SECOND, SHARE_WHILE_SERVING * link_bytes_per_second)
    if link_bytes_per_second > 0:
        share = min(share, MOST_WHILE_SERVING * link_bytes_per_second)
    return share


def set_bulk_options(connection: socket.socket) -> None:
    """Give a connection lower priority than others, and detect a peer that is gone."""
    set_edge_options(connection)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, _PRIORITY)
    connection.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
