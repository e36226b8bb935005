"""Model files as a worker or the agent reads them: their bytes arrive while they are read."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

from potluck.cluster.transfer.channel import Channel, ChannelClosedError, process_gone
from potluck.cluster.transfer.messages import (
    Arrived,
    Await,
    Check,
    ClientAnswer,
    CloseFile,
    Consumed,
    Failed,
    OpenFile,
    Waiting,
    Want,
)
from potluck.errors import ModelFileError, TransferError
from potluck.types.content import CHUNK_BYTES, FileContent, runs_in_order

Ranges = Sequence[tuple[int, int]]
"""Half-open ranges of bytes."""

_AHEAD_CHUNKS = 16
"""Chunks requested together: one request for each 16 MiB that are already here."""

_PIECE_BYTES = 4 * CHUNK_BYTES
"""Bytes read from a window before they are released."""

_KEPT_CHUNKS = 2
"""Most recently read chunks of a window that are kept: tensors begin in the chunk in which others
end."""


class TransferClient:
    """A connection to the node's transfer process, by a socket of ``TransferProcess``.

    Thread-safe; calls of several threads wait for one another, even while bytes arrive, so a thread
    that reads for long should have a client of its own. ``on_wait`` is called about once a second
    while a read waits for bytes, with the number that have arrived for its job so far.
    """

    def __init__(
        self, connection: socket.socket, *, on_wait: Callable[[int], None] | None = None
    ) -> None:
        """Take ownership of ``connection``."""
        connection.setblocking(True)
        self._channel: Channel[ClientAnswer] = Channel(connection, ClientAnswer)
        self._lock = threading.Lock()
        self._on_wait = on_wait
        self._window_lock = threading.RLock()
        self._consumed: dict[FileContent, list[int]] = {}

    def open_file(self, content: FileContent, *, label: str, job: str = "") -> TransferFile:
        """Return a file to read from, a ``formats.files.ReadableFile``.

        Messages call it ``label``. ``job`` names the job whose sources provide what this disk does
        not have; without one nothing is fetched. Raise ``TransferError`` if the process is gone.
        """
        file = TransferFile(self, content, label)
        self.send(OpenFile(content, label, job))
        return file

    def want(
        self,
        job: str,
        needs: Sequence[tuple[FileContent, Ranges]],
        *,
        keep: bool,
    ) -> None:
        """Have byte ranges fetched ahead, in the given order, in which they will be read.

        A file may occur several times, with ranges of other files in between.

        ``keep``: into the store; otherwise, or if the store has no room, into memory, at most 16
        MiB ahead of what was read. Sources may be given to the process before or after. Calling it
        again for a job replaces what this client wanted before.
        """
        pairs = tuple((content, tuple(ranges)) for content, ranges in needs)
        self.send(Want(job, pairs, keep))

    def close(self) -> None:
        """Close the connection, which cancels what it wanted. Idempotent."""
        self._channel.shut_down()
        with self._lock:
            self._channel.close()

    # For ``TransferFile``.

    def send(self, message: OpenFile | Want | Consumed | CloseFile) -> None:
        """Send a message that has no answer."""
        try:
            self._channel.send(message)
        except ChannelClosedError as error:
            raise process_gone() from error

    def ask(self, label: str, message: Await | Check) -> tuple[Arrived, int | None]:
        """Return the answer, with the descriptor that came with it."""
        try:
            with self._lock:
                self._channel.send(message)
                while True:
                    answer, descriptor = self._channel.receive()
                    if not isinstance(answer, Waiting):
                        break
                    if self._on_wait is not None:
                        self._on_wait(answer.num_bytes)
        except ChannelClosedError as error:
            raise process_gone() from error
        if isinstance(answer, Failed):
            if answer.is_changed:
                raise ModelFileError(label, answer.message, hint=answer.hint)
            raise TransferError(f"{label}: {answer.message}", hint=answer.hint)
        return answer, descriptor

    @contextlib.contextmanager
    def reading_window(self, content: FileContent) -> Iterator[list[int]]:
        """Yield the chunks of a window that were read, oldest first; none is released meanwhile."""
        with self._window_lock:
            yield self._consumed.setdefault(content, [])

    def give_back(self, content: FileContent, num_kept: int) -> None:
        """Release chunks of a window that were read, except for the latest."""
        with self._window_lock:
            consumed = self._consumed.get(content, [])
            num_given = max(0, len(consumed) - num_kept)
            given = consumed[:num_given]
            del consumed[:num_given]
            for first, end in runs_in_order(given):
                self.send(Consumed(content, first, end))


class TransferFile:
    """A file whose bytes may still be arriving; a ``formats.files.ReadableFile``.

    For use by one thread at a time.
    """

    def __init__(self, client: TransferClient, content: FileContent, label: str) -> None:
        self.path = label
        self.size = content.num_bytes
        self.num_bytes_read = 0
        self.content = content
        self._client = client
        self._descriptors: dict[int, int] = {}
        self._runs: list[Arrived] = []  # ascending, disjoint
        self._is_closed = False

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill ``out`` (contiguous bytes) from ``offset``, waiting until the bytes are here.

        Raise ``TransferError`` if no source has them, ``ModelFileError`` if there are too few or a
        file on this disk has changed, and ``ValueError`` after ``close``.
        """
        if self._is_closed:
            raise ValueError(f"{self.path} is closed")
        end = offset + len(out)
        if end > self.size:
            raise ModelFileError(
                self.path,
                f"truncated: it ends at byte {self.size}, but bytes up to {end} are needed",
            )
        done = 0
        while done < len(out):
            done += self._read_some(offset + done, out[done:])
        self.num_bytes_read += done

    def check_unchanged(self) -> None:
        """Raise ``ModelFileError`` if bytes came from a file on this disk that has changed since.

        Fetched bytes are checked by their SHA-256 on arrival.
        """
        self._client.ask(self.path, Check(self.content))

    def release(self) -> None:
        """Release what the next read can get again: the chunks of a window that were read."""
        self._client.give_back(self.content, 0)

    def close(self) -> None:
        """Close the file for good. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.suppress(TransferError):
            self.release()
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()
        with contextlib.suppress(TransferError):
            self._client.send(CloseFile(self.content))

    def _read_some(self, offset: int, out: memoryview) -> int:
        first, end = offset // CHUNK_BYTES, -(-(offset + len(out)) // CHUNK_BYTES)
        run = self._run(first, end)
        if not run.is_window:
            count = min(len(out), run.end * CHUNK_BYTES - offset)
            self._read(run, offset, out[:count])
            return count
        # Another thread may have released what has just arrived for this one.
        with self._client.reading_window(self.content) as consumed:
            run = self._run(first, end)
            count = min(len(out), run.end * CHUNK_BYTES - offset, _PIECE_BYTES)
            self._read(run, offset, out[:count])
            if run.is_window:
                for chunk in range(first, -(-(offset + count) // CHUNK_BYTES)):
                    if chunk in consumed:
                        consumed.remove(chunk)
                    consumed.append(chunk)
                self._client.give_back(self.content, _KEPT_CHUNKS)
        return count

    def _run(self, first: int, end: int) -> Arrived:
        """Return where the chunk ``first`` can be read, and some of those after it."""
        at = bisect_right(self._runs, first, key=lambda run: run.first) - 1
        if at >= 0 and first < self._runs[at].end:
            return self._runs[at]
        end = max(first + 1, min(end, first + _AHEAD_CHUNKS))
        run, descriptor = self._client.ask(self.path, Await(self.content, first, end))
        if descriptor is not None:
            old = self._descriptors.pop(run.place, None)
            if old is not None:
                os.close(old)
            self._descriptors[run.place] = descriptor
        if not run.is_window:
            self._remember(run)
        return run

    def _remember(self, run: Arrived) -> None:
        at = bisect_right(self._runs, run.first, key=lambda each: each.first)
        if at > 0 and self._runs[at - 1].end == run.first and self._runs[at - 1].place == run.place:
            at -= 1
            run = Arrived(self._runs.pop(at).first, run.end, run.place, run.is_window)
        # A run that begins inside is not known to be better: the later answer takes precedence.
        while at < len(self._runs) and self._runs[at].first < run.end:
            self._runs.pop(at)
        self._runs.insert(at, run)

    def _read(self, run: Arrived, offset: int, out: memoryview) -> None:
        descriptor = self._descriptors[run.place]
        done = 0
        while done < len(out):
            try:
                count = os.preadv(descriptor, [out[done:]], offset + done)
            except OSError as error:
                raise ModelFileError(self.path, f"cannot be read: {error.strerror}") from error
            if count == 0:
                self.check_unchanged()
                raise ModelFileError(self.path, "bytes that existed before are missing")
            done += count
        if not run.is_window:
            with contextlib.suppress(OSError):  # advice that a file system may not support
                os.posix_fadvise(descriptor, offset, done, os.POSIX_FADV_DONTNEED)
