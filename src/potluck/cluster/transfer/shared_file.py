"""One file in the transfer process (in the store, elsewhere on this disk, in windows), and the
origins of its chunks.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from potluck.errors import ModelFileError, PotluckError, StoreFullError
from potluck.store.blob import Blob
from potluck.store.content_store import ContentStore
from potluck.store.local_file import LocalFile
from potluck.types.cluster import NodeId
from potluck.types.content import (
    DIGEST_BYTES,
    ChunkSource,
    FileContent,
    Manifest,
    SourceKind,
    digest_at,
)

_places = itertools.count()


@dataclass(frozen=True, slots=True)
class Origin:
    """The hub, or the peer ``node``."""

    node: NodeId | None = None

    @property
    def label(self) -> str:
        """Return the name used in progress reports."""
        return SourceKind.HUB.value if self.node is None else self.node


HUB = Origin()


class Routes:
    """The origins of one job's chunks."""

    def __init__(
        self,
        manifest: Manifest,
        sources: Sequence[ChunkSource],
        peers: Mapping[NodeId, tuple[str, int]],
    ) -> None:
        self.manifest = manifest
        self.peers = dict(peers)
        self._names = {each.content.sha256: each.name for each in manifest.files}
        self._by_chunk: dict[str, list[tuple[Origin, ...]]] = {}
        self._others: dict[str, dict[Origin, None]] = {}
        sizes = {each.content.sha256: each.content.num_chunks for each in manifest.files}
        for source in sources:
            num_chunks = sizes.get(source.sha256)
            if num_chunks is None or source.kind is SourceKind.DISK:
                continue
            origin = HUB if source.kind is SourceKind.HUB else Origin(source.node)
            if origin is not HUB:
                self._others.setdefault(source.sha256, {})[origin] = None
            by_chunk = self._by_chunk.setdefault(source.sha256, [()] * num_chunks)
            for chunk in range(max(0, source.first), min(source.end, num_chunks)):
                if origin not in by_chunk[chunk]:
                    by_chunk[chunk] = (*by_chunk[chunk], origin)

    def name(self, sha256: str) -> str | None:
        """Return the name of a file in the manifest; None if it is not in it."""
        return self._names.get(sha256)

    def origins(self, sha256: str, chunk: int) -> tuple[Origin, ...]:
        """Return those that were named for a chunk, best first."""
        by_chunk = self._by_chunk.get(sha256)
        return () if by_chunk is None else by_chunk[chunk]

    def other_peers(self, sha256: str) -> tuple[Origin, ...]:
        """Return all peers that were named for any chunk of a file."""
        return tuple(self._others.get(sha256, ()))


