"""What was read of wheels before: ``$XDG_CACHE_HOME/potluck/wheel-needs``, bounded in size.

A cache and no more: what is corrupt, of another version or cannot be written is passed over. A
file is known by its path, size and time of change, and is read again when one of these differs.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from potluck.cache_folder import cache_folder
from potluck.portability.needs import WheelNeeds, read_needs
from potluck.version import __version__

_FORMAT = 1
"""Raised whenever other things are read than before, or read otherwise."""

_MAX_FILES = 256
"""A PyTorch takes 4 MB of it, most wheels some KB."""


def default_needs_folder(environ: Mapping[str, str]) -> Path | None:
    """``$XDG_CACHE_HOME/potluck/wheel-needs``, or below ``~/.cache``; None without a home."""
    folder = cache_folder(environ)
    return None if folder is None else folder / "wheel-needs"


def cached_needs(path: Path, folder: Path | None) -> WheelNeeds:
    """``read_needs(path)``, from ``folder`` where it has been read before. Folders always are read
    anew.
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


def _key(path: Path) -> str:
    status = path.stat()
    known_by = (
        _FORMAT,
        __version__,
        os.fspath(path.resolve()),
        status.st_size,
        status.st_mtime_ns,
    )
    return hashlib.blake2b(repr(known_by).encode(), digest_size=16).hexdigest()


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
