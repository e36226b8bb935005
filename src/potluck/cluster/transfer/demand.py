"""The demand of one reader for one job, its progress, and the demand of all readers together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from potluck.cluster.transfer.shared_file import SharedFile
from potluck.cluster.transfer.window import Window
from potluck.types.content import SourceKind

WINDOW_CHUNKS = 16
"""How many chunks are fetched ahead into memory for a reader: 16 MiB, half of what loading may
stage. At 1 Gbit/s that takes an eighth of a second."""


class Demand:
    """The demand of one reader. For use with the board's lock held.

    ``runs`` are half-open ranges of chunks of files, in the order of reading.
    """

    def __init__(self, job: str, runs: list[tuple[SharedFile, int, int]], *, keeps: bool) -> None:
        self.job = job
        self.runs = runs
        self.keeps = keeps
        self.total_bytes = 0
        self.done_bytes = 0
        self.by_label: Counter[str] = Counter()
        self.awaited: tuple[SharedFile, int, int] | None = None
        self.windows: dict[SharedFile, Window] = {}
        self._wanted: dict[SharedFile, bytearray] = {}
        self._order: list[tuple[SharedFile, int]] = []
        self._positions: dict[tuple[SharedFile, int], int] = {}
        self._next = 0
        for file, first, end in runs:
            for chunk in range(first, end):
                self.add(file, chunk)

    def add(self, file: SharedFile, chunk: int) -> None:
        """Add one chunk."""
        wanted = self._wanted.get(file)
        if wanted is None:
            wanted = self._wanted[file] = bytearray(file.content.num_chunks)
            file.num_users += 1
        if not wanted[chunk]:
            wanted[chunk] = 1
            self.total_bytes += file.content.chunk_bytes(chunk)

    def wants(self, file: SharedFile, chunk: int) -> bool:
        """Return whether a chunk is wanted, whether or not it is here."""
        wanted = self._wanted.get(file)
        return wanted is not None and wanted[chunk] != 0

    def files(self) -> tuple[SharedFile, ...]:
        """Return the files of which something is wanted."""
        return tuple(self._wanted)

    def chunks(self) -> Iterator[tuple[SharedFile, int]]:
        """Yield what is wanted, in the order of reading; a chunk may occur several times."""
        for file, first, end in self.runs:
            for chunk in range(first, end):
                yield file, chunk

    def take_over(self, other: Demand) -> None:
        """Include what is here for a demand that this one replaces, and do not count it again."""
        for file, others in other._wanted.items():
            wanted = self._wanted.get(file)
            if wanted is None:
                continue
            for chunk, state in enumerate(others):
                if state == 2 and wanted[chunk] == 1 and file.holds(chunk):
                    wanted[chunk] = 2
                    self.total_bytes -= file.content.chunk_bytes(chunk)
        self.total_bytes += other.done_bytes
        self.done_bytes += other.done_bytes
        self.by_label += other.by_label

    def count(self, file: SharedFile, chunk: int, label: str) -> None:
        """Count a chunk that is here, once."""
        wanted = self._wanted.get(file)
        if wanted is not None and wanted[chunk] == 1:
            wanted[chunk] = 2
            num_bytes = file.content.chunk_bytes(chunk)
            self.done_bytes += num_bytes
            self.by_label[label] += num_bytes

    def count_stored(self, file: SharedFile, chunk: int) -> None:
        """Count a chunk that is on a disk for its origin if it was fetched ahead."""
        wanted = self._wanted.get(file)
        if wanted is not None and wanted[chunk] == 1:
            self.count(file, chunk, file.take_origin(chunk) if self.job else SourceKind.DISK.value)

    def use_windows(self) -> None:
        """Hold from now on in memory what is not on a disk."""
        self.keeps = False
        if not self._order:
            self._order = list(dict.fromkeys(self.chunks()))
            self._positions = {each: position for position, each in enumerate(self._order)}

    def window(self, file: SharedFile) -> Window:
        """Return the window of a file."""
        window = self.windows.get(file)
        if window is None:
            window = self.windows[file] = Window(file.content)
        return window

    def has_in_window(self, file: SharedFile, chunk: int) -> bool:
        """Return whether the window of a file has a chunk."""
        window = self.windows.get(file)
        return window is not None and chunk in window.present

    def ahead(self) -> list[tuple[SharedFile, int]]:
        """Return what should be in memory now: what is waited for, then what is read next."""
        waited: list[tuple[SharedFile, int]] = []
        if self.awaited is not None:
            file, first, end = self.awaited
            waited = [(file, chunk) for chunk in range(first, end)]
        coming = self._order[self._next : self._next + WINDOW_CHUNKS]
        return list(dict.fromkeys(waited + coming))[:WINDOW_CHUNKS]

    def is_awaited(self, file: SharedFile, chunk: int) -> bool:
        """Return whether a chunk is in the range that the reader last asked for."""
        if self.awaited is None:
            return False
        awaited, first, end = self.awaited
        return awaited is file and first <= chunk < end

    def expects(self, file: SharedFile, chunk: int) -> bool:
        """Return whether a chunk is still to be read according to the order."""
        position = self._positions.get((file, chunk))
        return position is not None and position >= self._next

    def lacks(self, file: SharedFile, chunk: int) -> bool:
        """Return whether a chunk is still to be read and is not yet in memory."""
        return self.expects(file, chunk) and not self.has_in_window(file, chunk)

    def has_read(self, file: SharedFile, chunk: int) -> bool:
        """Return whether a chunk was read according to the order."""
        return self._positions.get((file, chunk), self._next) < self._next

    def is_due(self, file: SharedFile, chunk: int) -> bool:
        """Return whether a chunk has a place in memory: it is waited for, or read next."""
        position = self._positions.get((file, chunk), -1)
        is_near = self._next <= position < self._next + WINDOW_CHUNKS
        return is_near or self.is_awaited(file, chunk)

    def consume(self, file: SharedFile, first: int, end: int) -> None:
        """Release chunks that were read, and those skipped before them."""
        window = self.windows.get(file)
        for chunk in range(first, end):
            position = self._positions.get((file, chunk), -1)
            self._next = max(self._next, position + 1)
            if window is not None:
                self._let_go(file, window, chunk)
        passed_end = max(0, self._next - WINDOW_CHUNKS)
        passed = self._order[max(0, passed_end - 4 * WINDOW_CHUNKS) : passed_end]
        for other, chunk in passed:
            if self.is_awaited(other, chunk):
                continue
            if (other_window := self.windows.get(other)) is not None:
                self._let_go(other, other_window, chunk)

    def served(self, file: SharedFile, chunk: int) -> None:
        """Release a chunk that was kept for peers, unless one of them still waits for it."""
        window = self.windows.get(file)
        if window is not None and chunk in window.lingering and not file.peer_waits[chunk]:
            window.punch(chunk)

    def close_window(self, file: SharedFile) -> None:
        """Release everything that is in memory of a file."""
        window = self.windows.pop(file, None)
        if window is not None:
            window.close()
        if self.awaited is not None and self.awaited[0] is file:
            self.awaited = None

    def close(self) -> None:
        """Cancel all demand."""
        for window in self.windows.values():
            window.close()
        self.windows.clear()
        for file in self._wanted:
            file.num_users -= 1
        self._wanted.clear()

    def _let_go(self, file: SharedFile, window: Window, chunk: int) -> None:
        if chunk not in window.present:
            return
        if file.peer_waits[chunk]:
            window.lingering.add(chunk)
        else:
            window.punch(chunk)


class Reader:
    """One connection through which files are read."""

    def __init__(self) -> None:
        self.demands: dict[str, Demand] = {}
        self.opened: dict[str, tuple[str, str]] = {}
        """The job and the label, by SHA-256."""
        self.num_open: Counter[str] = Counter()
        """How often each file is open: one may be open several times at once."""


class Readers:
    """All readers. For use with the board's lock held."""

    def __init__(self) -> None:
        self._readers: set[Reader] = set()

    def __len__(self) -> int:
        return len(self._readers)

    def __iter__(self) -> Iterator[Reader]:
        return iter(self._readers)

    def add(self, reader: Reader) -> None:
        """Count what a reader wants."""
        self._readers.add(reader)

    def remove(self, reader: Reader) -> None:
        """Stop counting what a reader wants."""
        self._readers.discard(reader)

    def demands(self) -> list[Demand]:
        """Return what all readers want."""
        return [each for reader in self._readers for each in reader.demands.values()]

    def streams(self) -> list[Demand]:
        """Return those demands whose chunks are only held in memory."""
        return [demand for demand in self.demands() if not demand.keeps]

    def demands_of(self, job: str) -> list[Demand]:
        """Return what readers want for a job."""
        return [demand for demand in self.demands() if demand.job == job]

    def is_any_wanted(self, file: SharedFile) -> bool:
        """Return whether anything of a file is wanted."""
        return any(file in demand.files() for demand in self.demands())

    def is_wanted(self, file: SharedFile, chunk: int) -> bool:
        """Return whether a chunk is wanted, whether or not it is here."""
        return any(demand.wants(file, chunk) for demand in self.demands())

    def expect(self, file: SharedFile, chunk: int) -> bool:
        """Return whether a chunk will be useful: it is to be stored, or is still to be read."""
        return any(
            demand.expects(file, chunk) or (demand.keeps and demand.wants(file, chunk))
            for demand in self.demands()
        )

    def is_missing(self, file: SharedFile, chunk: int) -> bool:
        """Return whether a chunk is missing: it is to be stored, or to be read and not in
        memory.
        """
        return any(
            demand.lacks(file, chunk) or (demand.keeps and demand.wants(file, chunk))
            for demand in self.demands()
        )

    def want_kept(self, file: SharedFile, chunk: int) -> bool:
        """Return whether a reader wants a chunk stored on disk."""
        return any(demand.keeps and demand.wants(file, chunk) for demand in self.demands())

    def is_reported(self, file: SharedFile, chunk: int) -> bool:
        """Return whether a chunk belongs to the progress of a job."""
        return any(demand.job and demand.wants(file, chunk) for demand in self.demands())

    def may_store(self, file: SharedFile, chunk: int) -> bool:
        """Return whether a chunk may be stored: a reader wants that, or no reader wants the
        chunk.
        """
        demands = [demand for demand in self.demands() if demand.wants(file, chunk)]
        return not demands or any(demand.keeps for demand in demands)
