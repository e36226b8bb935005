"""The ELF files of a wheel, a directory or a single file, at the paths where they are installed.

Paths are relative to ``site-packages``, as the dynamic linker will see them: what a wheel installs
outside of it (``*.data/data``, ``*.data/scripts``) begins with ``..``. Nothing is unpacked or
executed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from email.parser import BytesParser
from pathlib import Path
from types import MappingProxyType

from packaging.metadata import RawMetadata, parse_email
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from potluck.errors import WheelFileError
from potluck.portability.wheels.bounded_zip import BoundedZip
from potluck.portability.wheels.import_closure import ImportedFiles, imported_files, named_strings
from potluck.portability.wheels.misnamed_files import (
    HEAD_BYTES,
    FileKind,
    MisnamedFile,
    is_library_name,
    is_other_library_name,
    kind_of_head,
)
from potluck.portability.wheels.variants import FILE, NULL, Variant, parse_variant, split_label

_WHEEL_VERSION = re.compile(r"(\d{1,9})(?:\.\d{1,9})*")
_NEWEST_WHEEL_MAJOR = 1
"""Installers warn about a newer minor version, and refuse a newer major version (PEP 427)."""

ELF_MAGIC = b"\x7fELF"

_MAX_METADATA_BYTES = 8 << 20
_MAX_SOURCE_BYTES = 4 << 20
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
"""Files that are never loaded: thousands of headers need not be examined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """The identity that a wheel claims: ``warp-lang``, ``1.6.2``,
    ``py3-none-manylinux2014_x86_64``.

    ``tags`` are those of its file name, expanded. ``requires`` are its Requires-Dist lines.
    ``problem`` is why installers refuse it on every host; empty if they do not. ``variant`` is None
    for a wheel that is not one of several variants.
    """

    name: str
    version: str
    tags: tuple[str, ...]
    requires_python: str
    requires: tuple[str, ...]
    problem: str = ""
    variant: Variant | None = None


class Package(ABC):
    """Something that contains ELF files, open for reading. ``distribution`` is None if it is not a
    wheel; ``links`` are paths that are symbolic links to other paths of the package.
    """

    distribution: Distribution | None = None
    links: Mapping[str, str] = MappingProxyType({})

    @abstractmethod
    def elf_files(self) -> Iterator[tuple[str, bytes | mmap.mmap]]:
        """Yield the path and contents of each. The contents must be released before the
        next one.
        """

    @abstractmethod
    def misnamed_files(self) -> Iterator[MisnamedFile]:
        """Return the files that are named like shared libraries but are not ELF files."""

    def imported_files(
        self, natives: Collection[str], *, with_attempts: bool = False
    ) -> ImportedFiles:
        """Return the native files that importing it loads: unknown if it is not a wheel. Those that
        it attempts to load are returned only ``with_attempts``.
        """
        return ImportedFiles()


@contextmanager
def open_package(path: Path) -> Iterator[Package]:
    """Open a wheel, a directory or an ELF file. Raise ``WheelFileError`` for anything else."""
    if path.is_dir():
        yield _Folder(path)
        return
    if not path.is_file():
        raise WheelFileError(
            str(path), "no such file", hint="give a wheel, an ELF file or a directory"
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
                hint="build source packages first, with pip wheel",
            )
    yield InstalledFiles({path.name: path})


