"""The nodes that were removed from the cluster, for every process of a node.

They are in a file beside the node's certificate that only the agent writes, one line each:
``NODE_ID TIME SIGNATURE``. The agent verifies a line before it writes it, and the directory is as
private as the node's key, so only the node ids are read here. Needs only the standard library.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from pathlib import Path

from potluck.types.cluster import NodeId

_LOG = logging.getLogger(__name__)

REMOVED_FILE = "removed"


@dataclass(frozen=True, slots=True)
class _Read:
    stamp: tuple[int, int, int] | None = None
    nodes: frozenset[NodeId] = frozenset()


class RemovedNodes:
    """The nodes in the file at ``path``, which is checked for changes at each use. Thread-safe.

    Without a file, or a path, no node is removed. If it cannot be read, the last contents remain in
    force.
    """

    def __init__(self, path: str | Path | None) -> None:
        self._path = None if path is None else Path(path)
        self._lock = threading.Lock()
        self._last = _Read()

    def __contains__(self, node: NodeId) -> bool:
        return node in self.nodes()

    def nodes(self) -> frozenset[NodeId]:
        """Return all removed nodes."""
        if self._path is None:
            return frozenset()
        with self._lock:
            try:
                status = self._path.stat()
                stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
                if stamp != self._last.stamp:
                    self._last = _Read(stamp, _parsed(self._path.read_text("ascii")))
            except FileNotFoundError:
                self._last = _Read()
            except (OSError, ValueError) as error:
                _LOG.warning("cannot read %s: %s", self._path, error)
            return self._last.nodes


def _parsed(text: str) -> frozenset[NodeId]:
    return frozenset(NodeId(line.split(" ", 1)[0]) for line in text.splitlines() if line)
