"""Requests of readers and of sessions with peers to the board: have ranges of files fetched, find
chunks, and list chunks that are here or expected.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from potluck.cluster.transfer.assignments import Assignments, unavailable
from potluck.cluster.transfer.changes import Changes
from potluck.cluster.transfer.demand import Demand, Reader, Readers
from potluck.cluster.transfer.fetch_order import FetchOrder
from potluck.cluster.transfer.file_table import FileTable
from potluck.cluster.transfer.jobs import Jobs
from potluck.cluster.transfer.messages import Arrived, Failed
from potluck.cluster.transfer.shared_file import SharedFile, sha256_of
from potluck.cluster.transfer.window import Relay
from potluck.errors import DamagedChunkError, ModelFileError
from potluck.types.cluster import NodeId
from potluck.types.content import FileContent

_log = logging.getLogger(__name__)


class Reading:
    """For the threads that serve readers. Thread-safe; disks are read without the lock."""

    def __init__(
        self,
        jobs: Jobs,
        readers: Readers,
        files: FileTable,
        fetch_order: FetchOrder,
        changes: Changes,
    ) -> None:
        self._jobs = jobs
        self._readers = readers
        self._files = files
        self._fetch_order = fetch_order
        self._changes = changes

    def add_reader(self) -> Reader:
        """Return a new reader; ``drop_reader`` ends it."""
        reader = Reader()
        with self._changes:
            self._readers.add(reader)
        return reader

    def drop_reader(self, reader: Reader) -> None:
        """Cancel everything that a reader wants."""
        with self._changes:
            self._fetch_order.drop(reader)
            self._changes.wake()

    def open_file(self, reader: Reader, content: FileContent, label: str, job: str) -> None:
        """Record the job for which a reader reads a file, and its label."""
        with self._changes:
            reader.opened[content.sha256] = (job, label)
            reader.num_open[content.sha256] += 1
            self._files.open(content, label)

    def close_file(self, reader: Reader, content: FileContent) -> None:
        """Release what a reader has in memory of a file."""
        with self._changes:
            reader.num_open[content.sha256] -= 1
            if reader.num_open[content.sha256] > 0:
                return
            del reader.num_open[content.sha256]
            reader.opened.pop(content.sha256, None)
            file = self._files.get(content.sha256)
            if file is not None:
                for demand in reader.demands.values():
                    demand.close_window(file)
                self._fetch_order.fill_windows()

    def want(
        self,
        reader: Reader,
        job: str,
        needs: Sequence[tuple[FileContent, Sequence[tuple[int, int]]]],
        *,
        keeps: bool,
    ) -> None:
        """Replace what a reader wants for a job by byte ranges in the order of reading."""
        with self._changes:
            runs: list[tuple[SharedFile, int, int]] = []
            for content, ranges in needs:
                file = self._files.open(content, reader.opened.get(content.sha256, ("", ""))[1])
                for start, end in ranges:
                    first, last = content.chunks(start, min(end, content.num_bytes))
                    if start < end:
                        runs.append((file, first, last))
            demand = Demand(job, runs, keeps=keeps)
            old = reader.demands.pop(job, None)
            if old is not None:
                demand.take_over(old)
            reader.demands[job] = demand
            self._jobs.add(job)
            self._fetch_order.begin(demand)
            if old is not None:
                old.by_label.clear()  # the new one has taken it over
                self._fetch_order.close(old)
            self._changes.wake()

    def find(
        self, reader: Reader, content: FileContent, first: int, end: int
    ) -> tuple[Arrived, int] | Failed | None:
        """Return where a reader finds a chunk, with the descriptor; None if it has not arrived yet.

        The descriptor is a duplicate, owned by the caller. Chunks on a disk are checked first.
        """
        with self._changes:
            demand = self._fetch_order.demand(reader, content)
            file = self._files.open(content)
            end = max(first + 1, min(end, content.num_chunks))
            if not file.holds(first):
                return self._find_in_memory(demand, file, first, end)
            while end > first and not file.holds(end - 1):
                end -= 1
        try:
            until = first
            while until < end and file.holds(until):
                file.check(until)
                until += 1
        except DamagedChunkError as error:
            _log.warning("%s", error.message)
            return None
        except ModelFileError as error:
            with self._changes:
                file.drop_local()
                if not self._jobs.naming(file):
                    return Failed(error.problem, error.hint, is_changed=True)
            _log.warning("%s: fetching it from elsewhere", error.message)
            return None
        with self._changes:
            for chunk in range(first, until):
                demand.count_stored(file, chunk)
            holder = file.local or file.blob
            if holder is None or until == first:
                return None
            place = file.store_place if file.local is None else file.local_place
            return Arrived(first, until, place, False), os.dup(holder.descriptor())

    def await_chunk(self, reader: Reader, content: FileContent, chunk: int, seconds: float) -> None:
        """Wait until a chunk may be here, at most for the given time."""
        with self._changes:
            file = self._files.get(content.sha256)
            demand = self._fetch_order.demand(reader, content)
            job = self._jobs.get(demand.job)
            if file is None or file.holds(chunk) or demand.has_in_window(file, chunk):
                return
            if job is None or job.failure is None:
                self._changes.wait(seconds)

    def check(self, content: FileContent) -> Failed | None:
        """Return a failure if a file elsewhere on this disk has changed."""
        with self._changes:
            file = self._files.get(content.sha256)
            local = None if file is None else file.local
        if local is None:
            return None
        try:
            local.check_unchanged()
        except ModelFileError as error:
            return Failed(error.problem, error.hint, is_changed=True)
        return None

    def consume(self, reader: Reader, content: FileContent, first: int, end: int) -> None:
        """Release chunks of a window that were read."""
        with self._changes:
            file = self._files.get(content.sha256)
            demand = self._fetch_order.demand(reader, content)
            if file is None:
                return
            if demand.awaited is not None and demand.awaited[0] is file:
                demand.awaited = (file, max(end, demand.awaited[1]), demand.awaited[2])
            demand.consume(file, first, end)
            self._fetch_order.fill_windows()

    def arrived_bytes(self, reader: Reader, content: FileContent) -> int:
        """Return how many bytes are here of what a reader wants."""
        with self._changes:
            return self._fetch_order.demand(reader, content).done_bytes

    def _find_in_memory(
        self, demand: Demand, file: SharedFile, first: int, end: int
    ) -> tuple[Arrived, int] | Failed | None:
        """Return where the window of a file has a chunk; otherwise request it.

        The lock must be held.
        """
        if demand.has_in_window(file, first):
            window = demand.window(file)
            until = first
            while until < end and until in window.present:
                until += 1
            return Arrived(first, until, window.place, True), os.dup(window.descriptor())
        if not demand.job and not self._jobs.naming(file):
            return Failed(*unavailable(file, first), is_changed=False)
        job = self._jobs.get(demand.job)
        if job is not None and job.failure is not None:
            return Failed(*job.failure, is_changed=False)
        self._fetch_order.bring_first(demand, file, first, end)
        return None


class UnknownChunkError(Exception):
    """The node neither has a chunk nor expects it."""


class Serving:
    """For the threads of sessions. Thread-safe; disks are read without the lock."""

    def __init__(
        self,
        node_id: NodeId,
        jobs: Jobs,
        readers: Readers,
        files: FileTable,
        assignments: Assignments,
        relay: Relay,
        changes: Changes,
    ) -> None:
        self._node_id = node_id
        self._jobs = jobs
        self._readers = readers
        self._files = files
        self.assignments = assignments
        self._relay = relay
        self.changes = changes

    def use(self, content: FileContent) -> SharedFile | None:
        """Return a known file, to be released with ``release``; None for any other."""
        with self.changes:
            return self._files.use(content)

    def release(self, file: SharedFile) -> None:
        """End the use of a file."""
        with self.changes:
            self._files.release(file)

    def will_serve(self, file: SharedFile, chunk: int) -> None:
        """Count a peer that waits for a chunk: a window keeps it until ``served``."""
        with self.changes:
            file.peer_waits[chunk] += 1

    def serve(self, file: SharedFile, chunk: int, peer: NodeId) -> tuple[bytes, bytes] | None:
        """Return a chunk and its digest for a peer; None if it has not arrived yet.

        Raise ``UnknownChunkError`` if it is neither here nor expected.
        """
        with self.changes:
            is_held = file.holds(chunk)
            data = None if is_held else self._in_window(file, chunk)
        if is_held:
            try:
                data = file.read(chunk)
            except ModelFileError as error:
                _log.warning("%s", error.message)
        if data is not None:
            return data, file.digest(chunk) or sha256_of(data)
        with self.changes:
            self._expect(file, chunk, peer)
            return None

    def served(self, file: SharedFile, chunk: int) -> None:
        """Count one peer less that waits for a chunk."""
        with self.changes:
            file.peer_waits[chunk] -= 1
            if file.peer_waits[chunk] <= 0:
                del file.peer_waits[chunk]
                for demand in self._readers.demands():
                    demand.served(file, chunk)
                if self._relay.drop(file, chunk):
                    self.changes.wake()

    def _in_window(self, file: SharedFile, chunk: int) -> bytes | None:
        for demand in self._readers.demands():
            if demand.has_in_window(file, chunk):
                return demand.window(file).read(chunk)
        return self._relay.read(file, chunk)

    def _expect(self, file: SharedFile, chunk: int, peer: NodeId) -> None:
        """Request a chunk, even if no reader wants it. The lock must be held.

        Raise ``UnknownChunkError`` if it will not arrive.
        """
        if chunk in file.assigned:
            if file.assigned[chunk].node != peer:
                return
            raise UnknownChunkError
        if self.assignments.is_stranded(file, chunk) or self._readers.expect(file, chunk):
            return
        if file.failed.get(chunk) or not self._jobs.is_routed_to_others(
            file, chunk, (peer, self._node_id)
        ):
            raise UnknownChunkError
        names = self._jobs.naming(file)
        demands = [demand for demand in self._readers.demands() if demand.job in names]
        keeps = all(demand.keeps for demand in demands)
        is_read = any(demand.has_read(file, chunk) for demand in demands)
        if not ((demands and keeps) or is_read or self._jobs.is_overdue(file)):
            return  # a reader that has not started yet may want it
        if (keeps and file.open_blob()) or self._relay.admit(file, chunk):
            self.assignments.assign_if_free(file, chunk)
            self.changes.wake()
