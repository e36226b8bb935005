"""The work of lanes: they take chunks from the board, and deliver them or why they cannot."""

from __future__ import annotations

import time
from collections.abc import Iterable

from potluck.cluster.transfer.assignments import Assignments, LaneQueues
from potluck.cluster.transfer.changes import Changes
from potluck.cluster.transfer.demand import Readers
from potluck.cluster.transfer.fetch_order import FetchOrder
from potluck.cluster.transfer.jobs import Jobs
from potluck.cluster.transfer.shared_file import (
    HUB,
    Item,
    Origin,
    SharedFile,
    WrongBytesError,
    sha256_of,
)
from potluck.cluster.transfer.window import Relay
from potluck.errors import DamagedChunkError, StoreFullError
from potluck.types.cluster import NodeId


class LaneWork:
    """Called by the threads of lanes, which also call the methods of ``assignments`` that take the
    lock.

    Thread-safe; chunks are hashed and written without the lock.
    """

    def __init__(
        self,
        jobs: Jobs,
        readers: Readers,
        queues: LaneQueues,
        assignments: Assignments,
        fetch_order: FetchOrder,
        relay: Relay,
        changes: Changes,
    ) -> None:
        self._jobs = jobs
        self._readers = readers
        self._queues = queues
        self.assignments = assignments
        self._fetch_order = fetch_order
        self._relay = relay
        self._changes = changes

    def take(self, origin: Origin, most: int, *, seconds: float, is_range: bool) -> list[Item]:
        """Return the next chunks to get, at most ``most``; none if there were none in time.

        ``is_range``: only consecutive chunks of one file.
        """
        deadline = time.monotonic() + seconds
        with self._changes:
            while not (taken := self._queues.take(origin, most, is_range=is_range)):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._changes.wait(left)
            return taken

    def take_next(self, origin: Origin, item: Item, *, seconds: float) -> bool:
        """Take a given chunk, waiting briefly until it is requested; return whether it was.

        It does not wait if other chunks are requested instead: they may be needed first.
        """
        file, chunk = item
        deadline = time.monotonic() + seconds
        with self._changes:
            while not self._queues.take_one(origin, item):
                left = deadline - time.monotonic()
                if left <= 0 or self._queues.has_any(origin):
                    return False
                if file.holds(chunk) or not self._readers.is_missing(file, chunk):
                    return False
                self._changes.wait(left)
            return True

    def lane_ends(self, origin: Origin) -> bool:
        """Count one lane less unless there is work for it; return whether it must end."""
        with self._changes:
            return self._queues.lane_ends(origin)

    def is_wanted(self, items: Iterable[Item]) -> bool:
        """Return whether any of several chunks is still to be delivered."""
        with self._changes:
            return any(chunk in file.assigned for file, chunk in items)

    def is_requested_from(self, origin: Origin, file: SharedFile) -> bool:
        """Return whether anything more of a file is requested from an origin."""
        with self._changes:
            return origin in file.assigned.values()

    def is_guess(self, item: Item, origin: Origin) -> bool:
        """Return whether a chunk is requested from an origin that was not named for it."""
        file, chunk = item
        with self._changes:
            return not self._jobs.is_named(origin, file, chunk)

    def is_missing(self, item: Item) -> bool:
        """Return whether a passing chunk is useful: it is wanted and not here."""
        file, chunk = item
        with self._changes:
            if file.holds(chunk):
                return False
            return chunk in file.assigned or self._readers.want_kept(file, chunk)

    def range_end(self, item: Item, most: int) -> int:
        """Return the useful end of a range that begins with a chunk.

        A reader that stores nothing will want what follows, though it requests little at a time.
        """
        file, chunk = item
        with self._changes:
            end = chunk + 1
            while (
                end < min(file.content.num_chunks, chunk + most)
                and not file.holds(end)
                and any(demand.lacks(file, end) for demand in self._readers.streams())
                and HUB in self._jobs.origins(file, end)
            ):
                end += 1
            return end

    def bring(
        self, item: Item, data: memoryview | bytes, origin: Origin, claimed: bytes | None = None
    ) -> None:
        """Accept a chunk from a lane; ``claimed`` is the digest that a peer gave.

        Raise ``WrongBytesError``.
        """
        file, chunk = item
        digest = sha256_of(data)
        with self._changes:
            expected = file.digest(chunk)
            if expected is not None and digest != expected:
                raise WrongBytesError(
                    f"chunk {chunk} of {file.label or file.content.sha256} does not match its "
                    "SHA-256"
                )
            if claimed is not None and digest != claimed:
                raise WrongBytesError(
                    f"chunk {chunk} of {file.label or file.content.sha256} does not match the "
                    "announced SHA-256"
                )
            keeps = file.blob is not None and self._readers.may_store(file, chunk)
            if keeps:  # before it is written: a reader may find and count it at once
                file.note_origin(chunk, origin.label)
        if keeps:
            try:
                file.write(chunk, data, digest)
            except DamagedChunkError as error:
                with self._changes:
                    file.take_origin(chunk)
                raise WrongBytesError(error.message) from error
            except StoreFullError as error:
                with self._changes:
                    file.take_origin(chunk)
                    self._fetch_order.stop_keeping(file, error)
                    if file.peer_waits[chunk]:
                        self._relay.admit(file, chunk)
                keeps = False
        with self._changes:
            self.assignments.finish(file, chunk)
            if not keeps:
                file.note_digest(chunk, digest)
            for demand in self._readers.demands():
                if not keeps and not demand.keeps and demand.is_due(file, chunk):
                    demand.window(file).put(chunk, data)
                demand.count(file, chunk, origin.label)
            if self._readers.is_reported(file, chunk):
                file.take_origin(chunk)
            if not keeps:
                self._relay.put(file, chunk, data)
            self._changes.wake()

    def peer_address(self, node: NodeId) -> tuple[str, int] | None:
        """Return where a peer listens, according to the latest job that names it."""
        with self._changes:
            return self._jobs.peer_address(node)

    def hub_name(self, file: SharedFile) -> tuple[str, str, str] | None:
        """Return repository, commit and name of a file on the hub."""
        with self._changes:
            return self._jobs.hub_name(file)
