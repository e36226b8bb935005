"""Read from a wheel in an index what a check needs, and no more than that.

A wheel is a ZIP archive with its directory at the end. If the index supports ranges, the directory,
the metadata and the members that may be ELF files (and the Python sources next to them) are
downloaded to their offsets in a sparse file, which can be read like the wheel. If most of it would
be downloaded anyway, or the index does not support ranges, the whole wheel is downloaded, and kept.
"""

from __future__ import annotations

import contextlib
import struct
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from packaging.metadata import parse_email

from potluck.errors import WheelDownloadError, WheelFileError
from potluck.portability.checks.needs import WheelNeeds, needs_by_digest, read_needs
from potluck.portability.planning.index import Index, IndexFile, sha256_of
from potluck.portability.wheels.bounded_zip import BoundedZip
from potluck.portability.wheels.file import may_be_elf, open_package
from potluck.portability.wheels.named_wheels import kept_wheel
from potluck.portability.wheels.variants import FILE, Variant

_TAIL_BYTES = 1 << 16
"""Enough for the directory of about 600 members, and usually the metadata before it: one
request.
"""

_GAP_BYTES = 1 << 18
"""Gap between two spans that is downloaded as well: it costs less than a request at 10 MB/s."""

_WORTH_IT = 0.7
"""If more than this fraction of a wheel is needed, the whole wheel is downloaded, and kept."""

_MAX_WHEEL_BYTES = 8 << 30
_MAX_DIRECTORY_BYTES = 32 << 20

_END = struct.Struct("<4s4H2LH")
_END_MAGIC = b"PK\5\6"
_IN_ZIP64 = 0xFFFFFFFF

_Wanted = Callable[[Sequence[str]], Collection[str]]
"""Returns those of an archive's members that are to be read."""


class WheelReader:
    """Reads wheels of an index. ``folder`` caches whole wheels, ``needs_folder`` what was read from
    any; None caches nothing. Not thread-safe.
    """

    def __init__(self, index: Index, *, folder: Path | None, needs_folder: Path | None) -> None:
        self.index = index
        self._folder = folder
        self._needs_folder = needs_folder
        self._requires: dict[str, tuple[str, ...]] = {}
        self._fetched: dict[str, Path] = {}

    def requires(self, file: IndexFile) -> tuple[str, ...]:
        """Return the requirements in the metadata of a wheel: the separate file (PEP 658), or the
        one within it.

        Raise ``WheelDownloadError`` or ``WheelFileError`` if it cannot be read.
        """
        if file.url not in self._requires:
            data = self.index.metadata(file)
            if data is not None:
                self._requires[file.url] = tuple(parse_email(data)[0].get("requires_dist", ()))
            else:
                distribution = self.needs(file).distribution
                if distribution is None:
                    raise WheelFileError(file.filename, "it has no metadata")
                self._requires[file.url] = distribution.requires
        return self._requires[file.url]

    def needs(self, file: IndexFile) -> WheelNeeds:
        """Return what a wheel needs of a host.

        Raise ``WheelDownloadError`` or ``WheelFileError`` if it cannot be read.
        """
        return needs_by_digest(
            file.filename, file.sha256, self._needs_folder, lambda: self._read(file)
        )

    def variant(self, file: IndexFile) -> Variant:
        """Return the variant that a wheel is, from its metadata directory alone.

        Raise ``WheelDownloadError`` or ``WheelFileError`` if it cannot be read, or is not a valid
        variant.
        """
        with self._opened(file, _metadata_members) as path, open_package(path) as package:
            distribution = package.distribution
        if distribution is None or distribution.variant is None:
            problem = "it is not a variant" if distribution is None else distribution.problem
            raise WheelFileError(file.filename, problem)
        return distribution.variant

    def whole(self, file: IndexFile, folder: Path) -> Path:
        """Return the path of the whole wheel in ``folder``, downloaded if it is not there.

        Raise ``WheelDownloadError`` on failure, including a wrong digest.
        """
        for place in (folder, self._folder):
            path = None if place is None else place / file.filename
            if path is not None and path.is_file() and file.sha256 in ("", sha256_of(path)):
                if place == folder:
                    return path
                return _copied(path, folder)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".coming-") as coming:
            path = Path(coming, file.filename)
            self.index.fetch(file, path)
            return kept_wheel(path, folder)

    def discard(self, file: IndexFile) -> None:
        """Remove a whole wheel that was downloaded only to be read."""
        path = self._fetched.pop(file.url, None)
        if path is not None:
            path.unlink(missing_ok=True)

    def discard_others(self, files: Iterable[IndexFile]) -> None:
        """Remove all such wheels except these."""
        kept = {each.url for each in files}
        for url in self._fetched.keys() - kept:
            self._fetched.pop(url).unlink(missing_ok=True)

    def _read(self, file: IndexFile) -> WheelNeeds:
        with self._opened(file, _checked_members) as path:
            return read_needs(path)

    @contextmanager
    def _opened(self, file: IndexFile, wanted: _Wanted) -> Iterator[Path]:
        """Yield the path of the whole wheel, or of a sparse file with the ``wanted`` members."""
        with tempfile.TemporaryDirectory(prefix="potluck-wheel-") as place:
            path = Path(place, file.filename)
            if not self._fetch_parts(file, path, wanted):
                if self._folder is not None:
                    is_new = not (self._folder / file.filename).is_file()
                    path = self.whole(file, self._folder)
                    if is_new:
                        self._fetched[file.url] = path
                else:
                    path.unlink(missing_ok=True)
                    self.index.fetch(file, path)
            yield path

    def _fetch_parts(self, file: IndexFile, path: Path, wanted: _Wanted) -> bool:
        """Create the sparse file; return False if the whole wheel has to be downloaded instead."""
        if self._folder is not None and (self._folder / file.filename).is_file():
            return False
        num_bytes = self.index.num_bytes(file)
        if num_bytes is None:
            return False
        if num_bytes > _MAX_WHEEL_BYTES:
            raise WheelDownloadError(f"{file.filename} has {num_bytes} bytes")
        with path.open("wb") as sparse:
            sparse.truncate(num_bytes)
        tail = max(0, num_bytes - _TAIL_BYTES)
        if not self.index.fetch_range(file, tail, num_bytes, path):
            return False
        directory = _directory_start(path, tail)
        if directory is None or num_bytes - directory > _MAX_DIRECTORY_BYTES:
            return False
        if directory < tail and not self.index.fetch_range(file, directory, tail, path):
            return False
        spans = _read_spans(path, directory, wanted)
        if spans is None:
            return False
        before_tail = [(start, min(end, tail)) for start, end in _joined(spans) if start < tail]
        if sum(end - start for start, end in before_tail) > _WORTH_IT * num_bytes:
            return False
        return all(self.index.fetch_range(file, start, end, path) for start, end in before_tail)


