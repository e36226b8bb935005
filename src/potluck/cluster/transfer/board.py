"""The board: which chunks are here, which are wanted and by whom, and who should provide them. All
threads share it.

Readers put chunks on the board (``reading``), lanes (one for each peer, a few for the hub) take
them from there and deliver the bytes (``lane_work``), and sessions send peers what is here or wait
for it (``reading``). Everything is guarded by one lock; hashing and disk access happen outside of
it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from potluck.cluster.transfer.assignments import Assignments, LaneQueues
from potluck.cluster.transfer.changes import Changes
from potluck.cluster.transfer.demand import Readers
from potluck.cluster.transfer.fetch_order import FetchOrder
from potluck.cluster.transfer.file_table import FileTable
from potluck.cluster.transfer.jobs import Jobs
from potluck.cluster.transfer.lane_work import LaneWork
from potluck.cluster.transfer.messages import ProcessMessage
from potluck.cluster.transfer.reading import Reading, Serving
from potluck.cluster.transfer.shared_file import Origin, Routes, SharedFile
from potluck.cluster.transfer.window import Relay
from potluck.store.content_store import ContentStore
from potluck.types.cluster import NodeId
from potluck.types.content import FileContent, ReadingOrder


class Board:
    """Connects the parts of the board, and carries out the agent's requests.

    Thread-safe. ``start_lane`` is called, with the lock held, when an origin needs a thread.
    """

    def __init__(
        self,
        store: ContentStore,
        node_id: NodeId,
        *,
        start_lane: Callable[[Origin], None],
        report: Callable[[ProcessMessage], None],
    ) -> None:
        self._report = report
        self.changes = changes = Changes()
        self.readers = readers = Readers()
        self._jobs = jobs = Jobs()
        self.relay = relay = Relay()
        self.files = files = FileTable(store, jobs, relay, changes)
        queues = LaneQueues(start_lane)
        self.assignments = assignments = Assignments(node_id, jobs, readers, queues, changes)
        self._fetch_order = fetch_order = FetchOrder(jobs, readers, files, assignments)
        self.reading = Reading(jobs, readers, files, fetch_order, changes)
        self.lane_work = LaneWork(jobs, readers, queues, assignments, fetch_order, relay, changes)
        self.serving = Serving(node_id, jobs, readers, files, assignments, relay, changes)

    def set_sources(self, job: str, routes: Routes, *, ahead: ReadingOrder = ()) -> None:
        """Set a job's current sources; chunks without an origin are then requested from them.

        Those of ``ahead`` are requested even though no reader wants them yet; what was requested
        ahead from earlier sources is withdrawn.
        """
        with self.changes:
            known = self._jobs.add(job)
            known.routes = routes
            known.failure = None
            in_use: list[SharedFile] = []
            for name in routes.manifest.files:
                file = self.files.get(name.content.sha256)
                if file is not None:
                    file.num_users += 1  # a file that is closed forgets the origins of its chunks
                    in_use.append(file)
                    file.label = name.name
                    file.failed.clear()
            self._fetch_order.end_ahead(known)
            for file in in_use:
                self.assignments.unqueue(file)
                self.assignments.forget_stranded(file)
            self._fetch_order.request_job(job)
            self._fetch_order.fetch_ahead(known, ahead)
            for file in in_use:
                self.files.release(file)
            self.changes.wake()

    def end_job(self, job: str) -> None:
        """Forget a job, and what its readers want."""
        with self.changes:
            if (known := self._jobs.get(job)) is not None:
                self._fetch_order.end_ahead(known)
            self._jobs.remove(job)
            for reader in self.readers:
                demand = reader.demands.pop(job, None)
                if demand is not None:
                    self._fetch_order.close(demand)
            self.changes.wake()

    def look_again(self, content: FileContent) -> None:
        """Use a file that has just been found on this disk."""
        with self.changes:
            file = self.files.get(content.sha256)
            if file is not None:
                file.find_local()
                self.changes.wake()

    def add_digests(self, content: FileContent, digests: bytes, *, is_verified: bool) -> None:
        """Set the digests of all chunks. Raise ``ValueError`` if their number is wrong."""
        if len(digests) != content.digests_bytes:
            raise ValueError(f"{len(digests)} bytes of digests for {content}")
        with self.changes:
            self.files.note_digests(content, digests, is_verified=is_verified)
            with self.files.using(content) as file:
                if file is None:
                    return
                if not is_verified:
                    file.expect(digests)
                else:
                    file.set_verified(digests)
                    self._fetch_order.request_file(file)
            self.changes.wake()

    def tick(self) -> None:
        """Give up on chunks without a source, and report the progress of jobs."""
        now = time.monotonic()
        with self.changes:
            self.assignments.expire(now)
            for name, job in self._jobs.items():
                demands = self.readers.demands_of(name)
                self._fetch_order.end_ahead_if_done(job, demands)
                progress = job.progress.report(name, demands, now) if name else None
                if progress is not None:
                    self._report(progress)
            for file in self.files.all():
                self.files.retire(file)
