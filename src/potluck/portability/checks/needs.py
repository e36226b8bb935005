"""Everything that a check needs to know about a wheel, independent of the host.

It is read once, cached, and checked against many hosts. These are plain values that msgspec can
encode. The time to read them grows with the size of the ELF files.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from potluck.errors import ElfError, NotLoadableError, WheelFileError
from potluck.host.cache_folder import cache_path
from potluck.host.private_files import replace_file
from potluck.portability.cuda.fat_binary import CudaNeeds, read_cuda_needs
from potluck.portability.elf.file import ElfFile
from potluck.portability.elf.image import open_image
from potluck.portability.elf.reader import read_elf
from potluck.portability.features.findings import FileFacts, file_facts
from potluck.portability.features.rules import FeatureRules, rules_for
from potluck.portability.instructions.cpu_needs import CpuNeeds, cpu_needs
from potluck.portability.instructions.jemalloc_pages import jemalloc_page_bytes
from potluck.portability.linking.opened_libraries import opened_libraries
from potluck.portability.wheels.file import Distribution, Package, open_package
from potluck.portability.wheels.misnamed_files import FileKind, MisnamedFile, is_library_name
from potluck.version import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectNeeds:
    """One ELF file. ``opened`` are the libraries that it opens by name. ``facts`` are the inputs of
    feature rules; None if the distribution has no rules. ``jemalloc_page_bytes`` is the largest
    page size that the jemalloc in it supports: 0 if unknown, None without jemalloc.
    """

    path: str
    elf: ElfFile
    cpu: CpuNeeds
    opened: tuple[str, ...]
    cuda: CudaNeeds | None
    facts: FileFacts | None
    jemalloc_page_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenObject:
    """An ELF file that cannot be read, and the reason."""

    path: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelNeeds:
    """A wheel, or a directory or file; these have no ``distribution``. ``file`` is its name.

    ``imported`` are the paths of the native files that are loaded by importing its packages, one of
    each tuple; None if unknown (see ``import_closure``). ``attempted`` are also those whose failure
    to load is tolerated; it is only determined if a file may end the process.
    """

    file: str
    distribution: Distribution | None
    objects: tuple[ObjectNeeds, ...]
    broken: tuple[BrokenObject, ...]
    links: Mapping[str, str]
    misnamed: tuple[MisnamedFile, ...] = ()
    imported: tuple[tuple[str, ...], ...] | None = None
    attempted: frozenset[str] = frozenset()


def read_needs(path: Path) -> WheelNeeds:
    """Return what a wheel, a directory or an ELF file needs.

    Raise ``WheelFileError`` if it cannot be read, is none of these, or is a directory without ELF
    files.
    """
    with open_package(path) as package:
        needs = package_needs(package, path.name)
    if needs.distribution is None and not needs.objects:
        _refuse(path, needs.broken)
    return needs


def package_needs(package: Package, file: str) -> WheelNeeds:
    """Return what the files of ``package`` need; ``file`` is its name."""
    distribution = package.distribution
    rules = rules_for(distribution.name) if distribution else None
    objects: list[ObjectNeeds] = []
    broken: list[BrokenObject] = []
    misnamed = list(package.misnamed_files())
    for name, data in package.elf_files():
        try:
            objects.append(_read_object(name, data, rules))
        except NotLoadableError:
            if is_library_name(name):
                misnamed.append(MisnamedFile(path=name, kind=FileKind.OBJECT))
        except ElfError as error:
            broken.append(BrokenObject(path=name, problem=error.message))
    natives = [each.path for group in (objects, broken, misnamed) for each in group]
    may_end = any(each.jemalloc_page_bytes is not None or each.cpu.code_flags for each in objects)
    imported = package.imported_files(natives, with_attempts=may_end)
    return WheelNeeds(
        file=file,
        distribution=distribution,
        objects=tuple(objects),
        broken=tuple(broken),
        links=dict(package.links),
        misnamed=tuple(misnamed),
        imported=imported.required,
        attempted=frozenset(path for group in imported.attempted for path in group),
    )


def _read_object(name: str, data: bytes | mmap.mmap, rules: FeatureRules | None) -> ObjectNeeds:
    image = open_image(data)
    elf = read_elf(image)
    cuda = read_cuda_needs(elf, image)
    return ObjectNeeds(
        path=name,
        elf=elf,
        cpu=cpu_needs(elf, image, path=name),
        opened=opened_libraries(elf, image),
        cuda=cuda,
        facts=file_facts(rules, elf, image, cuda) if rules else None,
        jemalloc_page_bytes=jemalloc_page_bytes(image),
    )


def _refuse(path: Path, broken: Sequence[BrokenObject]) -> None:
    if broken:
        raise WheelFileError(str(path), broken[0].problem)
    raise WheelFileError(
        str(path),
        "it contains no file that a dynamic linker can load",
        hint="give a wheel, a shared library, a program, or a directory that contains some",
    )


_FORMAT = 13
"""Incremented whenever what is read, or how it is read, changes."""

_MAX_FILES = 256
"""A PyTorch wheel takes 4 MB of it, most wheels a few KB."""


def default_needs_folder(environ: Mapping[str, str]) -> Path | None:
    """Return ``$XDG_CACHE_HOME/potluck/wheel-needs``, or the same under ``~/.cache``; None without
    a home directory.

    Entries that are corrupt or of another version are ignored, and so are failures to write. A file
    is identified by its path, size and modification time, and is read again if one of them differs.
    """
    return cache_path(environ, "wheel-needs")


def cached_needs(path: Path, folder: Path | None) -> WheelNeeds:
    """Return ``read_needs(path)``, from the cache in ``folder`` if possible. Directories are always
    read again.
    """
    if folder is None or not path.is_file():
        return read_needs(path)
    status = path.stat()
    known_by = os.fspath(path.resolve()), status.st_size, status.st_mtime_ns
    return _cached(folder, known_by, lambda: read_needs(path))


def needs_by_digest(
    filename: str, sha256: str, folder: Path | None, read: Callable[[], WheelNeeds]
) -> WheelNeeds:
    """Return what ``read`` returns for the wheel with this SHA-256, from the cache in ``folder`` if
    possible. Without a digest it is read each time.
    """
    if folder is None or not sha256:
        return read()
    return _cached(folder, (filename, sha256), read)


def _cached(
    folder: Path, known_by: tuple[str | int, ...], read: Callable[[], WheelNeeds]
) -> WheelNeeds:
    data = repr((_FORMAT, __version__, *known_by)).encode()
    entry = folder / hashlib.blake2b(data, digest_size=16).hexdigest()
    needs = _load(entry)
    if needs is None:
        needs = read()
        # A UnicodeEncodeError: the file's name is not UTF-8, which only matters for the cache.
        with contextlib.suppress(OSError, UnicodeEncodeError):
            _store(entry, needs)
    return needs


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
    replace_file(entry, data, is_durable=False)
    _forget_oldest(entry.parent)


def _forget_oldest(folder: Path) -> None:
    entries = sorted(folder.iterdir(), key=lambda each: each.stat().st_mtime, reverse=True)
    for entry in entries[_MAX_FILES:]:
        entry.unlink(missing_ok=True)
