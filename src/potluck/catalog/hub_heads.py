"""Headers of model files that are not on this disk, read from the hub in pieces."""

from __future__ import annotations

from pathlib import Path

from potluck.catalog.hub_cache import Snapshot, keep_head, read_head
from potluck.catalog.hub_client import (
    file_not_found,
    hub_errors_explained,
    patiently,
    streamed,
)
from potluck.errors import ModelFileError
from potluck.formats.files import OpenFile, ReadableFile, ReadOnlyFile

_LEAST_BYTES = 128 * 2**10
"""Holds the whole header of most safetensors files, so that one request does."""

_MOST_BYTES = 136 * 2**20
"""More than any header may have (``formats``); the rest of a file is not read this way."""


def files_or_heads(snapshot: Snapshot) -> OpenFile:
    """How to open files of ``snapshot``: those on this disk, of the others what they begin with."""

    def open_file(path: Path) -> ReadableFile:
        name = str(path.relative_to(snapshot.directory))
        if snapshot.has(name):
            return ReadOnlyFile(path)
        if name not in snapshot.files:
            raise file_not_found(f"{snapshot.repo_id}:{name}")
        return HubFileHead(snapshot, name)

    return open_file


class HubFileHead:
    """The beginning of a file on the hub, as much of it as was asked for; a ``ReadableFile``.

    What was fetched is kept beside the cache, so that it is asked for once on a machine. It is not
    checked against the file's digest: weights are read from files that were.
    """

    def __init__(self, snapshot: Snapshot, name: str) -> None:
        self.path = f"{snapshot.repo_id}:{name}"
        self._snapshot = snapshot
        self._name = name
        size = snapshot.files[name].size
        if size is None:
            raise ModelFileError(
                self.path, "the hub does not say how large it is", hint="fetch it: potluck fetch"
            )
        self.size = size
        self.num_bytes_read = 0
        self._head = read_head(snapshot, name, min(_MOST_BYTES, size))
        self._num_kept = len(self._head)

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill ``out`` from ``offset``.

        Raises ``ModelFileError`` past the end, and for bytes that no header has;
        ``ModelNotFoundError`` when the hub is out of reach.
        """
        end = offset + len(out)
        if end > self.size:
            raise ModelFileError(self.path, f"truncated: it ends at byte {self.size}")
        if end > _MOST_BYTES:
            raise ModelFileError(self.path, "it is not on this disk", hint="potluck fetch")
        if end > len(self._head):
            wanted = max(end, 2 * len(self._head), _LEAST_BYTES)
            self._extend(min(wanted, self.size, _MOST_BYTES))
        out[:] = self._head[offset:end]
        self.num_bytes_read += len(out)

    def read(self, offset: int, num_bytes: int) -> bytes:
        """As ``read_into``, into new bytes."""
        data = bytearray(num_bytes)
        with memoryview(data) as view:
            self.read_into(offset, view)
        return bytes(data)

    def close(self) -> None:
        """Keep what was fetched. Idempotent."""
        if len(self._head) > self._num_kept:
            keep_head(self._snapshot, self._name, self._head)
            self._num_kept = len(self._head)

    def _extend(self, num_bytes: int) -> None:
        """Have the first ``num_bytes``."""
        with hub_errors_explained(self.path):
            more = patiently(lambda: self._request(len(self._head), num_bytes))
        if len(more) != num_bytes - len(self._head):
            raise ModelFileError(self.path, "the hub sends other bytes of it than it was asked for")
        self._head += more

    def _request(self, start: int, end: int) -> bytes:
        data = bytearray()
        with streamed(self._snapshot, self._name, start, end) as (begin, pieces):
            for piece in pieces:
                data += piece
                if begin + len(data) >= end:  # a server without ranges sends all
                    break
        return bytes(data[start - begin : end - begin])
