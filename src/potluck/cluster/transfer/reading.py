"""What readers ask of the board: to have ranges of files fetched, and where the chunks are."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from potluck.cluster.transfer.assignments import unavailable
from potluck.cluster.transfer.changes import Changes
from potluck.cluster.transfer.demand import Demand
from potluck.cluster.transfer.fetch_order import FetchOrder
from potluck.cluster.transfer.file_table import FileTable
from potluck.cluster.transfer.jobs import Jobs
from potluck.cluster.transfer.messages import Arrived, Failed
from potluck.cluster.transfer.readers import Reader, Readers
from potluck.cluster.transfer.shared_file import SharedFile
from potluck.errors import DamagedChunkError, ModelFileError
from potluck.types.content import FileContent

_LOG = logging.getLogger(__name__)


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
            _LOG.warning("%s", error.message)
            return None
        except ModelFileError as error:
            with self._changes:
                file.drop_local()
                if not self._jobs.has_routes(file):
                    return Failed(error.problem, error.hint, is_changed=True)
            _LOG.warning("%s: fetching it from elsewhere", error.message)
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
            return Arrived(first, until, demand.places[file], True), os.dup(window.descriptor())
        if not demand.job and not self._jobs.has_routes(file):
            return Failed(*unavailable(file, first), is_changed=False)
        job = self._jobs.get(demand.job)
        if job is not None and job.failure is not None:
            return Failed(*job.failure, is_changed=False)
        self._fetch_order.bring_first(demand, file, first, end)
        return None
