"""Download one file from the hub, resuming an earlier attempt, and verify it before it is used.

The bytes are collected in a separate file, which survives the process. They are moved into
huggingface_hub's cache only when their size and digest match the hub's listing (ADR 11:
huggingface_hub itself only checks the size, and starts over in each process).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Protocol

from potluck.catalog.hub_cache import RepositoryFile, Snapshot
from potluck.catalog.hub_client import retry_delay, streamed, with_retries
from potluck.errors import ModelFileError

OnBytes = Callable[[int], None]
"""Called with the number of bytes of the file that are on this disk."""

_PIECE_BYTES = 2**20
_MAX_TRIES = 5
"""Number of attempts without progress, as in huggingface_hub."""
_PAUSE_SECONDS = 1.0
_POLL_SECONDS = 0.2
_RANGE_NOT_SATISFIABLE = 416


def fetch_file(snapshot: Snapshot, name: str, on_bytes: OnBytes) -> int:
    """Download a file if it is not on this disk, and return the number of bytes received.

    If another process is downloading the same file, wait for it. Raise huggingface_hub's errors,
    ``OSError`` for errors of the disk, and ``ModelFileError`` if the bytes do not match the
    listing; they are then removed, so that the next attempt starts over.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

    listed = snapshot.files[name]
    label = f"{snapshot.repo_id}:{name}"
    url = hf_hub_url(snapshot.repo_id, name, revision=snapshot.commit)
    metadata = with_retries(lambda: get_hf_file_metadata(url))
    etag = metadata.etag
    if not etag or "/" in etag or etag.startswith("."):
        raise ModelFileError(label, f"the Hub lists the unexpected ETag {etag!r}")
    size = metadata.size if listed.size is None else listed.size
    blob, partial = snapshot.blob(etag), snapshot.partial(etag)
    received = 0
    with _gathering(partial, blob, on_bytes) as file:
        if file is not None:
            gathered = _Gathered(file, lambda: _new_digest(listed, size))
            try:
                received = _fetch_whole(snapshot, name, gathered, size, on_bytes)
            except _WrongContentError as error:
                partial.unlink()
                raise ModelFileError(
                    label,
                    str(error),
                    hint="the downloaded data was removed: try again; if the error persists, "
                    "the file on the Hub or the mirror (HF_ENDPOINT) is damaged",
                ) from error
            os.fsync(file.fileno())
            blob.parent.mkdir(parents=True, exist_ok=True)
            partial.rename(blob)
    # The bytes are on this disk, so this only links them into the snapshot.
    with_retries(lambda: hf_hub_download(snapshot.repo_id, name, revision=snapshot.commit))
    return received


def kept_bytes(snapshot: Snapshot, name: str) -> int:
    """Return the number of bytes of a file left by an earlier attempt."""
    listed = snapshot.files[name]
    etag = listed.sha256 or listed.git_id
    try:
        return snapshot.partial(etag).stat().st_size if etag else 0
    except OSError:
        return 0


class _WrongContentError(Exception):
    """The bytes do not match the listing."""


class _Digest(Protocol):
    """The interface of hashlib's objects."""

    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


def _new_digest(listed: RepositoryFile, size: int | None) -> _Digest | None:
    """Return a hash object for the digest in the listing; None if it has none."""
    if listed.sha256 is not None:
        return hashlib.sha256()
    if listed.git_id is not None and size is not None:
        return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)  # git's id of a blob
    return None