class SharedFile:
    """The local part of ``content``, who provides the rest, and its digests.

    For use with the board's lock held, except for ``read`` and ``write``, which are slow.
    """

    def __init__(self, store: ContentStore, content: FileContent, label: str) -> None:
        self.content = content
        self.label = label
        self.assigned: dict[int, Origin] = {}
        """The origin of each requested chunk."""
        self.failed: dict[int, set[Origin]] = {}
        """The origins that could not provide a chunk."""
        self.reason = ""
        """The reason of the last failure of an origin."""
        self.peer_waits: Counter[int] = Counter()
        """How many peers wait for a chunk, which a window keeps for them."""
        self.num_users = 0
        self.store_place, self.local_place = next(_places), next(_places)
        self.blob: Blob | None = None
        self.local: LocalFile | None = None
        self._store = store
        self._known: dict[int, bytes] = {}
        self._all: bytes | None = None
        self._checked: set[int] = set()
        self._origins: dict[int, str] = {}
        found = store.find(content.sha256, content.num_bytes)
        if isinstance(found, Blob):
            self.blob = found
        else:
            self.local = found
        if content.num_chunks == 1:
            self.set_verified(bytes.fromhex(content.sha256))

    @property
    def verified(self) -> bytes | None:
        """Return the verified digests of all chunks, if known."""
        if self._all is None:
            for each in (self.blob, self.local):
                if each is not None and each.is_verified:
                    self._all = each.all_digests
        return self._all

    def digest(self, chunk: int) -> bytes | None:
        """Return the digest that a chunk must have, as far as known."""
        if (everything := self.verified) is not None:
            return digest_at(everything, chunk)
        for each in (self.blob, self.local):
            if each is not None and (known := each.digest(chunk)) is not None:
                return known
        return self._known.get(chunk)

    def set_verified(self, digests: bytes) -> None:
        """Set the verified digests; chunks that differ are dropped."""
        self._all = digests
        if self.blob is not None:
            self.blob.mark_verified(digests)

    def expect(self, digests: bytes) -> None:
        """Set the digests according to another node."""
        for chunk in range(min(len(digests) // DIGEST_BYTES, self.content.num_chunks)):
            self._known.setdefault(chunk, digest_at(digests, chunk))

    def holds(self, chunk: int) -> bool:
        """Return whether a disk has a chunk."""
        if self.local is not None:
            return True
        return self.blob is not None and self.blob.holds(chunk)

    def open_blob(self) -> bool:
        """Let the store keep incoming chunks; return False if it cannot."""
        if self.blob is None:
            try:
                self.blob = self._store.blob(self.content, label=self.label)
            except StoreFullError:
                return False
            if self._all is not None:
                self.blob.mark_verified(self._all)
        return True

    def find_local(self) -> None:
        """Look again for the file elsewhere on this disk."""
        if self.local is None:
            found = self._store.find(self.content.sha256, self.content.num_bytes)
            if isinstance(found, LocalFile):
                self.local = found
            elif found is not None:
                found.close()

    def drop_local(self) -> None:
        """Stop using the file elsewhere on this disk, which has changed."""
        if self.local is not None:
            self.local.close()
            self.local = None

    def read(self, chunk: int) -> bytes:
        """Return a chunk that is on a disk, after checking it.

        Raise ``ModelFileError`` (``DamagedChunkError``) if it is damaged or changed; it is then
        removed.
        """
        local, blob = self.local, self.blob
        if local is not None:
            try:
                return local.read_chunk(chunk)
            except ModelFileError:
                if self.local is local:
                    self.drop_local()
                raise
        if blob is None:
            raise ModelFileError(self.label, f"chunk {chunk} is not here")
        data = blob.read_chunk(chunk)
        self._checked.add(chunk)
        return data

    def check(self, chunk: int) -> None:
        """Raise ``ModelFileError`` unless a chunk is as it was stored. Reads the disk once."""
        if self.local is not None:
            self.local.check_unchanged()
        elif chunk not in self._checked:
            self.read(chunk)

    def write(self, chunk: int, data: memoryview | bytes, digest: bytes) -> None:
        """Write a chunk to the store.

        Raise ``StoreFullError``, and ``DamagedChunkError`` if its digest is wrong.
        """
        if self.blob is None:
            raise StoreFullError("the store does not keep this file")
        self.blob.write_chunk(chunk, data, digest=digest)
        self._checked.add(chunk)

    def note_digest(self, chunk: int, digest: bytes) -> None:
        """Remember the digest of a chunk that arrived and is not on disk."""
        self._known.setdefault(chunk, digest)

    def note_origin(self, chunk: int, label: str) -> None:
        """Remember where a stored chunk came from, for the reader that will count it."""
        self._origins[chunk] = label

    def take_origin(self, chunk: int) -> str:
        """Return where a stored chunk came from, once; afterwards it comes from this disk."""
        return self._origins.pop(chunk, SourceKind.DISK.value)

    def close(self) -> None:
        """Allow the store to remove the file when it needs room. Idempotent."""
        for each in (self.blob, self.local):
            if each is not None:
                each.close()
        self.blob = self.local = None


Item = tuple[SharedFile, int]
"""A chunk of a file."""


def sha256_of(data: memoryview | bytes) -> bytes:
    """Return the digest of a chunk, releasing the interpreter's lock meanwhile."""
    return hashlib.sha256(data).digest()


class WrongBytesError(PotluckError):
    """A chunk does not match its digest."""
