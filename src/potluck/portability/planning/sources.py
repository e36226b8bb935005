"""Determine what building a source package needs from its contents. Nothing is unpacked or
executed.
"""

from __future__ import annotations

import re
import tarfile
import tempfile
import tomllib
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from potluck.errors import WheelDownloadError, WheelFileError
from potluck.portability.planning.index import Index, IndexFile

_MAX_BYTES = 256 << 20
_MAX_FILES = 50_000
_MAX_TOML_BYTES = 1 << 20
_MAX_EXPANDED_BYTES = 2 << 30

_LANGUAGES = {
    ".c": "C",
    ".cc": "C++",
    ".cpp": "C++",
    ".cxx": "C++",
    ".cu": "CUDA",
    ".f": "Fortran",
    ".f90": "Fortran",
    ".go": "Go",
    ".rs": "Rust",
    ".pyx": "Cython",
}

_NOT_BUILT = re.compile(r"(^|/)(vendor[^/]*|third_party|examples?|docs?|[^/]*test[^/]*)(/|$)")
"""Directories that a build does not need, or that contain bundled code."""


def build_needs(file: IndexFile, index: Index) -> str:
    """Return what a build of a source package needs, as the end of a sentence ("needs …"): packages
    for the build, and the languages of its sources.

    Raise ``WheelDownloadError`` or ``WheelFileError`` if it cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="potluck-source-") as folder:
        path = Path(folder, file.filename)
        num_bytes = index.num_bytes(file)
        if num_bytes is not None and num_bytes > _MAX_BYTES:
            raise WheelDownloadError(f"it has {num_bytes} bytes")
        index.fetch(file, path)
        names, project = _read(path)
    languages = {
        language
        for name in names
        if (language := _LANGUAGES.get(PurePosixPath(name).suffix.lower()))
        and not _NOT_BUILT.search(name.partition("/")[2].lower())
    }
    system = project.get("build-system", {})
    tools = [each for each in system.get("requires", ["setuptools"]) if isinstance(each, str)]
    parts = [f"needs {', '.join(tools)}"] if tools else []
    if languages:
        parts.append(f"has sources in {', '.join(sorted(languages))}, some of which may be unused")
    return ", and ".join(parts) or "needs only Python"


def _read(path: Path) -> tuple[list[str], dict[str, Any]]:
    """Return the names in an archive, and its pyproject.toml."""
    try:
        names: list[str] = []
        data = b""
        for name, read in _members(path):
            names.append(name)
            if PurePosixPath(name).name == "pyproject.toml" and name.count("/") == 1:
                data = read()
        return names, tomllib.loads(data.decode("utf-8", "replace"))
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise WheelFileError(path.name, f"it is malformed ({error})") from None
    except tomllib.TOMLDecodeError:
        return names, {}


def _members(path: Path) -> Iterator[tuple[str, Any]]:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for info in _first(archive.infolist()):
                yield info.filename, lambda info=info: _head(archive.open(info))
        return
    with tarfile.open(path, "r:*") as tar:
        expanded = 0
        for member in _first(tar):
            expanded += member.size
            if expanded > _MAX_EXPANDED_BYTES:
                raise WheelFileError(path.name, "it expands to more than 2 GiB")
            if member.isreg():
                yield member.name, lambda member=member: _head(tar.extractfile(member))


def _head(file: Any) -> bytes:
    with file:
        data: bytes = file.read(_MAX_TOML_BYTES)
        return data


def _first(members: Iterable[Any]) -> Iterator[Any]:
    for number, member in enumerate(members):
        if number >= _MAX_FILES:
            return
        yield member