def _checked_members(names: Sequence[str]) -> Collection[str]:
    """Return the members that a check reads."""
    # If there are libraries, the sources determine which of them an import loads.
    has_libraries = any(".so" in name for name in names)
    return {name for name in names if may_be_elf(name) or (has_libraries and name.endswith(".py"))}


def _metadata_members(names: Sequence[str]) -> Collection[str]:
    """Return the members of the metadata directory that say which wheel it is."""
    wanted = {"METADATA", "WHEEL", "RECORD", FILE}
    return {
        name
        for name in names
        if name.count("/") == 1
        and name.partition("/")[0].endswith(".dist-info")
        and name.partition("/")[2] in wanted
    }


def _directory_start(path: Path, tail: int) -> int | None:
    """Return where the directory begins, according to the end record in the tail; None if it is
    invalid.
    """
    with path.open("rb") as file:
        file.seek(tail)
        data = file.read()
    at = data.rfind(_END_MAGIC)
    if at < 0 or len(data) - at < _END.size:
        return None
    fields = _END.unpack_from(data, at)
    num_directory_bytes, start = fields[5], fields[6]
    if start == _IN_ZIP64 or start + num_directory_bytes > tail + at:
        return None
    return int(start)


def _read_spans(path: Path, directory: int, wanted: _Wanted) -> list[tuple[int, int]] | None:
    """Return the spans of members that are read, each with its header; None if the archive is
    malformed.
    """
    try:
        with BoundedZip(path) as archive:
            offsets = archive.offsets
    except WheelFileError:
        return None
    members = sorted(offsets.items(), key=lambda each: each[1])
    ends = [*(start for _, start in members[1:]), directory]
    names = wanted(tuple(offsets))
    return [(start, end) for (name, start), end in zip(members, ends, strict=True) if name in names]


def _joined(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Return spans in order, merging those with a small gap between them."""
    start = end = -1
    for first, last in spans:
        if start >= 0 and first - end <= _GAP_BYTES:
            end = max(end, last)
            continue
        if start >= 0:
            yield start, end
        start, end = first, last
    if start >= 0:
        yield start, end


def _copied(path: Path, folder: Path) -> Path:
    """Copy a file to another directory: as a hard link if the file system allows it."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / path.name
    with contextlib.suppress(OSError):
        target.hardlink_to(path)
        return target
    target.write_bytes(path.read_bytes())
    return target
