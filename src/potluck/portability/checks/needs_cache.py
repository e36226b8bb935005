"""A cache of what was read from wheels: ``$XDG_CACHE_HOME/potluck/wheel-needs``, bounded in size.

Entries that are corrupt or of another version are ignored, and so are failures to write. A file is
identified by its path, size and modification time, and is read again if one of them differs.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from potluck.cache_folder import cache_folder
from potluck.portability.checks.needs import WheelNeeds, read_needs
from potluck.version import __version__

_FORMAT = 8
"""Incremented whenever what is read, or how it is read, changes."""

_MAX_FILES = 256
"""A PyTorch wheel takes 4 MB of it, most wheels a few KB."""


def default_needs_folder(environ: Mapping[str, str]) -> Path | None:
    """``$XDG_CACHE_HOME/potluck/wheel-needs``, or the same under ``~/.cache``; None without a home
    directory.
    """
    folder = cache_folder(environ)
    return None if folder is None else folder / "wheel-needs"


def cached_needs(path: Path, folder: Path | None) -> WheelNeeds:
    """Return ``read_needs(path)``, from the cache in ``folder`` if possible. Directories are always
    read again.
    """
    if folder is None or not path.is_file():
        return read_needs(path)
    entry = folder / _key(path)
    needs = _load(entry)
    if needs is None:
        needs = read_needs(path)
        with contextlib.suppress(OSError):
            _store(entry, needs)
    return needs


def needs_by_digest(
    filename: str, sha256: str, folder: Path | None, read: Callable[[], WheelNeeds]
) -> WheelNeeds:
    """Return what ``read`` returns for the wheel with this SHA-256, from the cache in ``folder`` if
    possible. Without a digest it is read each time.
    """
    if folder is None or not sha256:
        return read()
    entry = folder / _digest(filename, sha256)
    needs = _load(entry)
    if needs is None:
        needs = read()
        with contextlib.suppress(OSError):
            _store(entry, needs)
    return needs


def _key(path: Path) -> str:
    status = path.stat()
    return _digest(os.fspath(path.resolve()), status.st_size, status.st_mtime_ns)


def _digest(*known_by: str | int) -> str:
    data = repr((_FORMAT, __version__, *known_by)).encode()
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _load(entry: Path) -> WheelNeeds | None:
    try:
        needs = msgspec.msgpack.decode(zlib.decompress(entry.read_bytes()), type=WheelNeeds)
        os.utime(entry)
    except (OSError, zlib.error, msgspec.DecodeError):
        return None
    return needs


def _store(entry: Path, needs: WheelNeeds) -> None:
    entry.parent.mkdir(parents=True, exist_ok=True)
    data = zlib.compress(msgspec.msgpack.encode(needs), 1)
    with tempfile.NamedTemporaryFile(dir=entry.parent, prefix=".draft-", delete=False) as draft:
        try:
            draft.write(data)
            draft.flush()
            Path(draft.name).replace(entry)
        except OSError:
            Path(draft.name).unlink(missing_ok=True)
            raise
    _forget_oldest(entry.parent)


def _forget_oldest(folder: Path) -> None:
    entries = sorted(folder.iterdir(), key=lambda each: each.stat().st_mtime, reverse=True)
    for entry in entries[_MAX_FILES:]:
        entry.unlink(missing_ok=True)
