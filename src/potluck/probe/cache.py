"""What earlier probes found out: ``$XDG_CACHE_HOME/potluck/probe.json``.

A cache and no more: a file that is corrupt, too large or of another version counts as empty, and
where none can be kept the probe goes without. Several processes may use it at once: the file is
replaced as a whole, under a lock, so that readers need none.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import cast

from potluck.cache_folder import cache_folder
from potluck.probe.regular_file import read_regular_file

_log = logging.getLogger(__name__)

SCHEMA = "potluck.probe-cache/1"

MAX_ENTRIES = 200
MAX_BYTES = 256 * 1024
"""A node has tens of entries of some hundred bytes; old ones are those of kernels and drivers that
are gone. The oldest go first."""

_LOCK_WAIT_SECONDS = 2.0
"""A write takes milliseconds; who waits longer has met a dead disk, and does without."""

_LOCK_POLL_SECONDS = 0.01

_Entries = dict[str, dict[str, object]]


def default_cache_path(environ: Mapping[str, str]) -> Path | None:
    """``$XDG_CACHE_HOME/potluck/probe.json``, or below ``~/.cache``; None without a home."""
    folder = cache_folder(environ)
    return None if folder is None else folder / "probe.json"


class ProbeCache:
    """Small JSON objects by key. No method raises because of the file, its folder or its disk.

    With no ``path`` nothing is kept. May be used from several threads and processes.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def get(self, key: str) -> dict[str, object] | None:
        """What was put under ``key``, if it is still there."""
        entry = self._read().get(key)
        return None if entry is None else cast("dict[str, object]", entry["value"])

    def put(self, key: str, value: Mapping[str, object]) -> None:
        """Keep ``value``, which must be JSON, if that can be done."""
        entry = {"at": round(time.time()), "value": value}
        self._change(lambda entries: {**entries, key: entry})

    def remove(self, key: str) -> None:
        """Keep nothing under ``key``."""
        if key in self._read():
            self._change(lambda entries: {k: e for k, e in entries.items() if k != key})

    @contextlib.contextmanager
    def turn(self, wait_seconds: float) -> Iterator[None]:
        """One process of this user after the other, for what must not disturb another's.

        After ``wait_seconds``, and where nothing can be locked, it goes on regardless.
        """
        with self._lock("turn", wait_seconds):
            yield

    def _change(self, change: Callable[[_Entries], Mapping[str, dict[str, object]]]) -> None:
        with self._lock("lock", _LOCK_WAIT_SECONDS) as is_held:
            if self._path is None or not is_held:
                return
            document = _encode(change(self._read()))
            draft = self._path.with_name(self._path.name + ".draft")  # one at a time: it is locked
            try:
                draft.write_bytes(document)
                draft.replace(self._path)
            except OSError as error:
                _log.info("the probe's results cannot be kept in %s: %s", self._path, error)
                with contextlib.suppress(OSError):
                    draft.unlink(missing_ok=True)

    def _read(self) -> _Entries:
        if self._path is None:
            return {}
        try:
            return _decode(read_regular_file(self._path, MAX_BYTES + 1))
        except OSError:
            return {}

    @contextlib.contextmanager
    def _lock(self, suffix: str, wait_seconds: float) -> Iterator[bool]:
        """Whether a file beside the cache could be locked within ``wait_seconds``."""
        if self._path is None:
            yield False
            return
        path = self._path.with_name(f"{self._path.name}.{suffix}")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        except OSError as error:
            _log.info("the probe's results cannot be kept in %s: %s", self._path, error)
            yield False
            return
        with os.fdopen(descriptor):  # whose end unlocks it
            yield _flock(descriptor, time.monotonic() + wait_seconds)


def _flock(descriptor: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOCK_POLL_SECONDS)
        except OSError as error:  # a network disk without locks
            _log.info("the probe's cache cannot be locked: %s", error)
            return False
        else:
            return True


def _encode(entries: Mapping[str, dict[str, object]]) -> bytes:
    """The newest entries, as many as the bounds allow, oldest first."""
    kept: list[tuple[str, str]] = []
    num_bytes = len(SCHEMA) + 100  # what is around the entries
    for key, entry in sorted(entries.items(), key=lambda item: _time(item[1]), reverse=True):
        text = json.dumps(entry)
        num_bytes += len(json.dumps(key)) + len(text) + 3
        if num_bytes > MAX_BYTES or len(kept) == MAX_ENTRIES:
            break
        kept.append((json.dumps(key), text))
    lines = ",\n".join(f"{key}: {text}" for key, text in reversed(kept))
    return f'{{"schema": "{SCHEMA}", "entries": {{\n{lines}\n}}}}\n'.encode()


def _decode(data: bytes) -> _Entries:
    """The sound entries of a sound file of this version; else none."""
    if len(data) > MAX_BYTES:
        return {}
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    match document:
        case {"schema": str(schema), "entries": dict(entries)} if schema == SCHEMA:
            return {key: entry for key, entry in entries.items() if _is_sound(entry)}
    return {}


def _is_sound(entry: object) -> bool:
    match entry:
        case {"at": int(), "value": dict()}:
            return True
    return False


def _time(entry: dict[str, object]) -> int:
    at = entry["at"]
    return at if isinstance(at, int) else 0
