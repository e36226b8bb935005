"""Access the files of a manifest as if they were in a directory, regardless of their location.

Files that are read whole and several times (configuration, tokenizer, index) are fetched into a
separate folder, checked against their SHA-256, and kept there. All other files are opened by their
content, and only the parts that are read are fetched.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, Protocol

from potluck.catalog.file_names import SMALL_FILES
from potluck.catalog.manifests import check_manifest, manifest_digest
from potluck.errors import ModelFileError, ModelNotFoundError, PotluckError
from potluck.formats.files import ReadableFile, ReadOnlyFile, read_bytes, read_pieces
from potluck.formats.gguf import is_gguf
from potluck.formats.gguf_metadata import HEADER_WINDOW_BYTES
from potluck.host.cache_folder import cache_path
from potluck.types.content import FileContent, Manifest

_HEAD = ".head-"
_HEAD_DIGITS = 32

MAX_VIEWS = 8
"""The number of most recently used folders to keep; each has about 30 MB if the vocabulary is
large."""

Needs = Sequence[tuple[FileContent, Sequence[tuple[int, int]]]]
"""Half-open ranges of bytes of files, in the order in which they are read; a file may occur several
times."""


_DIGEST_BYTES = 32

MAX_HEAD_BYTES = 136 * 2**20
"""The most that is stored of the start of a file: more than the maximum size of a header
(``formats``)."""

_MOST_SKIPPED_BYTES = 16 * 2**20
"""The maximum gap between two reads of a header: arrays of numbers that have not been requested
yet. The scores of a vocabulary take a megabyte."""


class FileHead:
    """The first ``num_bytes`` of a file, stored at ``path``. Not thread-safe.

    Raise ``PotluckError`` if no valid data is stored there, or more than ``most_bytes``.

    A description, a profile, the weights and the vocabulary each read a file's header again, some
    of them long after its bytes were fetched. The data that is read from the beginning of a file
    until it is first released is stored in another file, after its SHA-256.
    """

    def __init__(self, path: Path, most_bytes: int) -> None:
        self._file = ReadOnlyFile(path)
        self.num_bytes = self._file.size - _DIGEST_BYTES
        try:
            self._check(min(most_bytes, MAX_HEAD_BYTES))
        except BaseException:
            self._file.close()
            raise

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill ``out`` from ``offset``. Raise ``ModelFileError`` on failure."""
        self._file.read_into(_DIGEST_BYTES + offset, out)

    def release(self) -> None:
        """Close the descriptor until the next read."""
        self._file.release()

    def close(self) -> None:
        """Close it permanently. Idempotent."""
        self._file.close()

    def _check(self, most_bytes: int) -> None:
        if not 0 <= self.num_bytes <= most_bytes:
            raise PotluckError(f"{self._file.path} is not the head of a file")
        digest = hashlib.sha256()
        for piece in read_pieces(self._file, _DIGEST_BYTES, self._file.size):
            digest.update(piece)
        if digest.digest() != read_bytes(self._file, 0, _DIGEST_BYTES):
            raise PotluckError(f"{self._file.path} is damaged")


class HeadRecorder:
    """Stores the data that is read from the beginning of a file, if it can be written."""

    def __init__(self, path: Path, *, num_more_bytes: int = 0) -> None:
        """Record to ``path``; ``num_more_bytes`` more bytes are read and stored at the end."""
        self._path = path
        self._num_more_bytes = num_more_bytes
        self._temporary = _temporary(path)
        self._file: BinaryIO | None = None
        self._digest = hashlib.sha256()
        self._num_bytes = 0
        self._is_over = False

    def take(self, source: ReadableFile, offset: int, data: memoryview) -> None:
        """Record data that was read from ``source``, and read the part that was skipped before."""
        end = offset + len(data)
        gap = offset - self._num_bytes
        if (
            self._is_over
            or end <= self._num_bytes
            or end > MAX_HEAD_BYTES
            or gap > _MOST_SKIPPED_BYTES
        ):
            return
        try:
            for piece in read_pieces(source, self._num_bytes, offset):
                self._append(piece)
            self._append(data[self._num_bytes - offset :])
        except OSError:
            self.close()

    def finish(self, source: ReadableFile) -> None:
        """Store the recorded data and stop. Idempotent. Raise the errors of ``source``."""
        if self._is_over or self._file is None:
            self.close()
            return
        try:
            num_more = min(self._num_more_bytes, source.size - self._num_bytes)
            self._append(read_bytes(source, self._num_bytes, num_more))
            self._file.seek(0)
            self._file.write(self._digest.digest())
            self._file.close()
            self._temporary.replace(self._path)
        except OSError:
            pass
        self.close()

    def close(self) -> None:
        """Stop recording. Idempotent."""
        self._is_over = True
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(OSError):  # the disk may be full: this writes what is still buffered
                file.close()
            with suppress(OSError):
                self._temporary.unlink(missing_ok=True)

    def _append(self, data: bytes | memoryview) -> None:
        if self._file is None:
            self._temporary.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._temporary.open("xb")
            self._file.write(bytes(_DIGEST_BYTES))
        self._file.write(data)
        self._digest.update(data)
        self._num_bytes += len(data)


