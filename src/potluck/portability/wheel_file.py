"""The ELF files of a wheel, a folder or a single file, at the places where they get installed.

Paths are relative to ``site-packages``, as the dynamic linker will see them: what a wheel puts
beside it (``*.data/data``, ``*.data/scripts``) begins with ``..``. Nothing is unpacked or executed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from packaging.metadata import parse_email
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from potluck.errors import WheelFileError
from potluck.portability.bounded_zip import BoundedZip

ELF_MAGIC = b"\x7fELF"

_MAX_METADATA_BYTES = 8 << 20
_MAX_FOLDER_FILES = 200_000
_MAX_FILE_BYTES = 4 << 30

_DATA_PREFIXES = {
    "purelib": "",
    "platlib": "",
    "data": "../../../",  # site-packages is PREFIX/lib/pythonX.Y/site-packages
    "scripts": "../../../bin/",
}

_NEVER_ELF = (
    *(".a", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hh", ".hpp", ".hxx", ".inl", ".ptx"),
    *(".py", ".pyc", ".pyi", ".pxd", ".pxi", ".pyx", ".typed", ".ipynb", ".js", ".map", ".ts"),
    *(".cfg", ".cmake", ".css", ".csv", ".gif", ".html", ".ini", ".jpg", ".json", ".md", ".mo"),
    *(".pc", ".po", ".png", ".rst", ".svg", ".toml", ".txt", ".xml", ".yaml", ".yml"),
)
"""What installers would not load: thousands of headers need not be looked into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """What a wheel says that it is: ``warp-lang``, ``1.6.2``, ``py3-none-manylinux2014_x86_64``.

    ``tags`` are those of its file name, one by one. ``requires`` are its Requires-Dist lines.
    """

    name: str
    version: str
    tags: tuple[str, ...]
    requires_python: str
    requires: tuple[str, ...]


class Package(Protocol):
    """Something with ELF files in it, open for reading."""

    @property
    def distribution(self) -> Distribution | None:
        """None of what is no wheel."""

    @property
    def links(self) -> Mapping[str, str]:
        """Paths that are symbolic links to other paths of the package."""

    def elf_files(self) -> Iterator[tuple[str, bytes | mmap.mmap]]:
        """Path and contents of each. The contents must be let go of before the next one."""


@contextmanager
def open_package(path: Path) -> Iterator[Package]:
    """A wheel, a folder or an ELF file. Raises ``WheelFileError`` for anything else."""
    if path.is_dir():
        yield _Folder(path)
        return
    if not path.is_file():
        raise WheelFileError(
            str(path), "there is no such file", hint="give a wheel, an ELF file or a folder"
        )
    if path.suffix == ".whl":
        with BoundedZip(path) as archive:
            yield _Wheel(path, archive)
        return
    with path.open("rb") as file:
        if file.read(len(ELF_MAGIC)) != ELF_MAGIC:
            raise WheelFileError(
                str(path),
                "it is neither a wheel nor an ELF file",
                hint="source packages have to be built first: pip wheel",
            )
    yield InstalledFiles({path.name: path})


class _Wheel:
    def __init__(self, path: Path, archive: BoundedZip) -> None:
        self._path = path
        self._archive = archive
        self.distribution: Distribution | None = self._read_distribution()
        self.links: Mapping[str, str] = {}

    def elf_files(self) -> Iterator[tuple[str, bytes | mmap.mmap]]:
        for name in self._archive.names:
            installed = _installed_path(name)
            if installed is None or _cannot_be_elf(name):
                continue
            if self._archive.starts_with(name, ELF_MAGIC):
                with self._archive.data(name) as data:
                    yield installed, data

    def _read_distribution(self) -> Distribution:
        try:
            name, version, _, tags = parse_wheel_filename(self._path.name)
        except InvalidWheelFilename as error:
            raise WheelFileError(
                str(self._path), str(error), hint="wheels are known by their names: do not rename"
            ) from None
        folder = self._info_folder(name)
        metadata = self._archive.read(f"{folder}/METADATA", most_bytes=_MAX_METADATA_BYTES)
        raw, _ = parse_email(metadata)
        return Distribution(
            name=name,
            version=str(version),
            tags=tuple(sorted(map(str, tags))),
            requires_python=raw.get("requires_python", ""),
            requires=tuple(raw.get("requires_dist", ())),
        )

    def _info_folder(self, name: str) -> str:
        """``NAME-VERSION.dist-info``, of which an installer wants exactly one with METADATA."""
        folders = {
            top
            for top, _, rest in (each.partition("/") for each in self._archive.names)
            if top.endswith(".dist-info") and rest == "METADATA"
        }
        if len(folders) != 1:
            raise WheelFileError(str(self._path), f"it has {len(folders)} METADATA, and not one")
        (folder,) = folders
        if canonicalize_name(folder.rpartition("-")[0].rpartition("-")[0]) != name:
            raise WheelFileError(str(self._path), f"its contents are of {folder}, not of {name}")
        return folder


class _Folder:
    distribution: Distribution | None = None

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: dict[str, Path] = {}
        self.links: dict[str, str] = {}
        self._walk()

    def elf_files(self) -> Iterator[tuple[str, bytes | mmap.mmap]]:
        for name, path in self._files.items():
            if not _cannot_be_elf(name):
                yield from _elf_file(name, path)

    def _walk(self) -> None:
        root = self._path.resolve()
        for folder, folders, names in os.walk(root):
            folders.sort()
            for name in sorted(names):
                path = Path(folder, name)
                installed = path.relative_to(root).as_posix()
                try:
                    target = path.resolve()
                except (OSError, RuntimeError):  # a RuntimeError: links in a circle
                    continue  # which nothing can open, let alone load
                if target == path and path.is_file():
                    self._files[installed] = path
                elif target.is_relative_to(root):
                    self.links[installed] = target.relative_to(root).as_posix()
                if len(self._files) + len(self.links) > _MAX_FOLDER_FILES:
                    raise WheelFileError(
                        str(self._path),
                        f"the folder has more than {_MAX_FOLDER_FILES} files",
                        hint="name the folder of one package",
                    )


class InstalledFiles:
    """Files by the paths that they were installed at. Those that cannot be read are passed over."""

    distribution: Distribution | None = None

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files
        self.links: Mapping[str, str] = {}

    def elf_files(self) -> Iterator[tuple[str, bytes | mmap.mmap]]:
        """As ``Package`` has it."""
        for name, path in self._files.items():
            with contextlib.suppress(OSError):
                yield from _elf_file(name, path)


def _elf_file(name: str, path: Path) -> Iterator[tuple[str, bytes | mmap.mmap]]:
    """Name and mapped contents, if it is one."""
    with path.open("rb") as file:
        num_bytes = os.fstat(file.fileno()).st_size
        if file.read(len(ELF_MAGIC)) != ELF_MAGIC:
            return
        if num_bytes > _MAX_FILE_BYTES:
            raise WheelFileError(str(path), f"it has {num_bytes} bytes", hint="that is no library")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            yield name, mapped


def _installed_path(member: str) -> str | None:
    """Where a member of a wheel gets to; None of what is not installed as it is (headers)."""
    top, _, rest = member.partition("/")
    if not top.endswith(".data"):
        return member
    kind, _, path = rest.partition("/")
    prefix = _DATA_PREFIXES.get(kind)
    return None if prefix is None or not path else prefix + path


def _cannot_be_elf(name: str) -> bool:
    return name.lower().endswith(_NEVER_ELF)
