"""Which origin is asked for which chunk, and what happens to chunks that no origin provides."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from potluck.cluster.transfer.changes import Changes
from potluck.cluster.transfer.jobs import Jobs
from potluck.cluster.transfer.lane_queues import LaneQueues
from potluck.cluster.transfer.messages import JobFailed, PeerDropped, ProcessMessage
from potluck.cluster.transfer.origins import HUB, Origin
from potluck.cluster.transfer.readers import Readers
from potluck.cluster.transfer.shared_file import Item, SharedFile
from potluck.types.cluster import NodeId

_LOG = logging.getLogger(__name__)

STRANDED_SECONDS = 10.0
"""How long a chunk without an origin waits for new sources, for example when its peer was lost and
the coordinator names another one. Then the hub is asked, even if it was not named: if that happened
sooner, every node would download what one of them can pass on."""

_BANNED_SECONDS = 600.0
"""For a peer that sent wrong bytes."""


class Assignments:
    """Assigns chunks to the best origins that have not failed. For use with the board's lock held.

    A chunk is *stranded* while there is no origin to ask for it.
    """

    def __init__(
        self,
        node_id: NodeId,
        jobs: Jobs,
        readers: Readers,
        queues: LaneQueues,
        changes: Changes,
        *,
        report: Callable[[ProcessMessage], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node_id = node_id
        self._jobs = jobs
        self._readers = readers
        self._queues = queues
        self._changes = changes
        self._report = report
        self._clock = clock
        self._stranded: dict[Item, float] = {}
        self._banned: dict[NodeId, float] = {}
        self._refused: frozenset[NodeId] = frozenset()

    def set_refused(self, nodes: frozenset[NodeId]) -> None:
        """Ask these nodes for nothing from now on."""
        if nodes != self._refused:
            self._refused = nodes
            self._changes.wake()

    def is_refused(self, node: NodeId) -> bool:
        """Return whether a node is excluded from all transfers."""
        return node in self._refused

    def is_stranded(self, file: SharedFile, chunk: int) -> bool:
        """Return whether a chunk is wanted but has no origin."""
        return (file, chunk) in self._stranded

    def assign(self, file: SharedFile, chunk: int) -> None:
        """Ask the best origin that has not failed for a chunk."""
        failed = file.failed.get(chunk, ())
        for origin in self._jobs.origins(file, chunk):
            if origin not in failed and self._is_usable(origin):
                break
        else:
            self._stranded.setdefault((file, chunk), self._clock() + STRANDED_SECONDS)
            return
        self._ask(origin, file, chunk)

    def assign_if_free(self, file: SharedFile, chunk: int) -> None:
        """Ask for a chunk unless an origin was already asked, or there is none."""
        if chunk not in file.assigned and (file, chunk) not in self._stranded:
            self.assign(file, chunk)

    def move_first(self, file: SharedFile, chunk: int) -> None:
        """Move a requested chunk to the front."""
        origin = file.assigned.get(chunk)
        if origin is not None:
            self._queues.move_first(origin, (file, chunk))

    def unqueue(self, file: SharedFile) -> None:
        """Withdraw requests that no lane has taken yet."""
        for origin, chunk in self._queues.remove_file(file):
            if file.assigned.get(chunk) == origin:
                del file.assigned[chunk]

    def withdraw(self, file: SharedFile, chunk: int) -> None:
        """Withdraw the request for a chunk, even if a lane is fetching it."""
        file.assigned.pop(chunk, None)
        self._queues.remove((file, chunk))

    def forget_stranded(self, file: SharedFile) -> None:
        """Stop waiting for new sources: the chunks of a file may be assigned again."""
        for item in [each for each in self._stranded if each[0] is file]:
            del self._stranded[item]

    def put_back(self, origin: Origin, items: Sequence[Item]) -> None:
        """Return chunks that a lane took but cannot provide at the moment."""
        for item in reversed(items):
            file, chunk = item
            if file.assigned.get(chunk) == origin:
                self._queues.add_first(origin, item)
        self._changes.wake()

    def finish(self, file: SharedFile, chunk: int) -> None:
        """Remove the request for a chunk that has arrived."""
        file.assigned.pop(chunk, None)
        file.failed.pop(chunk, None)
        self._stranded.pop((file, chunk), None)
        self._queues.remove((file, chunk))

    def fail(self, origin: Origin, items: Sequence[Item], reason: str) -> None:
        """Reassign chunks that an origin could not provide."""
        for file, chunk in items:
            if file.assigned.get(chunk) != origin:
                continue
            del file.assigned[chunk]
            file.failed.setdefault(chunk, set()).add(origin)
            file.reason = reason
            if not file.holds(chunk):
                self.assign(file, chunk)
        self._changes.wake()

    def fail_all(self, origin: Origin, items: Sequence[Item], reason: str) -> None:
        """Reassign everything that an origin was asked for, taken or not."""
        self.fail(origin, [*items, *self._queues.take_all(origin)], reason)
        if origin.node is not None:
            self._report(PeerDropped(origin.node, reason, False))

    def fail_file(self, origin: Origin, items: Sequence[Item], reason: str) -> None:
        """Reassign everything of a file that an origin was asked for, taken or not."""
        file = items[0][0]
        self.fail(origin, [*items, *self._queues.take_all(origin, file)], reason)

    def ban(self, node: NodeId, items: Sequence[Item], reason: str) -> None:
        """Exclude a peer for a while because it sent wrong bytes."""
        self._banned[node] = self._clock() + _BANNED_SECONDS
        _LOG.warning("node %s sent wrong bytes and is temporarily excluded: %s", node, reason)
        origin = Origin(node)
        waiting = self._queues.take_all(origin)
        self.fail(origin, [*items, *waiting], f"node {node} sent wrong bytes")
        self._report(PeerDropped(node, reason, True))

    def expire(self, now: float) -> None:
        """Give up on chunks that have been stranded for too long."""
        for item, deadline in list(self._stranded.items()):
            if now >= deadline:
                self._give_up(item)

    def _give_up(self, item: Item) -> None:
        file, chunk = item
        del self._stranded[item]
        if self._jobs.is_on_hub(file) and HUB not in file.failed.get(chunk, ()):
            self._ask(HUB, file, chunk)
            return
        message, hint = unavailable(file, chunk)
        for name, job in self._jobs.items():
            wants = any(demand.wants(file, chunk) for demand in self._readers.demands_of(name))
            if wants and job.failure is None:
                job.failure = (message, hint)
                label = file.label or file.content.sha256
                self._report(JobFailed(name, f"{label}: {message}", hint))
        self._changes.wake()

    def _ask(self, origin: Origin, file: SharedFile, chunk: int) -> None:
        self._stranded.pop((file, chunk), None)
        file.assigned[chunk] = origin
        self._queues.add(origin, (file, chunk))
        self._changes.notify_all()

    def _is_usable(self, origin: Origin) -> bool:
        if origin.node is None:
            return True
        if origin.node == self._node_id or origin.node in self._refused:
            return False
        return self._banned.get(origin.node, 0.0) <= self._clock()


def unavailable(file: SharedFile, chunk: int) -> tuple[str, str]:
    """Return a message about a chunk that no origin provides, and a hint."""
    reason = f" ({file.reason})" if file.reason else ""
    return (
        f"chunk {chunk} is not on this disk, and no known source provides it{reason}",
        "check that a node that has the model is in the cluster, or that the hub is reachable",
    )
