"""Which origin is asked for which chunk, and what happens to chunks that no origin provides."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from potluck.cluster.transfer.changes import Changes
from potluck.cluster.transfer.demand import Readers
from potluck.cluster.transfer.jobs import Jobs
from potluck.cluster.transfer.shared_file import HUB, Item, Origin, SharedFile
from potluck.types.cluster import NodeId
from potluck.types.content import CHUNK_BYTES

_LOG = logging.getLogger(__name__)

STRANDED_SECONDS = 10.0
"""How long a chunk without an origin waits for new sources, for example when its peer was lost and
the coordinator names another one. Then the hub is asked, even if it was not named: if that happened
sooner, every node would download what one of them can pass on."""

_BANNED_SECONDS = 600.0
"""For a peer that sent wrong bytes."""


MOST_HUB_LANES = 3
HUB_LANE_BYTES = 2**27


@dataclass(slots=True)
class _Queue:
    """The chunks requested from one origin, and its number of threads."""

    items: OrderedDict[Item, None] = field(default_factory=OrderedDict)
    num_lanes: int = 0


class LaneQueues:
    """For use with the board's lock held; ``start_lane`` is also called with it."""

    def __init__(self, start_lane: Callable[[Origin], None]) -> None:
        self._start_lane = start_lane
        self._queues: dict[Origin, _Queue] = {}

    def add(self, origin: Origin, item: Item) -> None:
        """Add a chunk, and a lane if the length of the queue justifies one."""
        queue = self._queue(origin)
        queue.items[item] = None
        if queue.num_lanes < _lanes_for(origin, len(queue.items)):
            queue.num_lanes += 1
            self._start_lane(origin)

    def add_first(self, origin: Origin, item: Item) -> None:
        """Add a chunk at the front, for the existing lanes."""
        queue = self._queue(origin)
        queue.items[item] = None
        queue.items.move_to_end(item, last=False)

    def move_first(self, origin: Origin, item: Item) -> None:
        """Move a chunk to the front if it is in the queue."""
        queue = self._queue(origin)
        if item in queue.items:
            queue.items.move_to_end(item, last=False)

    def take(self, origin: Origin, most: int, *, is_range: bool) -> list[Item]:
        """Take at most ``most`` chunks from the front of the queue and return them.

        ``is_range``: only consecutive chunks of one file.
        """
        queue = self._queue(origin)
        if not queue.items:
            return []
        taken = [queue.items.popitem(last=False)[0]]
        while queue.items and len(taken) < most:
            file, chunk = taken[-1]
            item = (file, chunk + 1) if is_range else next(iter(queue.items))
            if item not in queue.items:
                break
            del queue.items[item]
            taken.append(item)
        return taken

    def has_any(self, origin: Origin) -> bool:
        """Return whether anything is requested from an origin."""
        return bool(self._queue(origin).items)

    def take_one(self, origin: Origin, item: Item) -> bool:
        """Take a given chunk from the queue; return whether it was there."""
        queue = self._queue(origin)
        if item not in queue.items:
            return False
        del queue.items[item]
        return True

    def take_all(self, origin: Origin, file: SharedFile | None = None) -> list[Item]:
        """Take all chunks, or all of one file, from the queue and return them."""
        queue = self._queue(origin)
        taken = [item for item in queue.items if file is None or item[0] is file]
        for item in taken:
            del queue.items[item]
        return taken

    def remove(self, item: Item) -> None:
        """Remove a chunk from all queues."""
        for queue in self._queues.values():
            queue.items.pop(item, None)

    def remove_file(self, file: SharedFile) -> list[tuple[Origin, int]]:
        """Remove all chunks of a file from all queues; return which were requested from whom."""
        return [
            (origin, chunk) for origin in self._queues for _, chunk in self.take_all(origin, file)
        ]

    def lane_ends(self, origin: Origin) -> bool:
        """Count one lane less unless there is work for it; return whether it must end."""
        queue = self._queues[origin]
        if queue.items and queue.num_lanes <= 1:
            return False
        queue.num_lanes -= 1
        return True

    def _queue(self, origin: Origin) -> _Queue:
        return self._queues.setdefault(origin, _Queue())