class ContentOpener(Protocol):
    """Opens files by their content: ``cluster.transfer.client.TransferClient``."""

    def open_file(self, content: FileContent, *, label: str, job: str = "") -> ReadableFile:
        """Open a file whose bytes are fetched as they are read; ``label`` is for messages."""
        ...

    def want(self, job: str, needs: Needs, *, keep: bool) -> None:
        """Announce the ranges that will be read, so that they are prefetched, and stored if
        ``keep``.
        """
        ...

    def close(self) -> None:
        """Close the opener. Idempotent."""
        ...


class ContentFile:
    """A file of a manifest; a ``ReadableFile``. Not thread-safe.

    ``head`` is the path of its stored beginning; None means that it is not stored. ``open_inner``
    opens the file when other data is read. See ``HeadRecorder`` for ``num_more_bytes``.
    """

    def __init__(
        self,
        name: str,
        content: FileContent,
        label: str,
        open_inner: Callable[[], ReadableFile],
        head: Path | None = None,
        *,
        num_more_bytes: int = 0,
    ) -> None:
        self.path = label
        self.name = name
        self.content = content
        self.size = content.num_bytes
        self.num_bytes_read = 0
        self._open_inner = open_inner
        self._inner: ReadableFile | None = None
        self._is_closed = False
        self._head: FileHead | None = None
        self._recorder: HeadRecorder | None = None
        if head is not None:
            try:
                self._head = FileHead(head, content.num_bytes)
            except PotluckError:
                self._recorder = HeadRecorder(head, num_more_bytes=num_more_bytes)

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill ``out`` from ``offset``, waiting until the bytes have been fetched.

        Raise ``ModelFileError`` past the end, the errors of fetching, and ``ValueError`` after
        ``close``.
        """
        if self._is_closed:
            raise ValueError(f"{self.path} is closed")
        end = offset + len(out)
        if end > self.size:
            raise ModelFileError(
                self.path,
                f"truncated: it ends at byte {self.size}, but must have at least {end} bytes",
            )
        if not self._read_head(offset, out):
            inner = self._opened()
            inner.read_into(offset, out)
            if self._recorder is not None:
                self._recorder.take(inner, offset, out)
        self.num_bytes_read += len(out)

    def check_unchanged(self) -> None:
        """Raise ``ModelFileError`` if the source of the bytes has changed."""
        if self._inner is not None:
            self._inner.check_unchanged()

    def release(self) -> None:
        """Release resources that the next read can acquire again.

        The data that was read so far becomes the file's stored head.
        """
        if self._recorder is not None and self._inner is not None:
            self._recorder.finish(self._inner)
            self._recorder = None
        if self._head is not None:
            self._head.release()
        if self._inner is not None:
            self._inner.release()

    def close(self) -> None:
        """Close it permanently. Idempotent."""
        self._is_closed = True
        for each in (self._recorder, self._head, self._inner):
            if each is not None:
                each.close()

    def _read_head(self, offset: int, out: memoryview) -> bool:
        """Fill ``out`` from the stored head; return False if that does not have the bytes."""
        if self._head is None or offset + len(out) > self._head.num_bytes:
            return False
        try:
            self._head.read_into(offset, out)
        except ModelFileError:  # another process has removed or replaced it
            self._head.close()
            self._head = None
            return False
        return True

    def _opened(self) -> ReadableFile:
        if self._inner is None:
            inner = self._open_inner()
            if inner.size != self.size:
                inner.close()
                raise ModelFileError(
                    self.path, f"it has {inner.size} bytes, but the manifest lists {self.size}"
                )
            self._inner = inner
        return self._inner


class ManifestView:
    """A model's files by the names in its manifest. May be used from several threads.

    ``name`` is the model's name in messages, and ``job`` is passed to the opener. The view owns
    ``opener``; opened files belong to the caller. Raise ``ModelFileError`` if the manifest is
    invalid (``check_manifest``).
    """

    def __init__(
        self,
        manifest: Manifest,
        opener: ContentOpener,
        *,
        name: str,
        job: str = "",
        keep: bool = True,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        check_manifest(manifest, name)
        self.manifest = manifest
        self.name = name
        self.digest = manifest_digest(manifest)
        self.contents: Mapping[str, FileContent] = manifest.contents
        self._opener = opener
        self._job = job
        self._keep = keep
        self._lock = threading.Lock()
        self._checked: set[str] = set()
        self.directory = self._make_directory(environ)
        """The directory to which small files are fetched."""

    def open(self, path: Path) -> ContentFile:
        """Open the file at a path within ``directory``; an ``OpenFile``.

        Raise ``ModelNotFoundError`` if the manifest does not have it.
        """
        name = self._name_of(path)
        content = self.contents.get(name)
        if content is None:
            raise ModelNotFoundError(
                f"{self.name} has no file {name}", hint="the model's manifest does not list it"
            )
        return self._content_file(name, self.directory / f"{_HEAD}{content.sha256[:_HEAD_DIGITS]}")

    def close(self) -> None:
        """Close the opener. Idempotent."""
        self._opener.close()

    def label(self, name: str) -> str:
        """Return the name of a file in messages."""
        return self.name if self.name.endswith(name) else f"{self.name}:{name}"

    def want(self, needs: Needs) -> None:
        """Announce the ranges that will be read next."""
        if needs:
            self._opener.want(self._job, needs, keep=self._keep)

    def fetch_files(self, names: Iterable[str]) -> None:
        """Fetch small files to ``directory`` and check them; files that do not exist are ignored.

        Raise ``ModelFileError`` if a file does not match the manifest or cannot be written, and the
        errors of fetching.
        """
        with self._lock:
            wanted = [name for name in dict.fromkeys(names) if name in self.contents]
            missing = [name for name in wanted if not self._is_here(name)]
            contents = [self.contents[name] for name in missing]
            self.want([(each, ((0, each.num_bytes),)) for each in contents if each.num_bytes])
            for name in missing:
                self._fetch(name)

    def fetch_small_files(self) -> None:
        """Fetch all small files."""
        self.fetch_files(SMALL_FILES)

    def _name_of(self, path: Path) -> str:
        try:
            return path.relative_to(self.directory).as_posix()
        except ValueError:
            return str(path)

    def _make_directory(self, environ: Mapping[str, str]) -> Path:
        models = cache_path(environ, "models")
        if models is not None:
            directory = models / self.digest
            with suppress(OSError):
                directory.mkdir(parents=True, exist_ok=True)
                os.utime(directory)
                if os.access(directory, os.W_OK | os.X_OK):
                    _prune(models, directory)
                    return directory
        directory = Path(tempfile.mkdtemp(prefix="potluck-model-"))
        weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)
        return directory

    def _is_here(self, name: str) -> bool:
        path, content = self.directory / name, self.contents[name]
        try:
            if path.stat().st_size != content.num_bytes:
                return False
            if name in self._checked:
                return True
            with path.open("rb") as file:
                is_right = hashlib.file_digest(file, "sha256").hexdigest() == content.sha256
        except OSError:
            return False
        if is_right:
            self._checked.add(name)
        return is_right

    def _content_file(self, name: str, head: Path | None = None) -> ContentFile:
        content, label = self.contents[name], self.label(name)
        return ContentFile(
            name,
            content,
            label,
            lambda: self._opener.open_file(content, label=label, job=self._job),
            head,
            # Reading the last text of a header reads a whole window.
            num_more_bytes=HEADER_WINDOW_BYTES if is_gguf(name) else 0,
        )

    def _fetch(self, name: str) -> None:
        path, content = self.directory / name, self.contents[name]
        temporary = _temporary(path)
        digest = hashlib.sha256()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with closing(self._content_file(name)) as source, temporary.open("xb") as target:
                for piece in read_pieces(source, 0, content.num_bytes):
                    digest.update(piece)
                    target.write(piece)
            if digest.hexdigest() != content.sha256:
                raise ModelFileError(
                    self.label(name),
                    f"its content has the SHA-256 {digest.hexdigest()}, but the manifest "
                    f"lists {content.sha256}",
                    hint="deploy the model again; if the error persists, the file is damaged at "
                    "its source",
                )
            temporary.replace(path)
        except OSError as error:
            raise ModelFileError(
                str(error.filename or path),
                f"cannot be written: {error.strerror}",
                hint="free some space there, or set XDG_CACHE_HOME to a directory on another disk",
            ) from error
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        self._checked.add(name)


def _temporary(path: Path) -> Path:
    """Return the path at which a file is written before it is moved to ``path``."""
    return path.with_name(f"{path.name}.{os.getpid()}-{token_hex(4)}.partial")


def _prune(models: Path, used: Path) -> None:
    """Remove the least recently used directories; a process that still uses one downloads its files
    again.
    """
    found: list[tuple[float, Path]] = []
    for path in models.iterdir():
        with suppress(OSError):
            found.append((path.stat().st_mtime, path))
    for _, path in sorted(found, reverse=True)[MAX_VIEWS:]:
        if path != used:
            shutil.rmtree(path, ignore_errors=True)
