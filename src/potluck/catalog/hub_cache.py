"""The local cache of hub repositories.

The files are in huggingface_hub's cache, whose layout is documented
(https://huggingface.co/docs/huggingface_hub/guides/manage-cache): ``blobs/ETAG`` has the bytes,
``snapshots/COMMIT/NAME`` is a link to them, and ``refs/main`` contains a commit. In the same
directory, ``.potluck`` stores immutable data about a commit: its list of files, and the first bytes
of some of them. It is removed together with the repository; if it cannot be written, the data is
requested again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from secrets import token_hex

import msgspec

from potluck.errors import PotluckError
from potluck.formats.files import ReadOnlyFile, read_bytes
from potluck.host.cache_folder import hub_cache_folder

COMMIT = re.compile(r"[0-9a-f]{40}")
MAIN = "main"

_OWN = ".potluck"
_LISTING = "files.json"
_HEADS = "heads"
_MAX_LISTING_BYTES = 64 * 2**20


class RepositoryFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file in the hub's listing; values that are not listed are None.

    ``sha256`` is the digest of a file in large-file storage, and ``git_id`` git's id of any other.
    """

    size: int | None = None
    sha256: str | None = None
    git_id: str | None = None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A repository at one commit, with all of its files. Some of them may be on this disk.

    If it is not ``is_listed``, the hub could not be asked, and ``files`` has only those on this
    disk.
    """

    repo_id: str
    commit: str
    files: Mapping[str, RepositoryFile]
    is_listed: bool = True

    @property
    def directory(self) -> Path:
        """The directory with links to its files, which need not exist yet."""
        return repository_directory(self.repo_id) / "snapshots" / self.commit

    def path(self, name: str) -> Path:
        """Return the path of a file, which need not exist yet."""
        return self.directory / name

    def has(self, name: str) -> bool:
        """Return whether a complete file is on this disk."""
        return self.path(name).is_file()

    def blob(self, etag: str) -> Path:
        """Return the path of a file's bytes when they are complete."""
        return repository_directory(self.repo_id) / "blobs" / etag

    def partial(self, etag: str) -> Path:
        """Return the path of a file's bytes while they are incomplete."""
        return repository_directory(self.repo_id) / _OWN / "partial" / etag


def repository_directory(repo_id: str) -> Path:
    """Return the cache's directory of a repository."""
    return hub_cache_folder() / f"models--{repo_id.replace('/', '--')}"


def known_commit(repo_id: str, revision: str) -> str | None:
    """Return the commit of a revision as of its last request."""
    if COMMIT.fullmatch(revision):
        return revision
    try:
        commit = (repository_directory(repo_id) / "refs" / revision).read_text().strip()
    except (OSError, ValueError):
        return None
    return commit if COMMIT.fullmatch(commit) else None


def listed_snapshot(repo_id: str, commit: str) -> Snapshot | None:
    """Return the stored listing of a commit."""
    listed = _read(_own_directory(repo_id, commit) / _LISTING, _MAX_LISTING_BYTES)
    try:
        return msgspec.json.decode(listed, type=Snapshot)
    except msgspec.DecodeError:
        return None


def found_snapshot(repo_id: str, commit: str) -> Snapshot | None:
    """Return a commit with those of its files that are on this disk; None if none are."""
    directory = repository_directory(repo_id) / "snapshots" / commit
    files = {
        str(path.relative_to(directory)): RepositoryFile(size=path.stat().st_size)
        for path in directory.rglob("*")
        if path.is_file()
    }
    if not files:
        return None
    return Snapshot(repo_id=repo_id, commit=commit, files=files, is_listed=False)


def remember(snapshot: Snapshot, revision: str) -> None:
    """Store a listing, and the current commit of ``revision``."""
    _write(
        _own_directory(snapshot.repo_id, snapshot.commit) / _LISTING, msgspec.json.encode(snapshot)
    )
    if revision != snapshot.commit:
        reference = repository_directory(snapshot.repo_id) / "refs" / revision
        _write(reference, snapshot.commit.encode())


def read_head(snapshot: Snapshot, name: str, most_bytes: int) -> bytes:
    """Return the stored first bytes of a file; empty if there are none."""
    return _read(_head_path(snapshot, name), most_bytes)


def keep_head(snapshot: Snapshot, name: str, head: bytes) -> None:
    """Store the first bytes of a file for later."""
    _write(_head_path(snapshot, name), head)


def _head_path(snapshot: Snapshot, name: str) -> Path:
    return _own_directory(snapshot.repo_id, snapshot.commit) / _HEADS / name


def _own_directory(repo_id: str, commit: str) -> Path:
    return repository_directory(repo_id) / _OWN / commit


def _read(path: Path, most_bytes: int) -> bytes:
    try:
        with closing(ReadOnlyFile(path)) as file:
            return read_bytes(file, 0, file.size) if file.size <= most_bytes else b""
    except PotluckError:
        return b""


def _write(path: Path, data: bytes) -> None:
    """Write a small file atomically; a lost one can be downloaded again."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
