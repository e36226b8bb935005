"""The order of requests: everything that is to be stored, and little of what is only read."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from potluck.cluster.transfer.assignments import Assignments
from potluck.cluster.transfer.demand import Demand, Reader, Readers
from potluck.cluster.transfer.file_table import FileTable
from potluck.cluster.transfer.jobs import Job, Jobs
from potluck.cluster.transfer.shared_file import SharedFile
from potluck.errors import StoreFullError
from potluck.types.content import FileContent, ReadingOrder, limited

_LOG = logging.getLogger(__name__)

MOST_WINDOW_CHUNKS = 32
"""The maximum for all readers together, in transit or present."""

READER_SECONDS = 60.0
"""How long after it was told of a job a node keeps files open for readers that may still start."""


class FetchOrder:
    """Requests what readers want. For use with the board's lock held."""

    def __init__(
        self,
        jobs: Jobs,
        readers: Readers,
        files: FileTable,
        assignments: Assignments,
    ) -> None:
        self._jobs = jobs
        self._readers = readers
        self._files = files
        self._assignments = assignments

    def demand(self, reader: Reader, content: FileContent) -> Demand:
        """Return the demand for which a file is read; a new one if it was not announced."""
        job, label = reader.opened.get(content.sha256, ("", ""))
        demand = reader.demands.get(job)
        if demand is None:
            self._files.open(content, label)
            demand = reader.demands[job] = Demand(job, [], keeps=self._files.can_keep)
            self.begin(demand)
        return demand

    def begin(self, demand: Demand) -> None:
        """Request what a new demand wants and is not here."""
        if not demand.keeps or not _can_store(demand):
            demand.use_windows()
        for file, chunk in demand.chunks():
            if file.holds(chunk):
                demand.count_stored(file, chunk)
            elif demand.keeps:
                self._assignments.assign_if_free(file, chunk)
        self.fill_windows()

    def fetch_ahead(self, job: Job, order: ReadingOrder) -> None:
        """Request chunks that the job's readers will want, if all of them can be stored.

        No progress is reported of them: they are counted when a reader wants them.
        """
        if not order or not self._files.can_keep or job.routes is None:
            return
        contents = {each.content.sha256: each.content for each in job.routes.manifest.files}
        runs = [
            (self._files.open(contents[sha256]), first, end)
            for sha256, of_file in order
            if sha256 in contents
            for first, end in limited(of_file, 0, contents[sha256].num_chunks)
        ]
        demand = Demand("", runs, keeps=True)
        if not _can_store(demand):
            self.close(demand)
            return
        job.ahead = Reader()
        job.ahead.demands[""] = demand
        self._readers.add(job.ahead)
        self.begin(demand)

    def end_ahead(self, job: Job) -> None:
        """Withdraw what was requested before readers wanted it."""
        if (ahead := job.ahead) is not None:
            job.ahead = None
            self.drop(ahead)

    def end_ahead_if_done(self, job: Job, readers: Sequence[Demand]) -> None:
        """Release files that were fetched ahead once readers want all of them, or none has come."""
        if job.ahead is None:
            return
        ahead = job.ahead.demands[""]
        if ahead.done_bytes < ahead.total_bytes:
            return
        wanted = {file for demand in readers for file in demand.files()}
        if wanted.issuperset(ahead.files()) or self._jobs.age(job) >= READER_SECONDS:
            self.end_ahead(job)

    def bring_first(self, demand: Demand, file: SharedFile, first: int, end: int) -> None:
        """Move chunks to the front."""
        for chunk in range(first, end):
            demand.add(file, chunk)
        if demand.keeps and not file.open_blob():
            demand.use_windows()
        if not demand.keeps:
            demand.awaited = (file, first, end)
            self.fill_windows()
        for chunk in reversed(range(first, end)):
            if file.holds(chunk) or (not demand.keeps and chunk not in file.assigned):
                continue
            self._assignments.assign_if_free(file, chunk)
            self._assignments.move_first(file, chunk)

    def fill_windows(self) -> None:
        """Request what should be in memory, as far as there is room."""
        streams = self._readers.streams()
        if not streams:
            return
        num_chunks = sum(
            len(window.present) for demand in streams for window in demand.windows.values()
        ) + sum(
            1
            for file in self._files.all()
            for chunk in file.assigned
            if any(demand.wants(file, chunk) for demand in streams)
        )
        for demand in streams:
            for file, chunk in demand.ahead():
                if file.holds(chunk) or demand.has_in_window(file, chunk):
                    continue
                if chunk in file.assigned or self._assignments.is_stranded(file, chunk):
                    continue
                is_next = (
                    demand.awaited is not None
                    and demand.awaited[0] is file
                    and demand.awaited[1] == chunk
                )
                if num_chunks < MOST_WINDOW_CHUNKS or is_next:
                    num_chunks += 1
                    self._assignments.assign(file, chunk)

    def request_job(self, job: str) -> None:
        """Request what is missing for a job, and for readers that name none."""
        for demand in self._readers.demands():
            if demand.job == job or not demand.job:
                self._request(demand)

    def request_file(self, file: SharedFile) -> None:
        """Request what is missing of a file for all demands."""
        for demand in self._readers.demands():
            if file in demand.files():
                self._request(demand)

    def stop_keeping(self, file: SharedFile, error: StoreFullError) -> None:
        """Hold the rest of a file in memory: the store has no room for it."""
        for _, job in self._jobs.items():
            self.end_ahead(job)
        for demand in self._readers.demands():
            if demand.keeps and file in demand.files():
                _LOG.warning(
                    "%s; the rest is read without storing it (%s)",
                    error.message,
                    error.hint,
                )
                demand.use_windows()
                for each in demand.files():
                    self._assignments.unqueue(each)
        self.fill_windows()

    def close(self, demand: Demand) -> None:
        """Cancel requests for what only this demand wants. It no longer belongs to a reader."""
        files = demand.files()
        job = self._jobs.get(demand.job)
        if job is not None:
            job.progress.keep(demand)
        demand.close()
        for file in files:
            if not self._readers.is_any_wanted(file):
                self._assignments.unqueue(file)
                file.assigned.clear()  # lanes stop what they are doing
            for chunk in list(file.assigned):
                if not file.peer_waits[chunk] and not self._readers.is_wanted(file, chunk):
                    self._assignments.withdraw(file, chunk)
            self._assignments.forget_stranded(file)
            self._files.retire(file)

    def drop(self, reader: Reader) -> None:
        """Cancel everything that a reader wants."""
        self._readers.remove(reader)
        for demand in reader.demands.values():
            self.close(demand)
        reader.demands.clear()

    def _request(self, demand: Demand) -> None:
        if demand.keeps:
            for file in demand.files():
                for chunk in range(file.content.num_chunks):
                    if demand.wants(file, chunk) and not file.holds(chunk):
                        self._assignments.assign_if_free(file, chunk)
        self.fill_windows()


def _can_store(demand: Demand) -> bool:
    """Return whether all chunks of a demand are on a disk, or the store may keep them."""
    return all(file.local or file.open_blob() for file in demand.files())
