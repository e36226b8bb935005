"""How much of the node's link transfers may use: all of it, or a share if others need the rest."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

from potluck.cluster.edges.options import set_edge_options

SHARE_WHILE_SERVING = 0.25
LEAST_BYTES_PER_SECOND = 2e6
"""While a deployment is being served: a stage of 3 GB arrives in 25 minutes at worst."""

SLOW_BYTES_PER_SECOND = 6e6
"""About 50 Mbit/s. On slower links the first packets of a few connections alone fill the queue, and
keep-alives are lost or arrive too late."""

SHARE_OF_SLOW_LINK = 0.85
"""The part of a slow link that transfers may use at any time, so that its queue stays short."""

_BURST_SECONDS = 0.05
"""The burst after a pause: at 1 Gbit/s 1.5 MB of a share, which delay a step's frame by at most 12
ms if the kernel does not send that first."""

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
        self._free_at = 0.0

    def set_limit(self, bytes_per_second: float | None) -> None:
        """Limit the rate from now on; None for no limit."""
        with self._lock:
            self._rate = bytes_per_second
            self._free_at = self._clock()

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
    shares = []
    if is_serving:
        shares.append(max(LEAST_BYTES_PER_SECOND, SHARE_WHILE_SERVING * link_bytes_per_second))
    if 0 < link_bytes_per_second < SLOW_BYTES_PER_SECOND:
        shares.append(SHARE_OF_SLOW_LINK * link_bytes_per_second)
    return min(shares, default=None)


def set_bulk_options(connection: socket.socket) -> None:
    """Give a connection lower priority than others, and detect a peer that is gone."""
    set_edge_options(connection)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, _PRIORITY)
    connection.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
