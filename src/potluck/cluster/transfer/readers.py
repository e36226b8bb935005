"""The connections through which files are read, and what all of them together want."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from potluck.cluster.transfer.demand import Demand
from potluck.cluster.transfer.shared_file import SharedFile


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