class _Gathered:
    """The bytes of a file received so far, and their digest."""

    def __init__(self, file: FileIO, new_digest: Callable[[], _Digest | None]) -> None:
        self._file = file
        self._new_digest = new_digest
        self._digest = new_digest()
        self.num_bytes = 0
        file.seek(0)
        while data := file.read(_PIECE_BYTES):
            self._count(data)

    def append(self, data: bytes) -> None:
        """Append received bytes."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]
        self._count(data)

    def clear(self) -> None:
        """Start over."""
        self._file.seek(0)
        self._file.truncate()
        self._digest = self._new_digest()
        self.num_bytes = 0

    def digest(self) -> str | None:
        """Return the digest of all bytes in hexadecimal digits; None if the listing has none."""
        return None if self._digest is None else self._digest.hexdigest()

    def _count(self, data: bytes) -> None:
        self.num_bytes += len(data)
        if self._digest is not None:
            self._digest.update(data)


@contextmanager
def _gathering(partial: Path, blob: Path, on_bytes: OnBytes) -> Iterator[FileIO | None]:
    """Yield the partial file, locked for this process; None if ``blob`` exists by then."""
    partial.parent.mkdir(parents=True, exist_ok=True)
    while not blob.exists():
        with FileIO(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_bytes(os.fstat(file.fileno()).st_size)
                time.sleep(_POLL_SECONDS)
                continue
            # The other process may have moved or removed the file while it was being opened.
            if not blob.exists() and _is_at(file, partial):
                yield file
                return
    yield None


def _is_at(file: FileIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _fetch_whole(
    snapshot: Snapshot, name: str, gathered: _Gathered, size: int | None, on_bytes: OnBytes
) -> int:
    """Complete and check ``gathered``; if the data of an earlier attempt is wrong, start over."""
    if size is None or gathered.num_bytes > size:
        gathered.clear()
    has_kept = gathered.num_bytes > 0
    received = _receive(snapshot, name, gathered, size, on_bytes)
    listed = snapshot.files[name]
    expected = listed.sha256 or listed.git_id
    if has_kept and gathered.digest() not in (None, expected):
        gathered.clear()
        received += _receive(snapshot, name, gathered, size, on_bytes)
    if gathered.digest() not in (None, expected):
        raise _WrongContentError(
            f"its content has the digest {gathered.digest()}, but the Hub lists {expected}"
        )
    return received


def _receive(
    snapshot: Snapshot, name: str, gathered: _Gathered, size: int | None, on_bytes: OnBytes
) -> int:
    """Receive the missing bytes over as many connections as needed, and return their number.

    Raise huggingface_hub's errors if the hub remains unreachable, and ``_WrongContentError`` if
    there are more or fewer bytes than ``size``.
    """
    from huggingface_hub.errors import HfHubHTTPError, HTTPError  # type: ignore[attr-defined]

    received = 0
    furthest = gathered.num_bytes
    num_tries = 0
    has_started_over = False
    while size is None or gathered.num_bytes < size:
        pause: float | None = _PAUSE_SECONDS
        error: Exception | None = None
        try:
            with streamed(snapshot, name, gathered.num_bytes) as (begin, pieces):
                if begin != gathered.num_bytes:  # the server does not support ranges
                    gathered.clear()
                for data in pieces:
                    gathered.append(data)
                    received += len(data)
                    on_bytes(gathered.num_bytes)
                    if size is not None and gathered.num_bytes > size:
                        raise _WrongContentError(f"it is larger than the {size} bytes listed")
            if size in (None, gathered.num_bytes):
                break
        except HfHubHTTPError as problem:
            error, pause = problem, retry_delay(problem, _PAUSE_SECONDS)
            if problem.response.status_code == _RANGE_NOT_SATISFIABLE:
                if has_started_over:
                    raise _WrongContentError(
                        f"it has {gathered.num_bytes} bytes, but {size} are listed"
                    ) from problem
                # The leftovers of an earlier attempt may be of another file, or longer than a proxy
                # has.
                gathered.clear()
                has_started_over, furthest, pause = True, 0, _PAUSE_SECONDS
        except HTTPError as problem:
            error = problem
        num_tries = 1 if gathered.num_bytes > furthest else num_tries + 1
        furthest = max(furthest, gathered.num_bytes)
        if pause is None or num_tries >= _MAX_TRIES:
            raise error or _WrongContentError(f"it ends after {gathered.num_bytes} of {size} bytes")
        time.sleep(pause)
    return received
