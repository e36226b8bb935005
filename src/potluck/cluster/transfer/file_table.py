"""The files in use, by content, and the digests received for files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from potluck.cluster.transfer.changes import Changes
from potluck.cluster.transfer.jobs import Jobs
from potluck.cluster.transfer.shared_file import SharedFile
from potluck.cluster.transfer.window import Relay
from potluck.store.content_store import ContentStore
from potluck.types.content import ChunkRuns, FileContent


class FileTable:
    """One ``SharedFile`` for each content in use.

    For use with the board's lock held, except for ``using``, ``held``, ``digests`` and ``remove``,
    which take it.
    """

    def __init__(self, store: ContentStore, jobs: Jobs, relay: Relay, changes: Changes) -> None:
        self._store = store
        self._jobs = jobs
        self._relay = relay
        self._changes = changes
        self._files: dict[str, SharedFile] = {}
        self._digests: dict[str, tuple[bytes, bool]] = {}

    def __len__(self) -> int:
        return len(self._files)

    @property
    def can_keep(self) -> bool:
        """Return whether the store may store anything."""
        return self._store.limit_bytes > 0

    def get(self, sha256: str) -> SharedFile | None:
        """Return a file that is in use; None for any other."""
        return self._files.get(sha256)

    def all(self) -> list[SharedFile]:
        """Return the files that are in use."""
        return list(self._files.values())

    def open(self, content: FileContent, label: str = "") -> SharedFile:
        """Return a file, opening it if it is not in use; ``retire`` closes it."""
        file = self._files.get(content.sha256)
        if file is None:
            label = label or self._jobs.label(content.sha256)
            file = self._files[content.sha256] = SharedFile(self._store, content, label)
            known = self._digests.get(content.sha256)
            if known is not None and len(known[0]) == content.digests_bytes:
                (file.set_verified if known[1] else file.expect)(known[0])
        if label and not file.label:
            file.label = label
        return file

    def use(self, content: FileContent) -> SharedFile | None:
        """Return a known file, to be released with ``release``; None for any other."""
        file = self._files.get(content.sha256)
        if file is None:
            if not self._jobs.names(content) and not self._is_on_disk(content):
                return None
            file = self.open(content)
        if file.content != content:
            return None
        file.num_users += 1
        return file

    def release(self, file: SharedFile) -> None:
        """End the use of a file."""
        file.num_users -= 1
        self.retire(file)

    def retire(self, file: SharedFile) -> None:
        """Close a file unless it is used or chunks of it are in transit."""
        if file.num_users <= 0 and not file.assigned:
            if self._files.get(file.content.sha256) is file:
                del self._files[file.content.sha256]
            self._relay.close(file)
            file.close()

    @contextlib.contextmanager
    def using(self, content: FileContent) -> Iterator[SharedFile | None]:
        """Yield a file if it is in use or on this disk, otherwise None. Takes the lock."""
        with self._changes:
            file = self._files.get(content.sha256)
            if file is None and self._is_on_disk(content):
                file = self.open(content)
            if file is not None:
                file.num_users += 1
        try:
            yield file
        finally:
            if file is not None:
                with self._changes:
                    self.release(file)

    def held(self, contents: Sequence[FileContent]) -> tuple[dict[str, ChunkRuns], set[str]]:
        """Return which chunks of files are on disks of this node, and which files have verified
        digests.

        Takes the lock.
        """
        held: dict[str, ChunkRuns] = {}
        verified: set[str] = set()
        for content in contents:
            with self.using(content) as file:
                if file is None:
                    continue
                if file.local is not None:
                    runs = file.local.held()
                else:
                    runs = () if file.blob is None else file.blob.held()
                if runs:
                    held[content.sha256] = runs
                if file.verified is not None:
                    verified.add(content.sha256)
        return held, verified

    def digests(self, sha256: str) -> bytes | None:
        """Return verified digests. Takes the lock."""
        with self._changes:
            known = self._digests.get(sha256)
            if known is not None and known[1]:
                return known[0]
            file = self._files.get(sha256)
            if file is not None:
                return file.verified
        found = self._store.find(sha256)
        if found is None:
            return None
        try:
            return found.all_digests if found.is_verified else None
        finally:
            found.close()

    def note_digests(self, content: FileContent, digests: bytes, *, is_verified: bool) -> None:
        """Remember the digests of all chunks for when the file is opened. Verified ones are not
        replaced.
        """
        known = self._digests.get(content.sha256)
        if known is None or is_verified or not known[1]:
            self._digests[content.sha256] = (digests, is_verified)

    def remove(self, sha256: str) -> None:
        """Remove what the store has of a file. Takes the lock."""
        with self._changes:
            file = self._files.get(sha256)
            self._digests.pop(sha256, None)
            if file is not None and file.blob is not None:
                file.blob.remove()
                file.blob.close()
                file.blob = None
                return
        found = self._store.find(sha256)
        if found is not None:
            with contextlib.closing(found):
                if hasattr(found, "remove"):
                    found.remove()

    def _is_on_disk(self, content: FileContent) -> bool:
        found = self._store.find(content.sha256, content.num_bytes)
        if found is not None:
            found.close()
        return found is not None
