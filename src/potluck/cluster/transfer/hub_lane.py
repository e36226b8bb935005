"""Download chunks from the hub: large ranges, one request at a time per connection.

``huggingface_hub`` is imported when the first chunk is requested.
"""

from __future__ import annotations

import itertools
import logging
import socket
import threading
import time
from collections.abc import Iterable, Iterator

from potluck.cluster.transfer.lane_work import LaneWork
from potluck.cluster.transfer.share import Share
from potluck.cluster.transfer.shared_file import HUB, Item, SharedFile, WrongBytesError
from potluck.errors import PotluckError
from potluck.types.content import CHUNK_BYTES

_LOG = logging.getLogger(__name__)

_IDLE_SECONDS = 20.0
_RANGE_CHUNKS = 128
"""The maximum per request: each costs two or three round trips, because of the hub's
redirection."""

_SLIDE_SECONDS = 15.0
"""How long a range stays open while its reader does not read what is in memory."""

_PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0)
"""The pauses between requests without a result, unless the hub says how long to wait. A chunk in
between resets the count."""

_RANGE_NOT_SATISFIABLE = 416


class _HubFailedError(Exception):
    """Retrying is useless."""


class HubLane:
    """For one thread, which is ``run``.

    ``streams``, which all lanes share, are the locks of files that the hub sends completely
    whatever range is requested: one lane at a time reads such a stream, and delivers chunks for the
    others as they pass.
    """

    def __init__(
        self,
        work: LaneWork,
        share: Share,
        streams: dict[str, threading.Lock],
    ) -> None:
        self._work = work
        self._share = share
        self._streams = streams
        self._num_failures = 0
        self._buffer = bytearray()

    def run(self) -> None:
        """Download until nothing more was requested for a while."""
        while True:
            items = self._work.take(HUB, _RANGE_CHUNKS, seconds=_IDLE_SECONDS, is_range=True)
            if items:
                self._fetch(items)
                continue
            self._buffer = bytearray()
            if self._work.lane_ends(HUB):
                return

    def _fetch(self, items: list[Item]) -> None:
        """Download consecutive chunks, with as many requests as it takes."""
        from potluck.catalog.hub_client import translate_hub_errors

        file = items[0][0]
        left = dict.fromkeys(items)
        try:
            while left:
                with translate_hub_errors(file.label or file.content.sha256):
                    self._try(left)
                for item in [each for each in left if not self._work.is_wanted([each])]:
                    del left[item]
        except _HubFailedError as error:
            _LOG.warning("the hub refused %s: %s", file.label, error)
            self._work.assignments.fail_all(HUB, list(left), f"the hub: {error}", file)
        except PotluckError as error:
            _LOG.warning("no bytes received from the hub: %s", error.message)
            self._work.assignments.fail_all(HUB, list(left), error.message)
        self._num_failures = 0

    def _try(self, left: dict[Item, None]) -> None:
        """Make one request, which removes from ``left`` what it delivers, or wait for the next one.

        Raise huggingface_hub's errors and ``OSError`` when all retries are used up.
        """
        from huggingface_hub.errors import HfHubHTTPError, HTTPError  # type: ignore[attr-defined]

        from potluck.catalog.hub_client import retry_delay

        try:
            self._request(left)
            return
        except HfHubHTTPError as error:
            if error.response.status_code == _RANGE_NOT_SATISFIABLE:
                raise _HubFailedError("its file is shorter than listed") from error
            wait = retry_delay(error, self._pause())
            if wait is None or self._num_failures >= len(_PAUSES):
                raise
        except (HTTPError, OSError):
            wait = self._pause()
            if self._num_failures >= len(_PAUSES):
                raise
        self._num_failures += 1
        _LOG.info("retrying the hub in %g s", wait)
        time.sleep(wait)

    def _pause(self) -> float:
        return _PAUSES[min(self._num_failures, len(_PAUSES) - 1)]

    def _request(self, left: dict[Item, None]) -> None:
        from potluck.catalog.hub_cache import Snapshot
        from potluck.catalog.hub_client import streamed

        file, first = next(iter(left))
        named = self._work.hub_name(file)
        if named is None:
            raise _HubFailedError("the location of this file on the hub is unknown")
        repo_id, commit, name = named
        snapshot = Snapshot(repo_id=repo_id, commit=commit, files={})
        end = self._work.range_end(next(reversed(left)), _RANGE_CHUNKS)
        start_byte = first * CHUNK_BYTES
        end_byte = min(end * CHUNK_BYTES, file.content.num_bytes)
        response = streamed(snapshot, name, start_byte, end_byte, on_connected=self._bound_queue)
        with response as (begin, pieces):
            if begin not in (0, start_byte):
                raise _HubFailedError(
                    f"requested bytes from {start_byte} on, but got bytes from {begin} on"
                )
            chunks = self._cut(file, begin, self._paced(pieces))
            if begin == start_byte:
                for chunk, data in chunks:
                    if chunk >= end:  # the response continues after the range
                        break
                    item = (file, chunk)
                    if left and not self._work.is_wanted(left):
                        left.clear()
                        return
                    if item not in left:
                        if not self._work.take_next(HUB, item, seconds=_SLIDE_SECONDS):
                            return
                        left[item] = None
                    self._bring(item, data)
                    left.pop(item, None)
                else:
                    if left:
                        raise OSError("the hub closed the connection within the range")
                    return
                self._take_whole(file, left, itertools.chain([(chunk, data)], chunks))
            else:
                self._take_whole(file, left, chunks)

    def _take_whole(
        self,
        file: SharedFile,
        left: dict[Item, None],
        chunks: Iterable[tuple[int, memoryview]],
    ) -> None:
        """Read a complete file from a hub that ignores ranges, and deliver what is missing."""
        lock = self._streams.setdefault(file.content.sha256, threading.Lock())
        if not lock.acquire(blocking=False):
            self._work.assignments.put_back(HUB, list(left))
            left.clear()
            with lock:  # once the other lane is done, what it left is taken from the queue
                return
        try:
            _LOG.warning("the hub ignores ranges: downloading all of %s", file.label)
            for chunk, data in chunks:
                self._take_passing((file, chunk), data, left)
                if not left and not self._work.is_requested_from(HUB, file):
                    return
            if left:
                raise OSError("the hub closed the connection before the end of the file")
        finally:
            lock.release()

    def _take_passing(self, item: Item, data: memoryview, left: dict[Item, None]) -> None:
        if item not in left and not self._work.is_missing(item):
            if not self._work.take_next(HUB, item, seconds=_SLIDE_SECONDS):
                return
            left[item] = None
        self._bring(item, data)
        left.pop(item, None)

    def _bring(self, item: Item, data: memoryview) -> None:
        try:
            self._work.bring(item, data, HUB)
        except WrongBytesError as error:
            raise _HubFailedError(error.message) from error
        self._num_failures = 0

    def _bound_queue(self, connection: socket.socket) -> None:
        self._share.bound_queue(connection, socket.SO_RCVBUF)

    def _paced(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self._share.spend(len(piece))
            yield piece

    def _cut(
        self, file: SharedFile, at: int, pieces: Iterator[bytes]
    ) -> Iterator[tuple[int, memoryview]]:
        """Yield whole chunks of bytes from ``at`` on. Each is valid until the next one."""
        if not self._buffer:
            self._buffer = bytearray(CHUNK_BYTES)
        view = memoryview(self._buffer)
        chunk, filled = at // CHUNK_BYTES, 0
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                if chunk >= file.content.num_chunks:
                    raise _HubFailedError("its file is longer than listed")
                needed = file.content.chunk_bytes(chunk)
                part = rest[: needed - filled]
                view[filled : filled + len(part)] = part
                filled += len(part)
                rest = rest[len(part) :]
                if filled == needed:
                    yield chunk, view[:needed]
                    chunk, filled = chunk + 1, 0
