"""A cache of earlier probes' results: ``$XDG_CACHE_HOME/potluck/probe.json``.

A file that is corrupt, too large or of another version is treated as empty, and the probe works
without the cache if it cannot be written. Several processes may use it at the same time: the file
is replaced atomically under a lock, so readers need no lock.
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

from potluck.host.cache_folder import cache_path
from potluck.host.system import read_regular_file

_log = logging.getLogger(__name__)

SCHEMA = "potluck.probe-cache/1"

MAX_ENTRIES = 200
MAX_BYTES = 256 * 1024
"""A node has dozens of entries of a few hundred bytes, including stale entries of former kernels
and drivers. The oldest are evicted first.
"""

_LOCK_WAIT_SECONDS = 2.0
"""A write takes milliseconds; after a longer wait, the disk is assumed to be stalled."""

_LOCK_POLL_SECONDS = 0.01

_Entries = dict[str, tuple[int, dict[str, object]]]
"""The time at which each value was stored, and the value, by key."""


def default_cache_path(environ: Mapping[str, str]) -> Path | None:
    """Return ``$XDG_CACHE_HOME/potluck/probe.json``, or the same under ``~/.cache``; None without a
    home directory.
    """
    return cache_path(environ, "probe.json")


class ProbeCache:
    """Stores small JSON objects by key. No method raises because of the file or its disk.

    Nothing is stored without a ``path``. Safe for several threads and processes.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def get(self, key: str) -> dict[str, object] | None:
        """Return the value stored under ``key``, or None."""
        entry = self._read().get(key)
        return None if entry is None else entry[1]

    def put(self, key: str, value: Mapping[str, object]) -> None:
        """Store ``value``, which must be valid JSON, if possible."""
        entry = (round(time.time()), dict(value))
        self._change(lambda entries: {**entries, key: entry})

    def remove(self, key: str) -> None:
        """Remove the value stored under ``key``."""
        if key in self._read():
            self._change(lambda entries: {k: e for k, e in entries.items() if k != key})

    def turn(self, wait_seconds: float) -> contextlib.AbstractContextManager[object]:
        """Serialize processes of this user, so that they do not disturb each other's measurements.

        Continue anyway after ``wait_seconds``, or if locking is impossible.
        """
        return self._lock("turn", wait_seconds)

    def _change(self, change: Callable[[_Entries], _Entries]) -> None:
        with self._lock("lock", _LOCK_WAIT_SECONDS) as is_held:
            if self._path is None or not is_held:
                return
            document = _encode(change(self._read()))
            draft = self._path.with_name(self._path.name + ".draft")  # one at a time: it is locked
            try:
                draft.write_bytes(document)
                draft.replace(self._path)
            except OSError as error:
                _log.info("cannot write the probe's cache %s: %s", self._path, error)
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
        """Lock a file next to the cache; yield whether that succeeded within ``wait_seconds``."""
        if self._path is None:
            yield False
            return
        path = self._path.with_name(f"{self._path.name}.{suffix}")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        except OSError as error:
            _log.info("cannot write the probe's cache %s: %s", self._path, error)
            yield False
            return
        with os.fdopen(descriptor):  # closing it releases the lock
            yield _flock(descriptor, time.monotonic() + wait_seconds)


def _flock(descriptor: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOCK_POLL_SECONDS)
        except OSError as error:  # a network file system without locks
            _log.info("cannot lock the probe's cache: %s", error)
            return False
        else:
            return True


def _encode(entries: _Entries) -> bytes:
    """Encode the newest entries that the limits allow, oldest first."""
    kept: list[tuple[str, str]] = []
    num_bytes = len(SCHEMA) + 100  # the text around the entries
    newest_first = sorted(entries.items(), key=lambda item: item[1][0], reverse=True)
    for key, (at, value) in newest_first:
        text = json.dumps({"at": at, "value": value})
        num_bytes += len(json.dumps(key)) + len(text) + 3
        if num_bytes > MAX_BYTES or len(kept) == MAX_ENTRIES:
            break
        kept.append((json.dumps(key), text))
    lines = ",\n".join(f"{key}: {text}" for key, text in reversed(kept))
    return f'{{"schema": "{SCHEMA}", "entries": {{\n{lines}\n}}}}\n'.encode()


def _decode(data: bytes) -> _Entries:
    """Return the valid entries of a valid file of this version, or none."""
    if len(data) > MAX_BYTES:
        return {}
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    match document:
        case {"schema": str(schema), "entries": dict(entries)} if schema == SCHEMA:
            return dict(_sound(entries))
    return {}


def _sound(entries: dict[str, object]) -> Iterator[tuple[str, tuple[int, dict[str, object]]]]:
    for key, entry in entries.items():
        match entry:
            case {"at": int(at), "value": dict(value)}:
                yield key, (at, value)
