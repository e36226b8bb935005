"""What sessions with peers ask of the board: chunks that are here, or expected."""

from __future__ import annotations

import logging

from potluck.cluster.transfer.assignments import Assignments
from potluck.cluster.transfer.changes import Changes
from potluck.cluster.transfer.file_table import FileTable
from potluck.cluster.transfer.jobs import Jobs
from potluck.cluster.transfer.readers import Readers
from potluck.cluster.transfer.shared_file import SharedFile, sha256_of
from potluck.cluster.transfer.window import Relay
from potluck.errors import ModelFileError
from potluck.types.cluster import NodeId
from potluck.types.content import FileContent

_LOG = logging.getLogger(__name__)


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
        self._assignments = assignments
        self._relay = relay
        self._changes = changes

    def is_refused(self, node: NodeId) -> bool:
        """Return whether a node is excluded from all transfers."""
        with self._changes:
            return self._assignments.is_refused(node)

    def add_waker(self, descriptor: int) -> None:
        """Register an ``eventfd(2)`` that is written to when something changes."""
        self._changes.add_waker(descriptor)

    def drop_waker(self, descriptor: int) -> None:
        """Stop writing to a descriptor."""
        self._changes.drop_waker(descriptor)

    def use(self, content: FileContent) -> SharedFile | None:
        """Return a known file, to be released with ``release``; None for any other."""
        with self._changes:
            return self._files.use(content)

    def release(self, file: SharedFile) -> None:
        """End the use of a file."""
        with self._changes:
            self._files.release(file)

    def will_serve(self, file: SharedFile, chunk: int) -> None:
        """Count a peer that waits for a chunk: a window keeps it until ``served``."""
        with self._changes:
            file.peer_waits[chunk] += 1

    def serve(self, file: SharedFile, chunk: int, peer: NodeId) -> tuple[bytes, bytes] | None:
        """Return a chunk and its digest for a peer; None if it has not arrived yet.

        Raise ``UnknownChunkError`` if it is neither here nor expected.
        """
        with self._changes:
            is_held = file.holds(chunk)
            data = None if is_held else self._in_window(file, chunk)
        if is_held:
            try:
                data = file.read(chunk)
            except ModelFileError as error:
                _LOG.warning("%s", error.message)
        if data is not None:
            return data, file.digest(chunk) or sha256_of(data)
        with self._changes:
            self._expect(file, chunk, peer)
            return None

    def served(self, file: SharedFile, chunk: int) -> None:
        """Count one peer less that waits for a chunk."""
        with self._changes:
            file.peer_waits[chunk] -= 1
            if file.peer_waits[chunk] <= 0:
                del file.peer_waits[chunk]
                for demand in self._readers.demands():
                    demand.served(file, chunk)
                if self._relay.drop(file, chunk):
                    self._changes.wake()

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
        if self._assignments.is_stranded(file, chunk) or self._readers.expect(file, chunk):
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
            self._assignments.assign_if_free(file, chunk)
            self._changes.wake()
