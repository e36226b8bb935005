"""An index for the planner: the wheels of a folder, of which ranges can be read."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from packaging.utils import canonicalize_name
from support.portability.described_hosts import described_host
from support.portability.wheel_bytes import write_wheel

from potluck.errors import WheelDownloadError
from potluck.portability.hosts.host import Host, HostPython
from potluck.portability.planning.index import (
    IndexFile,
    parse_filename,
    parse_variants_filename,
    sha256_of,
)
from potluck.portability.planning.planner import Planner

PYTHON = HostPython(implementation="cpython", version=(3, 11))


class FolderIndex:
    """Counts what is asked of it. ``has_metadata``: files of metadata stand beside the wheels."""

    def __init__(
        self, folder: Path, *, has_ranges: bool = True, has_metadata: bool = False
    ) -> None:
        self.folder = folder
        self.has_ranges = has_ranges
        self.has_metadata = has_metadata
        self.queried_projects: list[str] = []
        self.fetched: list[str] = []
        self.num_bytes_sent = 0
        self.requires_python: dict[str, str] = {}
        self.yanked: set[str] = set()

    def add(
        self,
        name: str,
        version: str,
        *requires: str,
        tag: str = "py3-none-any",
        members: Mapping[str, bytes] | None = None,
        requires_python: str = "",
        is_yanked: bool = False,
        info: Mapping[str, bytes | None] | None = None,
    ) -> Path:
        lines = [f"Requires-Dist: {each}\n" for each in requires]
        if requires_python:
            lines.append(f"Requires-Python: {requires_python}\n")
        path = write_wheel(
            self.folder,
            {f"{name}.py": b"", **(members or {})},
            name=name,
            version=version,
            tag=tag,
            metadata="".join(lines),
            info=info,
        )
        self.requires_python[path.name] = requires_python
        if is_yanked:
            self.yanked.add(path.name)
        return path

    def add_variant(
        self,
        name: str,
        version: str,
        label: str,
        *requires: str,
        tag: str = "py3-none-any",
        data: bytes | None = None,
    ) -> Path:
        """Add a wheel with the label; ``data`` is its variant.json, or None of one without."""
        info = {"variant.json": data}
        return self.add(name, version, *requires, tag=f"{tag}-{label}", info=info)

    def add_variants_file(self, name: str, version: str, data: bytes) -> Path:
        """Add the file that describes all variants of a release."""
        path = self.folder / f"{name}-{version}-variants.json"
        path.write_bytes(data)
        return path

    def files(self, project: str) -> tuple[IndexFile, ...]:
        self.queried_projects.append(project)
        return tuple(
            IndexFile(
                filename=path.name,
                url=f"test:{path.name}",
                sha256=sha256_of(path),
                requires_python=self.requires_python.get(path.name, ""),
                is_yanked=path.name in self.yanked,
                metadata_sha256="" if self.has_metadata else None,
            )
            for path in sorted(self.folder.iterdir())
            if _project_of(path.name) == canonicalize_name(project)
        )

    def metadata(self, file: IndexFile) -> bytes | None:
        if not self.has_metadata:
            return None
        with zipfile.ZipFile(self.folder / file.filename) as archive:
            (name,) = (each for each in archive.namelist() if each.endswith("/METADATA"))
            return archive.read(name)

    def fetch(self, file: IndexFile, path: Path, *, most_bytes: int | None = None) -> None:
        if most_bytes is not None and (self.folder / file.filename).stat().st_size > most_bytes:
            raise WheelDownloadError(f"{file.filename} has more than {most_bytes} bytes")
        self.fetched.append(file.filename)
        shutil.copyfile(self.folder / file.filename, path)

    def num_bytes(self, file: IndexFile) -> int | None:
        return (self.folder / file.filename).stat().st_size if self.has_ranges else None

    def fetch_range(self, file: IndexFile, start: int, end: int, path: Path) -> bool:
        if not self.has_ranges:
            return False
        self.num_bytes_sent += end - start
        with (self.folder / file.filename).open("rb") as source, path.open("r+b") as target:
            source.seek(start)
            target.seek(start)
            target.write(source.read(end - start))
        return True


def _project_of(filename: str) -> str:
    parsed = parse_filename(filename)
    if parsed is not None:
        return parsed.project
    of_variants = parse_variants_filename(filename)
    return "" if of_variants is None else of_variants[0]


def a_host(
    name: str = "a host",
    *,
    glibc: int = 36,
    python: tuple[int, int] | None = (3, 11),
    machine: str = "x86_64",
    is_free_threaded: bool = False,
) -> Host:
    known = None
    if python is not None:
        known = HostPython(
            implementation="cpython", version=python, is_free_threaded=is_free_threaded
        )
    return replace(
        described_host(machine=machine), name=name, libc_version=(2, glibc), python=known
    )


def planner(index: FolderIndex, *hosts: Host, with_variants: bool = False) -> Planner:
    return Planner(index, hosts or (a_host(),), default_python=PYTHON, with_variants=with_variants)
