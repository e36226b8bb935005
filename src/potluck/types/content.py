"""Files identified by their content, and the location of their parts."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from potluck.types.cluster import NodeId

CHUNK_BYTES = 2**20
"""The unit in which files are hashed, stored and transferred; the last chunk may be shorter."""

DIGEST_BYTES = 32
"""The size of a SHA-256 digest."""

SHA256 = re.compile(r"[0-9a-f]{64}")
"""The form of a SHA-256 in ``FileContent``, which may come from another machine."""

MAX_FILE_BYTES = 2**44
"""16 TiB, sixteen times the size of the largest published model. Sizes come from other machines,
and determine the length of an index."""

ChunkRuns = tuple[tuple[int, int], ...]
"""Half-open ranges of chunk numbers, ascending, neither overlapping nor touching."""

ReadingOrder = tuple[tuple[str, tuple[tuple[int, int], ...]], ...]
"""Half-open ranges of chunks in the order in which they are first read, by the SHA-256 of their
file. A file may occur several times."""


class FileContent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, order=True):
    """The identity of a file: the SHA-256 of its bytes (64 lower-case hex digits), and its size."""

    sha256: str
    num_bytes: int

    @property
    def num_chunks(self) -> int:
        """The number of chunks, of which the last may be shorter than ``CHUNK_BYTES``."""
        return -(-self.num_bytes // CHUNK_BYTES)

    @property
    def digests_bytes(self) -> int:
        """The size of the SHA-256 digests of all chunks."""
        return self.num_chunks * DIGEST_BYTES

    def chunk_bytes(self, chunk: int) -> int:
        """Return the size of one chunk."""
        return min(CHUNK_BYTES, self.num_bytes - chunk * CHUNK_BYTES)

    def chunks(self, start: int, end: int) -> tuple[int, int]:
        """Return the half-open range of the chunks that hold the bytes ``[start, end)``."""
        return start // CHUNK_BYTES, -(-end // CHUNK_BYTES)


class ManifestFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a model. ``name`` is relative, with ``/`` between its parts."""

    name: str
    content: FileContent


class HubOrigin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The repository and the commit on the hub from which files can be fetched."""

    repo_id: str
    commit: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The files of a model, independent of their location.

    ``kind`` is the value of a ``models.names.FileKind``. ``main`` is the name of the (first)
    ``.gguf`` file; empty for a directory in Hugging Face layout. ``hub`` is None for a model that
    is not on a hub.
    """

    kind: str
    files: tuple[ManifestFile, ...]
    main: str = ""
    hub: HubOrigin | None = None

    @property
    def contents(self) -> dict[str, FileContent]:
        """The contents of the files by their names."""
        return {file.name: file.content for file in self.files}


class SourceKind(enum.StrEnum):
    """The source of bytes, nearest first."""

    DISK = "disk"
    PEER = "peer"
    HUB = "hub"


class ChunkSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The source from which a node gets the chunks ``[first, end)`` of the file ``sha256``.

    ``node`` is the peer, for ``SourceKind.PEER`` only. The peer may not have the chunks yet; it
    then forwards them as it receives them itself.
    """

    sha256: str
    first: int
    end: int
    kind: SourceKind
    node: NodeId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """The parts of files that a node has, by SHA-256, and whether it can reach the hub.

    ``held`` are chunks in its store or in files on its disk. ``verified`` are the files for which
    it has verified digests of all chunks.
    """

    node: NodeId
    held: dict[str, ChunkRuns]
    verified: frozenset[str] = frozenset()
    reaches_hub: bool = False


def digest_at(digests: bytes, chunk: int) -> bytes:
    """Return the digest of one chunk from the concatenated digests of several."""
    return digests[chunk * DIGEST_BYTES : (chunk + 1) * DIGEST_BYTES]


def runs_of(chunks: Iterable[int]) -> ChunkRuns:
    """Return the runs that hold exactly ``chunks``, given in any order."""
    return runs_in_order(sorted(set(chunks)))


def runs_in_order(chunks: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return the ranges of consecutive ``chunks``, in the given order."""
    runs: list[tuple[int, int]] = []
    for chunk in chunks:
        if runs and runs[-1][1] == chunk:
            runs[-1] = (runs[-1][0], chunk + 1)
        else:
            runs.append((chunk, chunk + 1))
    return tuple(runs)


def joined(*several: ChunkRuns) -> ChunkRuns:
    """Return the union of ``several``."""
    merged: list[tuple[int, int]] = []
    for first, end in sorted(run for runs in several for run in runs):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif first < end:
            merged.append((first, end))
    return tuple(merged)


def limited(runs: ChunkRuns, first: int, end: int) -> ChunkRuns:
    """Return the part of ``runs`` that lies in ``[first, end)``."""
    return tuple(
        (max(first, each_first), min(end, each_end))
        for each_first, each_end in runs
        if max(first, each_first) < min(end, each_end)
    )


def without(runs: ChunkRuns, others: ChunkRuns) -> ChunkRuns:
    """Return the chunks in ``runs`` that are not in ``others``."""
    left: list[tuple[int, int]] = []
    passed = 0  # how many of the others end before the current run
    for first, end in runs:
        while passed < len(others) and others[passed][1] <= first:
            passed += 1
        for index in range(passed, len(others)):
            other_first, other_end = others[index]
            if other_first >= end:
                break
            if other_first > first:
                left.append((first, other_first))
            first = max(first, other_end)
            if first >= end:
                break
        if first < end:
            left.append((first, end))
    return tuple(left)


def num_chunks(runs: ChunkRuns) -> int:
    """Return the number of chunks in ``runs``."""
    return sum(end - first for first, end in runs)


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the required part of a model's files is on a node.

    ``by_source`` are the bytes from each source: ``disk``, ``hub``, or a node's id.
    ``bytes_per_second`` is the rate of the last seconds; ``seconds_left`` is None while it is
    unknown.
    """

    done_bytes: int
    total_bytes: int
    by_source: dict[str, int] = {}
    bytes_per_second: float = 0.0
    seconds_left: float | None = None
