"""Files served by their content from a folder, counting what is read of them.

Takes the place of the client of a transfer process: it gives whoever opens a file its bytes at
once, and notes every read.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from potluck.catalog import describe_model, make_manifest, manifest_names
from potluck.cluster.transfer.channel import Channel, ChannelClosedError
from potluck.cluster.transfer.messages import (
    Arrived,
    Await,
    Check,
    ClientMessage,
    Failed,
    Waiting,
    Want,
)
from potluck.errors import ModelFileError
from potluck.types.content import CHUNK_BYTES, ChunkRuns, FileContent, Manifest, runs_of

Needs = Sequence[tuple[FileContent, Sequence[tuple[int, int]]]]


@dataclass(slots=True)
class ContentFolder:
    """A ``ContentOpener`` of files on this disk by their SHA-256.

    ``reads`` are (sha256, start, end) in order, ``wanted`` what was announced with its job.
    """

    paths: dict[str, Path] = field(default_factory=dict)
    reads: list[tuple[str, int, int]] = field(default_factory=list)
    wanted: list[tuple[str, list[tuple[FileContent, int, int]], bool]] = field(default_factory=list)
    num_open: int = 0
    is_closed: bool = False

    def add(self, path: Path) -> FileContent:
        """Serve a file."""
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        content = FileContent(sha256=sha256, num_bytes=path.stat().st_size)
        self.paths[content.sha256] = path
        return content

    def add_model(self, name: str) -> Manifest:
        """Serve the files of a model on this disk."""
        files = describe_model(name).files
        contents = {name: self.add(path) for name, path in manifest_names(files).items()}
        return make_manifest(files, contents)

    def open_file(self, content: FileContent, *, label: str, job: str = "") -> CountedFile:
        """Open a file; ``ModelFileError`` for one that is not served."""
        path = self.paths.get(content.sha256)
        if path is None:
            raise ModelFileError(label, "nobody has it")
        self.num_open += 1
        return CountedFile(self, content, path.read_bytes(), label)

    def want(self, job: str, needs: Needs, *, keep: bool) -> None:
        """Note what will be read."""
        ranges = [(content, *each) for content, several in needs for each in several]
        self.wanted.append((job, ranges, keep))

    def close(self) -> None:
        """Note that nothing more is opened."""
        self.is_closed = True

    def chunks(self, content: FileContent) -> ChunkRuns:
        """Return the chunks of which anything was read."""
        return runs_of(
            chunk
            for sha256, start, end in self.reads
            if sha256 == content.sha256
            for chunk in range(start // CHUNK_BYTES, -(-end // CHUNK_BYTES))
        )

    def bytes_read(self, content: FileContent) -> set[int]:
        """Return the offsets of all bytes of a small file that were read."""
        return {
            offset
            for sha256, start, end in self.reads
            if sha256 == content.sha256
            for offset in range(start, end)
        }


class CountedFile:
    """A ``ReadableFile``."""

    def __init__(
        self, folder: ContentFolder, content: FileContent, data: bytes, label: str
    ) -> None:
        self.path = label
        self.size = content.num_bytes
        self.num_bytes_read = 0
        self._folder = folder
        self._content = content
        self._data = data
        self._is_closed = False

    def read_into(self, offset: int, out: memoryview) -> None:
        end = offset + len(out)
        if self._is_closed:
            raise ValueError(f"{self.path} is closed")
        if end > len(self._data):
            raise ModelFileError(self.path, f"truncated: it ends at byte {len(self._data)}")
        out[:] = self._data[offset:end]
        self.num_bytes_read += len(out)
        self._folder.reads.append((self._content.sha256, offset, end))

    def check_unchanged(self) -> None:
        pass

    def release(self) -> None:
        pass

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._folder.num_open -= 1


class ContentService:
    """Serves workers in place of a transfer process, with a thread a reader.

    ``paths`` are files by their SHA-256. ``requests`` are (sha256, first, end) of the chunks that
    readers have waited for, ``wants`` what they announced. While ``is_held`` everybody waits.
    """

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._paths = paths
        self.requests: list[tuple[str, int, int]] = []
        self.wants: list[Want] = []
        self.is_held = False

    def worker_socket(self) -> socket.socket:
        """Return a socket for a reader."""
        ours, theirs = socket.socketpair()
        threading.Thread(target=self._serve, args=(ours,), daemon=True).start()
        return theirs

    def _serve(self, connection: socket.socket) -> None:
        channel: Channel[ClientMessage] = Channel(connection, ClientMessage)
        sent: dict[str, int] = {}
        try:
            while True:
                message, _ = channel.receive()
                match message:
                    case Want():
                        self.wants.append(message)
                    case Check():
                        channel.send(Arrived(0, 0, 0, is_window=False))
                    case Await():
                        self._answer(channel, message, sent)
        except ChannelClosedError:
            channel.close()

    def _answer(
        self, channel: Channel[ClientMessage], request: Await, sent: dict[str, int]
    ) -> None:
        sha256 = request.content.sha256
        self.requests.append((sha256, request.first, request.end))
        while self.is_held:
            channel.send(Waiting(0))
            time.sleep(0.05)
        path = self._paths.get(sha256)
        if path is None:
            channel.send(Failed("nobody has it", "ask somebody else", is_changed=False))
            return
        place = sent.setdefault(sha256, len(sent))
        descriptor = os.open(path, os.O_RDONLY)
        try:
            channel.send(Arrived(request.first, request.end, place, is_window=False), descriptor)
        finally:
            os.close(descriptor)