class _Wheel(Package):
    def __init__(self, path: Path, archive: BoundedZip) -> None:
        self._path = path
        self._archive = archive
        self._names = frozenset(archive.names)
        self._installed = [
            (installed, name)
            for name in archive.names
            if (installed := _installed_path(name)) is not None
        ]
        self.distribution = self._read_distribution()

    def elf_files(self) -> Iterator[tuple[str, bytes | mmap.mmap]]:
        for installed, name in self._installed:
            if not _cannot_be_elf(name) and self._archive.starts_with(name, ELF_MAGIC):
                with self._archive.data(name) as data:
                    yield installed, data

    def misnamed_files(self) -> Iterator[MisnamedFile]:
        for installed, name in self._installed:
            if _may_be_misnamed(name):
                yield from _misnamed(installed, self._archive.head(name, HEAD_BYTES))

    def imported_files(
        self, natives: Collection[str], *, with_attempts: bool = False
    ) -> ImportedFiles:
        members = dict(self._installed)

        def read(installed: str) -> bytes:
            try:
                return self._archive.read(members[installed], most_bytes=_MAX_SOURCE_BYTES)
            except WheelFileError as error:
                raise ValueError(error.message) from error

        def find(installed: str, wanted: Set[bytes]) -> Set[bytes]:
            with self._archive.data(members[installed]) as data:
                return named_strings(data, wanted)

        sources = [each for each in members if each.endswith(".py")]
        return imported_files(sources, natives, read, find, with_attempts=with_attempts)

    def _read_distribution(self) -> Distribution:
        filename, label = split_label(self._path.name)
        try:
            name, version, _, tags = parse_wheel_filename(filename)
        except InvalidWheelFilename as error:
            raise WheelFileError(
                str(self._path),
                str(error),
                hint="wheels are identified by their file names; do not rename them",
            ) from None
        folder = self._info_folder(name)
        metadata = self._archive.read(f"{folder}/METADATA", most_bytes=_MAX_METADATA_BYTES)
        raw, _ = parse_email(metadata)
        variant, variant_problem = self._variant(folder, label)
        return Distribution(
            name=name,
            version=str(version),
            tags=tuple(sorted(map(str, tags))),
            requires_python=raw.get("requires_python", ""),
            requires=tuple(raw.get("requires_dist", ())),
            problem=self._problem(folder) or _incompleteness(raw) or variant_problem,
            variant=variant,
        )

    def _variant(self, folder: str, label: str) -> tuple[Variant | None, str]:
        """Return the variant that the wheel is, and why installers refuse it, or empty."""
        if not label:
            return None, ""
        if label == NULL:
            return Variant(label=label, properties={}), ""
        file = f"{folder}/{FILE}"
        if file not in self._names:
            return None, f"it is the variant {label}, but has no {FILE}"
        try:
            data = self._archive.read(file, most_bytes=_MAX_METADATA_BYTES)
            return parse_variant(data, label), ""
        except ValueError as error:
            return None, str(error)

    def _problem(self, folder: str) -> str:
        """Return what the metadata directory lacks (PyPA, Binary distribution format)."""
        missing = [each for each in ("WHEEL", "RECORD") if f"{folder}/{each}" not in self._names]
        if missing:
            return f"there is no {' and no '.join(missing)} in its {folder}"
        data = self._archive.read(f"{folder}/WHEEL", most_bytes=_MAX_METADATA_BYTES)
        wheel_version = BytesParser().parsebytes(data, headersonly=True)["Wheel-Version"]
        if wheel_version is None:
            return "its WHEEL has no Wheel-Version"
        match = _WHEEL_VERSION.fullmatch(str(wheel_version).strip())
        if match is None:
            return f"{str(wheel_version).strip()!r} is not a valid Wheel-Version"
        if int(match[1]) > _NEWEST_WHEEL_MAJOR:
            return (
                f"it has Wheel-Version {match[0]}, but installers support {_NEWEST_WHEEL_MAJOR}.x"
            )
        return ""

    def _info_folder(self, name: str) -> str:
        """Return ``NAME-VERSION.dist-info``; installers require exactly one with METADATA."""
        folders = {
            top
            for top, _, rest in (each.partition("/") for each in self._archive.names)
            if top.endswith(".dist-info") and rest == "METADATA"
        }
        if len(folders) != 1:
            raise WheelFileError(
                str(self._path), f"it has {len(folders)} METADATA files instead of one"
            )
        (folder,) = folders
        if canonicalize_name(folder.rpartition("-")[0].rpartition("-")[0]) != name:
            raise WheelFileError(str(self._path), f"it contains {folder}, not {name}")
        return folder


class InstalledFiles(Package):
    """Files by the paths where they were installed. Unreadable files are skipped."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files

    def elf_files(self) -> Iterator[tuple[str, bytes | mmap.mmap]]:
        """See ``Package``."""
        for name, path in self._files.items():
            with contextlib.suppress(OSError):
                yield from _elf_file(name, path)

    def misnamed_files(self) -> Iterator[MisnamedFile]:
        """See ``Package``."""
        for name, path in self._files.items():
            if _may_be_misnamed(name):
                with contextlib.suppress(OSError), path.open("rb") as file:
                    yield from _misnamed(name, file.read(HEAD_BYTES))


class _Folder(InstalledFiles):
    """All files below ``path``. Raise ``OSError`` if one that may be ELF cannot be read."""

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
                except (OSError, RuntimeError):  # a RuntimeError: a loop of links
                    continue  # which cannot be opened
                if target == path and path.is_file():
                    self._files[installed] = path
                elif target.is_relative_to(root):
                    self.links[installed] = target.relative_to(root).as_posix()
                if len(self._files) + len(self.links) > _MAX_FOLDER_FILES:
                    raise WheelFileError(
                        str(self._path),
                        f"the directory has more than {_MAX_FOLDER_FILES} files",
                        hint="give the directory of one package",
                    )


def _elf_file(name: str, path: Path) -> Iterator[tuple[str, bytes | mmap.mmap]]:
    """Yield the name and mapped contents, if it is an ELF file."""
    with path.open("rb") as file:
        num_bytes = os.fstat(file.fileno()).st_size
        if file.read(len(ELF_MAGIC)) != ELF_MAGIC:
            return
        if num_bytes > _MAX_FILE_BYTES:
            raise WheelFileError(
                str(path), f"it has {num_bytes} bytes", hint="that is not the size of a library"
            )
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            yield name, mapped


def _may_be_misnamed(name: str) -> bool:
    return is_library_name(name) or is_other_library_name(name)


def _misnamed(name: str, head: bytes) -> Iterator[MisnamedFile]:
    if head.startswith(ELF_MAGIC):
        return
    kind = kind_of_head(head)
    if is_library_name(name) or kind in (FileKind.MACH_O, FileKind.PE):
        yield MisnamedFile(path=name, kind=kind)


def _incompleteness(raw: RawMetadata) -> str:
    """Return what METADATA lacks. Installers do not check the version in it."""
    missing = [
        field for field, value in (("Name", "name"), ("Version", "version")) if not raw.get(value)
    ]
    return f"its METADATA has no {' and no '.join(missing)}" if missing else ""


def _installed_path(member: str) -> str | None:
    """Return where a member of a wheel is installed; None if it is not installed unchanged
    (headers).
    """
    top, _, rest = member.partition("/")
    if not top.endswith(".data"):
        return member
    kind, _, path = rest.partition("/")
    prefix = _DATA_PREFIXES.get(kind)
    return None if prefix is None or not path else prefix + path


def may_be_elf(member: str) -> bool:
    """Return whether the contents of a wheel's member are examined: it may be an ELF file."""
    return _installed_path(member) is not None and not _cannot_be_elf(member)


def _cannot_be_elf(name: str) -> bool:
    return name.lower().endswith(_NEVER_ELF)
