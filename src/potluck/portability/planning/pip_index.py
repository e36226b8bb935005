"""The index that pip is configured for, queried through a child process (``pip_program``).

One process answers one request at a time; each project is requested once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Self

import msgspec
from packaging.utils import canonicalize_name

from potluck.errors import WheelDownloadError
from potluck.host.child_environment import child_environment
from potluck.portability.planning.index import (
    IndexFile,
    parse_filename,
    parse_variants_filename,
    sha256_of,
)

_PROGRAM = "potluck.portability.planning.pip_program"
_MAX_METADATA_BYTES = 8 << 20


class PipIndex:
    """Not thread-safe."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[IndexFile, ...]] = {}
        self._metadata: dict[str, bytes | None] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="potluck-index-")
        self._log = tempfile.TemporaryFile(prefix="potluck-index-")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            encoding="utf-8",
            env=child_environment(),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child process. Can be called repeatedly."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # a request that was never read
                    pipe.close()
        self._process.terminate()
        self._process.wait()
        self._log.close()
        self._folder.cleanup()

    @property
    def queried_projects(self) -> tuple[str, ...]:
        """The names that were looked up, in order."""
        return tuple(self._files)

    def files(self, project: str) -> tuple[IndexFile, ...]:
        """See ``Index``."""
        name = canonicalize_name(project)
        if name not in self._files:
            answer = self._ask({"ask": "files", "project": name})
            listed = msgspec.convert(answer["files"], list[IndexFile])
            self._files[name] = _of_project(name, listed)
        return self._files[name]

    def metadata(self, file: IndexFile) -> bytes | None:
        """See ``Index``. Raise ``WheelDownloadError`` if the digest differs."""
        if file.metadata_sha256 is None:
            return None
        if file.url not in self._metadata:
            path = Path(self._folder.name, "metadata")
            path.unlink(missing_ok=True)
            wanted = {"url": f"{file.url}.metadata", "path": str(path)}
            self._ask({"ask": "fetch", "fetch": {**wanted, "most_bytes": _MAX_METADATA_BYTES}})
            data = path.read_bytes()
            if file.metadata_sha256 not in ("", hashlib.sha256(data).hexdigest()):
                raise _error(
                    f"the SHA-256 of the metadata of {file.filename} differs from the published one"
                )
            self._metadata[file.url] = data
        return self._metadata[file.url]

    def fetch(self, file: IndexFile, path: Path, *, most_bytes: int | None = None) -> None:
        """See ``Index``. Raise ``WheelDownloadError`` if the digest differs."""
        wanted = {"url": file.url, "path": str(path), "most_bytes": most_bytes}
        self._ask({"ask": "fetch", "fetch": wanted})
        if file.sha256 and file.sha256 != sha256_of(path):
            path.unlink()
            raise _error(
                f"the SHA-256 of {file.filename} differs from the one that the index publishes"
            )

    def num_bytes(self, file: IndexFile) -> int | None:
        """See ``Index``."""
        if file.url.startswith("file:"):
            return None
        with tempfile.NamedTemporaryFile(dir=self._folder.name) as nowhere:
            span = {"url": file.url, "start": 0, "end": 1, "path": nowhere.name}
            total: int | None = self._ask({"ask": "range", "range": span})["total"]
        return total

    def fetch_range(self, file: IndexFile, start: int, end: int, path: Path) -> bool:
        """See ``Index``."""
        span = {"url": file.url, "start": start, "end": end, "path": str(path)}
        return self._ask({"ask": "range", "range": span})["total"] is not None

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            _pipe(self._process.stdin).write(json.dumps(request) + "\n")
            _pipe(self._process.stdin).flush()
            line = _pipe(self._process.stdout).readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise _error(f"pip exited: {self._stderr_tail()}")
        answer: dict[str, Any] = json.loads(line)
        if "problem" in answer:
            raise _error(answer["problem"])
        return answer

    def _stderr_tail(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").split("\n")
        return next(
            (line.strip() for line in reversed(lines) if line.strip()), "without an error message"
        )


def _of_project(name: str, listed: Sequence[IndexFile]) -> tuple[IndexFile, ...]:
    """Return the files of a project by name; the first location of a file takes precedence."""
    found: dict[str, IndexFile] = {}
    for each in listed:
        parsed = parse_filename(each.filename)
        of_variants = parse_variants_filename(each.filename)
        if (parsed and parsed.project == name) or (of_variants and of_variants[0] == name):
            found.setdefault(each.filename, each)
    return tuple(found.values())


def _pipe(pipe: IO[str] | None) -> IO[str]:
    if pipe is None:
        raise _error("pip is not running")
    return pipe


def _error(problem: str) -> WheelDownloadError:
    return WheelDownloadError(
        f"the package index cannot be queried: {problem}",
        hint="check pip config list and the network; Potluck uses the same index as pip install",
    )
