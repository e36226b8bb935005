"""Chunks that a node without a store fetches only for peers: held in memory until sent.

A peer may ask for a chunk that a reader of this node has read and released, or that no reader of it
wants. A node that stores chunks would still have it; here it is fetched again.
"""

from __future__ import annotations

from potluck.cluster.transfer.shared_file import SharedFile
from potluck.cluster.transfer.window import Window

MOST_CHUNKS = 16
"""In transit or present, in addition to those of readers."""


class Relay:
    """The chunks held for peers. For use with the board's lock held."""

    def __init__(self) -> None:
        self._admitted: dict[SharedFile, set[int]] = {}
        self._windows: dict[SharedFile, Window] = {}

    @property
    def num_present(self) -> int:
        """Return how many chunks are in memory."""
        return sum(len(window.present) for window in self._windows.values())

    def admit(self, file: SharedFile, chunk: int) -> bool:
        """Reserve a place for a chunk until ``drop``; return whether there is one."""
        admitted = self._admitted.setdefault(file, set())
        if chunk in admitted:
            return True
        if sum(map(len, self._admitted.values())) >= MOST_CHUNKS:
            return False
        admitted.add(chunk)
        return True

    def put(self, file: SharedFile, chunk: int, data: memoryview | bytes) -> None:
        """Accept a chunk that has arrived, if it has a place."""
        if chunk in self._admitted.get(file, ()):
            window = self._windows.get(file)
            if window is None:
                window = self._windows[file] = Window(file.content)
            window.put(chunk, data)

    def read(self, file: SharedFile, chunk: int) -> bytes | None:
        """Return a chunk that is present; None for any other."""
        window = self._windows.get(file)
        return window.read(chunk) if window is not None and chunk in window.present else None

    def drop(self, file: SharedFile, chunk: int) -> bool:
        """Free a chunk's place; return whether it had one."""
        admitted = self._admitted.get(file)
        if admitted is None or chunk not in admitted:
            return False
        admitted.discard(chunk)
        if (window := self._windows.get(file)) is not None:
            window.punch(chunk)
        if not admitted:
            self.close(file)
        return True

    def close(self, file: SharedFile) -> None:
        """Release everything that is in memory of a file. Idempotent."""
        self._admitted.pop(file, None)
        if (window := self._windows.pop(file, None)) is not None:
            window.close()
