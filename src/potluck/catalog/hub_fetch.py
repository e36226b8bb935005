"""One file of the hub: fetched from where an earlier try ended, and checked before it is used.

The bytes are gathered in a file of their own, which outlives the process. Only when their number
and their digest are those that the hub's listing gives do they move into huggingface_hub's cache
(ADR 11: huggingface_hub itself checks the size alone, and begins anew in each process).
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
from potluck.catalog.hub_client import patiently, seconds_to_wait, streamed
from potluck.errors import ModelFileError

OnBytes = Callable[[int], None]
"""Called with the bytes of the file that are on this disk."""

_PIECE_BYTES = 2**20
_MAX_TRIES = 5
"""Without getting any further between them, as in huggingface_hub."""
_PAUSE_SECONDS = 1.0
_POLL_SECONDS = 0.2
_RANGE_NOT_SATISFIABLE = 416


def fetch_file(snapshot: Snapshot, name: str, on_bytes: OnBytes) -> int:
    """Bring a file to this disk; returns how many bytes came over the network.

    Another process that fetches the same file is waited for. Raises huggingface_hub's errors,
    ``OSError`` of the disk, and ``ModelFileError`` for bytes that are not those of the listing:
    they are removed, so that the next try begins anew.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

    listed = snapshot.files[name]
    label = f"{snapshot.repo_id}:{name}"
    url = hf_hub_url(snapshot.repo_id, name, revision=snapshot.commit)
    metadata = patiently(lambda: get_hf_file_metadata(url))
    etag = metadata.etag
    if not etag or "/" in etag or etag.startswith("."):
        raise ModelFileError(label, f"the hub calls its content {etag!r}")
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
                    hint="what came was removed: fetch it again; if that does not help, the hub "
                    "or the mirror (HF_ENDPOINT) has a damaged file",
                ) from error
            os.fsync(file.fileno())
            blob.parent.mkdir(parents=True, exist_ok=True)
            partial.rename(blob)
    # The bytes are there: this links them into the snapshot.
    patiently(lambda: hf_hub_download(snapshot.repo_id, name, revision=snapshot.commit))
    return received


def kept_bytes(snapshot: Snapshot, name: str) -> int:
    """How much of a file an earlier try has left."""
    listed = snapshot.files[name]
    etag = listed.sha256 or listed.git_id
    try:
        return snapshot.partial(etag).stat().st_size if etag else 0
    except OSError:
        return 0


class _WrongContentError(Exception):
    """The bytes are not those of the listing."""


class _Digest(Protocol):
    """As hashlib has it."""

    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


def _new_digest(listed: RepositoryFile, size: int | None) -> _Digest | None:
    """For the digest that the listing gives; None where it has none."""
    if listed.sha256 is not None:
        return hashlib.sha256()
    if listed.git_id is not None and size is not None:
        return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)  # git's id of a content
    return None


class _Gathered:
    """The bytes of a file so far, and their digest."""

    def __init__(self, file: FileIO, new_digest: Callable[[], _Digest | None]) -> None:
        self._file = file
        self._new_digest = new_digest
        self._digest = new_digest()
        self.num_bytes = 0
        file.seek(0)
        while data := file.read(_PIECE_BYTES):
            self._count(data)

    def append(self, data: bytes) -> None:
        """Add what comes next."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]
        self._count(data)

    def clear(self) -> None:
        """Begin anew."""
        self._file.seek(0)
        self._file.truncate()
        self._digest = self._new_digest()
        self.num_bytes = 0

    def digest(self) -> str | None:
        """Of all bytes, in hexadecimal digits; None where none is known to compare it with."""
        return None if self._digest is None else self._digest.hexdigest()

    def _count(self, data: bytes) -> None:
        self.num_bytes += len(data)
        if self._digest is not None:
            self._digest.update(data)


@contextmanager
def _gathering(partial: Path, blob: Path, on_bytes: OnBytes) -> Iterator[FileIO | None]:
    """The partial file, for this process alone; None if ``blob`` is there by then."""
    partial.parent.mkdir(parents=True, exist_ok=True)
    while not blob.exists():
        with FileIO(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_bytes(os.fstat(file.fileno()).st_size)
                time.sleep(_POLL_SECONDS)
                continue
            # While it was opened, the other process may have moved or removed it.
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
    """Complete and check ``gathered``; what was kept and turns out wrong is fetched once more."""
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
            f"its content has the digest {gathered.digest()}, and the hub lists {expected}"
        )
    return received


def _receive(
    snapshot: Snapshot, name: str, gathered: _Gathered, size: int | None, on_bytes: OnBytes
) -> int:
    """Add what is missing, over as many connections as it takes; returns the bytes received.

    Raises huggingface_hub's errors when the hub stays away, ``_WrongContentError`` for another
    number of bytes than ``size``.
    """
    from huggingface_hub.errors import HfHubHTTPError, HTTPError  # type: ignore[attr-defined]

    received = 0
    furthest = gathered.num_bytes
    num_tries = 0
    while size is None or gathered.num_bytes < size:
        pause: float | None = _PAUSE_SECONDS
        error: Exception | None = None
        try:
            with streamed(snapshot, name, gathered.num_bytes) as (begin, pieces):
                if begin != gathered.num_bytes:  # the server has no ranges
                    gathered.clear()
                for data in pieces:
                    gathered.append(data)
                    received += len(data)
                    on_bytes(gathered.num_bytes)
                    if size is not None and gathered.num_bytes > size:
                        raise _WrongContentError(f"it has more than the {size} bytes listed")
            if size in (None, gathered.num_bytes):
                break
        except HfHubHTTPError as problem:
            if problem.response.status_code == _RANGE_NOT_SATISFIABLE:
                raise _WrongContentError(
                    f"it has {gathered.num_bytes} bytes, and {size} are listed"
                ) from problem
            error, pause = problem, seconds_to_wait(problem, _PAUSE_SECONDS)
        except HTTPError as problem:
            error = problem
        num_tries = 1 if gathered.num_bytes > furthest else num_tries + 1
        furthest = max(furthest, gathered.num_bytes)
        if pause is None or num_tries >= _MAX_TRIES:
            raise error or _WrongContentError(f"it ends after {gathered.num_bytes} of {size} bytes")
        time.sleep(pause)
    return received
