"""The page's files, read once from the package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from types import MappingProxyType

_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """The content of a file, and the media type with which it is served."""

    content: bytes
    media_type: str


@cache
def assets() -> Mapping[str, Asset]:
    """Return the page's files by their paths, such as ``index.html`` and ``views/chat.js``.

    Files with other endings than those of the page's own media types are left out.
    """
    found = {
        path: Asset(content=file.read_bytes(), media_type=_MEDIA_TYPES[suffix])
        for path, file in _files(resources.files(__package__) / "static", "")
        if (suffix := PurePosixPath(path).suffix) in _MEDIA_TYPES
    }
    return MappingProxyType(found)


def _files(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        path = prefix + entry.name
        if entry.is_dir():
            yield from _files(entry, f"{path}/")
        else:
            yield path, entry
