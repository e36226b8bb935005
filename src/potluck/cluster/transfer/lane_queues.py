"""The chunks requested from each origin that no lane has taken yet."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from potluck.cluster.transfer.origins import Origin
from potluck.cluster.transfer.shared_file import Item, SharedFile
from potluck.types.content import CHUNK_BYTES

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