def _lanes_for(origin: Origin, num_waiting: int) -> int:
    """Return how many threads an origin justifies.

    If much is to be downloaded, it is more than one connection to the hub, as a single one does not
    use the full bandwidth of a link with high latency.
    """
    if origin.node is not None:
        return 1
    return min(MOST_HUB_LANES, 1 + num_waiting * CHUNK_BYTES // HUB_LANE_BYTES)


class Assignments:
    """Assigns chunks to the best origins that have not failed.

    A chunk is *stranded* while there is no origin to ask for it. For use with the board's lock
    held, except for methods that say otherwise.
    """

    def __init__(
        self,
        node_id: NodeId,
        jobs: Jobs,
        readers: Readers,
        queues: LaneQueues,
        changes: Changes,
    ) -> None:
        self._node_id = node_id
        self._jobs = jobs
        self._readers = readers
        self._queues = queues
        self._changes = changes
        self._stranded: dict[Item, float] = {}
        self._banned: dict[NodeId, float] = {}
        self._refused: frozenset[NodeId] = frozenset()

    def set_refused(self, nodes: frozenset[NodeId]) -> None:
        """Ask these nodes for nothing from now on. Takes the lock."""
        with self._changes:
            if nodes != self._refused:
                self._refused = nodes
                self._changes.wake()

    def is_refused(self, node: NodeId) -> bool:
        """Return whether a node is excluded from all transfers. Needs no lock."""
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
            self._stranded.setdefault((file, chunk), time.monotonic() + STRANDED_SECONDS)
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
        """Return chunks that a lane took but cannot provide at the moment. Takes the lock."""
        with self._changes:
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
        """Reassign chunks that an origin could not provide. Takes the lock."""
        with self._changes:
            for file, chunk in items:
                if file.assigned.get(chunk) != origin:
                    continue
                del file.assigned[chunk]
                file.failed.setdefault(chunk, set()).add(origin)
                file.reason = reason
                if not file.holds(chunk):
                    self.assign(file, chunk)
            self._changes.wake()

    def fail_all(
        self, origin: Origin, items: Sequence[Item], reason: str, file: SharedFile | None = None
    ) -> None:
        """Reassign everything (of one file, if given) that an origin was asked for, taken or not.
        Takes the lock.
        """
        with self._changes:
            self.fail(origin, [*items, *self._queues.take_all(origin, file)], reason)

    def ban(self, node: NodeId, items: Sequence[Item], reason: str) -> None:
        """Exclude a peer for a while because it sent wrong bytes. Takes the lock."""
        with self._changes:
            self._banned[node] = time.monotonic() + _BANNED_SECONDS
            _LOG.warning("node %s sent wrong bytes and is temporarily excluded: %s", node, reason)
            self.fail_all(Origin(node), items, f"node {node} sent wrong bytes")

    def expire(self, now: float) -> None:
        """Give up on chunks that have been stranded for too long."""
        for item, deadline in list(self._stranded.items()):
            if now >= deadline:
                self._give_up(item)

    def _give_up(self, item: Item) -> None:
        file, chunk = item
        del self._stranded[item]
        if self._jobs.hub_name(file) is not None and HUB not in file.failed.get(chunk, ()):
            self._ask(HUB, file, chunk)
            return
        failure = unavailable(file, chunk)
        for name, job in self._jobs.items():
            wants = any(demand.wants(file, chunk) for demand in self._readers.demands_of(name))
            if wants and job.failure is None:
                job.failure = failure
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
        return self._banned.get(origin.node, 0.0) <= time.monotonic()


def unavailable(file: SharedFile, chunk: int) -> tuple[str, str]:
    """Return a message about a chunk that no origin provides, and a hint."""
    reason = f" ({file.reason})" if file.reason else ""
    return (
        f"chunk {chunk} is not on this disk, and no known source provides it{reason}",
        "check that a node that has the model is in the cluster, or that the hub is reachable",
    )
