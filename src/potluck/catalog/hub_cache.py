"""What is on this disk of a repository of the hub.

The files lie in huggingface_hub's cache as it documents it
(https://huggingface.co/docs/huggingface_hub/guides/manage-cache): ``blobs/ETAG`` has the bytes,
``snapshots/COMMIT/NAME`` is a link to them, ``refs/main`` holds a commit. Beside them ``.potluck``
keeps what is known of a commit without its files, and never changes: its list of files, and the
first bytes of some. It goes when the repository is removed from the cache; where it cannot be
written, it is asked for again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

import msgspec

from potluck.cache_folder import hub_cache_folder
from potluck.errors import PotluckError
from potluck.formats.files import ReadOnlyFile, read_bytes

COMMIT = re.compile(r"[0-9a-f]{40}")
MAIN = "main"

_OWN = ".potluck"
_LISTING = "files.json"
_HEADS = "heads"
_MAX_LISTING_BYTES = 64 * 2**20


class RepositoryFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file as the hub lists it; None where it does not say.

    ``sha256`` is that of a file in large-file storage, ``git_id`` git's id of any other.
    """

    size: int | None = None
    sha256: str | None = None
    git_id: str | None = None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A repository at one commit: every file that it has, of which some are on this disk."""

    repo_id: str
    commit: str
    files: Mapping[str, RepositoryFile]

    @property
    def directory(self) -> Path:
        """Where its files are linked; it need not be there yet."""
        return repository_directory(self.repo_id) / "snapshots" / self.commit

    def path(self, name: str) -> Path:
        """Where a file is, or will be."""
        return self.directory / name

    def has(self, name: str) -> bool:
        """Whether a file is on this disk, whole."""
        return self.path(name).is_file()

    def blob(self, etag: str) -> Path:
        """Where the bytes of a file lie when they are whole."""
        return repository_directory(self.repo_id) / "blobs" / etag

    def partial(self, etag: str) -> Path:
        """Where they are gathered before that."""
        return repository_directory(self.repo_id) / _OWN / "partial" / etag


def repository_directory(repo_id: str) -> Path:
    """All that the cache has of a repository."""
    return hub_cache_folder() / f"models--{repo_id.replace('/', '--')}"


def known_commit(repo_id: str, revision: str) -> str | None:
    """The commit that a revision was when it was last asked for."""
    if COMMIT.fullmatch(revision):
        return revision
    try:
        commit = (repository_directory(repo_id) / "refs" / revision).read_text().strip()
    except (OSError, ValueError):
        return None
    return commit if COMMIT.fullmatch(commit) else None


def listed_snapshot(repo_id: str, commit: str) -> Snapshot | None:
    """A commit as the hub has listed it before."""
    listed = _read(_own_directory(repo_id, commit) / _LISTING, _MAX_LISTING_BYTES)
    try:
        return msgspec.json.decode(listed, type=Snapshot)
    except msgspec.DecodeError:
        return None


def found_snapshot(repo_id: str, commit: str) -> Snapshot | None:
    """A commit as far as its files are on this disk, whoever fetched them; None if none are."""
    directory = repository_directory(repo_id) / "snapshots" / commit
    files = {
        str(path.relative_to(directory)): RepositoryFile(size=path.stat().st_size)
        for path in directory.rglob("*")
        if path.is_file()
    }
    return Snapshot(repo_id=repo_id, commit=commit, files=files) if files else None


def remember(snapshot: Snapshot, revision: str) -> None:
    """Keep a listing, and which commit ``revision`` is now."""
    _write(
        _own_directory(snapshot.repo_id, snapshot.commit) / _LISTING, msgspec.json.encode(snapshot)
    )
    if revision != snapshot.commit:
        reference = repository_directory(snapshot.repo_id) / "refs" / revision
        _write(reference, snapshot.commit.encode())


def read_head(snapshot: Snapshot, name: str, most_bytes: int) -> bytes:
    """The first bytes of a file that were kept; none if none were."""
    return _read(_head_path(snapshot, name), most_bytes)


def keep_head(snapshot: Snapshot, name: str, head: bytes) -> None:
    """Keep the first bytes of a file for later."""
    _write(_head_path(snapshot, name), head)


def _head_path(snapshot: Snapshot, name: str) -> Path:
    return _own_directory(snapshot.repo_id, snapshot.commit) / _HEADS / name


def _own_directory(repo_id: str, commit: str) -> Path:
    return repository_directory(repo_id) / _OWN / commit


def _read(path: Path, most_bytes: int) -> bytes:
    try:
        file = ReadOnlyFile(path)
    except PotluckError:
        return b""
    try:
        return read_bytes(file, 0, file.size) if file.size <= most_bytes else b""
    except PotluckError:
        return b""
    finally:
        file.close()


def _write(path: Path, data: bytes) -> None:
    """Put a small file in place whole, or not at all: it can be had again."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
