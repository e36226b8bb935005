"""Local wheel files in addition to an index: they replace all other files of their projects."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from potluck.errors import UsageError
from potluck.portability.planning.index import Index, IndexFile, parse_filename, sha256_of


class WithLocalWheels:
    """An index extended by local files. Raise ``UsageError`` if one is not a wheel."""

    def __init__(self, index: Index, wheels: Iterable[Path]) -> None:
        self._index = index
        self._files: dict[str, list[IndexFile]] = {}
        self._paths: dict[str, Path] = {}
        for path in wheels:
            parsed = parse_filename(path.name)
            if parsed is None or not parsed.tags or not path.is_file():
                raise UsageError(f"{path}: not a wheel", hint="build one with pip wheel")
            url = path.resolve().as_uri()
            file = IndexFile(filename=path.name, url=url, sha256=sha256_of(path), is_named=True)
            self._files.setdefault(parsed.project, []).append(file)
            self._paths[url] = path

    @property
    def projects(self) -> tuple[str, ...]:
        """The names of the projects that have files here."""
        return tuple(self._files)

    def files(self, project: str) -> tuple[IndexFile, ...]:
        """See ``Index``."""
        local = self._files.get(project)
        return tuple(local) if local is not None else self._index.files(project)

    def metadata(self, file: IndexFile) -> bytes | None:
        """See ``Index``."""
        return None if file.url in self._paths else self._index.metadata(file)

    def fetch(self, file: IndexFile, path: Path, *, most_bytes: int | None = None) -> None:
        """See ``Index``."""
        local = self._paths.get(file.url)
        if local is None:
            self._index.fetch(file, path, most_bytes=most_bytes)
        else:
            shutil.copyfile(local, path)

    def num_bytes(self, file: IndexFile) -> int | None:
        """See ``Index``."""
        return None if file.url in self._paths else self._index.num_bytes(file)

    def fetch_range(self, file: IndexFile, start: int, end: int, path: Path) -> bool:
        """See ``Index``."""
        is_local = file.url in self._paths
        return not is_local and self._index.fetch_range(file, start, end, path)
