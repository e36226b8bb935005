"""Read the headers of model files from the hub in pieces, if they are not on this disk."""

from __future__ import annotations

from pathlib import Path

from potluck.catalog.hub_cache import Snapshot, keep_head, read_head
from potluck.catalog.hub_client import (
    file_not_found,
    streamed,
    translate_hub_errors,
    with_retries,
)
from potluck.errors import ModelFileError
from potluck.formats.files import OpenFile, ReadableFile, ReadOnlyFile

_LEAST_BYTES = 128 * 2**10
"""Enough for the whole header of most safetensors files, so that one request suffices."""

_MOST_BYTES = 136 * 2**20
"""More than the maximum size of a header (``formats``); the rest of a file is not read this way."""


def files_or_heads(snapshot: Snapshot) -> OpenFile:
    """Return a function that opens files of ``snapshot``; of files that are not on this disk, only
    the beginning can be read.
    """

    def open_file(path: Path) -> ReadableFile:
        name = str(path.relative_to(snapshot.directory))
        if snapshot.has(name):
            return ReadOnlyFile(path)
        if name not in snapshot.files:
            raise file_not_found(f"{snapshot.repo_id}:{name}")
        return HubFileHead(snapshot, name)

    return open_file


class HubFileHead:
    """The beginning of a file on the hub, as far as it was requested; a ``ReadableFile``.

    Downloaded data is stored next to the cache, so that it is requested only once per machine. It
    is not checked against the file's digest; weights are read from files that were checked.
    """

    def __init__(self, snapshot: Snapshot, name: str) -> None:
        self.path = f"{snapshot.repo_id}:{name}"
        self._snapshot = snapshot
        self._name = name
        size = snapshot.files[name].size
        if size is None:
            raise ModelFileError(
                self.path, "the Hub does not report its size", hint="download it with potluck fetch"
            )
        self.size = size
        self.num_bytes_read = 0
        self._head = read_head(snapshot, name, min(_MOST_BYTES, size))
        self._num_kept = len(self._head)

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill ``out`` from ``offset``.

        Raise ``ModelFileError`` past the end, or past the maximum size of a header, and
        ``ModelNotFoundError`` if the hub is unreachable.
        """
        end = offset + len(out)
        if end > self.size:
            raise ModelFileError(self.path, f"truncated: it ends at byte {self.size}")
        if end > _MOST_BYTES:
            raise ModelFileError(self.path, "it is not in the local cache", hint="potluck fetch")
        if end > len(self._head):
            wanted = max(end, 2 * len(self._head), _LEAST_BYTES)
            self._extend(min(wanted, self.size, _MOST_BYTES))
        out[:] = self._head[offset:end]
        self.num_bytes_read += len(out)

    def check_unchanged(self) -> None:
        """Do nothing: a snapshot belongs to one commit."""

    def release(self) -> None:
        """Do nothing: the downloaded data is needed to store it later."""

    def close(self) -> None:
        """Store the downloaded data. Idempotent."""
        if len(self._head) > self._num_kept:
            keep_head(self._snapshot, self._name, self._head)
            self._num_kept = len(self._head)

    def _extend(self, num_bytes: int) -> None:
        """Download the first ``num_bytes``, if they are not here yet."""
        with translate_hub_errors(self.path):
            more = with_retries(lambda: self._request(len(self._head), num_bytes))
        if len(more) != num_bytes - len(self._head):
            raise ModelFileError(self.path, "the Hub sent a different byte range than requested")
        self._head += more

    def _request(self, start: int, end: int) -> bytes:
        data = bytearray()
        with streamed(self._snapshot, self._name, start, end) as (begin, pieces):
            for piece in pieces:
                data += piece
                if begin + len(data) >= end:  # without ranges, it sends the whole file
                    break
        return bytes(data[start - begin : end - begin])
