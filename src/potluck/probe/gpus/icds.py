"""Find installed OpenCL drivers (ICDs), and how to load only one of them. This module loads none.

A file ``/etc/OpenCL/vendors/NAME.icd`` has the name or path of a library on its first line
(cl_khr_icd). Programs load ``libOpenCL.so.1``, the loader, which loads all of them. There are two
loaders, which use different variables: ocl-icd (see libOpenCL(7)) takes a directory, a file or a
library from ``OCL_ICD_VENDORS``; Khronos's loader (``loader/linux/icd_linux.c``,
``loader/icd_envvars.c``) takes a directory from ``OCL_ICD_VENDORS``, and libraries, separated by
colons, from ``OCL_ICD_FILENAMES``. To load one driver alone, both variables are therefore set;
Khronos's loader finds nothing if ``OCL_ICD_VENDORS`` is a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from potluck.host.system import System

_VENDORS = "etc/OpenCL/vendors"
_SUFFIX = ".icd"

_MAX_ICDS = 16
"""More than there are vendors; a process is started for each."""
_MAX_NAME_BYTES = 4096
"""PATH_MAX."""

_GENERAL = ("rusticl", "mesa", "clvk", "pocl")

_LIBRARY_FOLDERS = ("usr/lib", "usr/lib64", "usr/local/lib", "lib", "lib64")
"""Folders, with their architecture-specific subfolders, searched for names without a path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Icd:
    """A driver: its file, and the name or path of the library in it.

    ``file`` is the library itself if the environment specifies a library.
    """

    file: str
    library: str

    @property
    def name(self) -> str:
        """``pocl`` for ``/etc/OpenCL/vendors/pocl.icd``, ``libfoo`` for ``/opt/libfoo.so.1``."""
        return PurePosixPath(self.file).name.partition(".")[0] or "icd"

    @property
    def is_general(self) -> bool:
        """Whether it supports devices of several vendors (Mesa's, clvk or PoCL). A vendor's own
        driver is preferred.
        """
        names = (PurePosixPath(path).name.lower() for path in (self.file, self.library))
        return any(word in name for name in names for word in _GENERAL)

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment with which either loader loads only this driver."""
        library = {"OCL_ICD_FILENAMES": self.library} if self.library else {}
        return {"OCL_ICD_VENDORS": self.file, **library}


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledIcds:
    """The installed drivers, and one line for each file that does not name a library."""

    icds: tuple[Icd, ...]
    problems: tuple[str, ...] = ()


def installed_icds(system: System, environ: Mapping[str, str]) -> InstalledIcds:
    """Return the drivers that a program with the environment ``environ`` would load.

    Vendors' own drivers, sorted by file name, come before general ones.
    """
    icds: list[Icd] = []
    problems: list[str] = []
    for file in _files(system, environ):
        if not file.name.endswith(_SUFFIX):
            icds.append(Icd(file=str(file), library=str(file)))
        elif library := _library(system, file):
            icds.append(Icd(file=str(file), library=library))
        else:
            problems.append(f"{file} does not name a library")
    named = (name for name in environ.get("OCL_ICD_FILENAMES", "").split(":") if name)
    known = {icd.library for icd in icds}
    icds += [Icd(file=name, library=name) for name in dict.fromkeys(named) if name not in known]
    if len(icds) > _MAX_ICDS:
        problems.append(f"{len(icds)} drivers are registered; only {_MAX_ICDS} were queried")
    icds = sorted(icds[:_MAX_ICDS], key=lambda icd: icd.is_general)
    return InstalledIcds(icds=tuple(icds), problems=tuple(problems))


def icd_environment(address: str) -> Mapping[str, str]:
    """Return the environment in which a process loads only the driver of an interface's address.

    ``address`` is that of ``types.unit.Interface`` for the API ``opencl``.
    """
    file = Path(icd_file(address))
    library = _library(System(), file) if file.name.endswith(_SUFFIX) else str(file)
    return Icd(file=str(file), library=library).environment


def icd_file(address: str) -> str:
    """Return the file in an interface's address: the part before the last ``#``."""
    return address.rpartition("#")[0]


def library_identity(system: System, icd: Icd) -> tuple[str, ...]:
    """Return the library's path, size and modification time, which an update changes; empty if it
    is not found.

    The dynamic linker may find another library, which only affects how often the driver is queried.
    """
    for path in _library_paths(system, icd.library):
        try:
            status = path.stat()
        except (OSError, ValueError):  # ValueError: a NUL in a name
            continue
        return (icd.file, str(path), str(status.st_size), str(status.st_mtime_ns))
    return (icd.file, icd.library)


def _files(system: System, environ: Mapping[str, str]) -> list[Path]:
    """Return the ICD files, or the library that ``OCL_ICD_VENDORS`` specifies."""
    usual = Path(environ.get("OPENCL_VENDOR_PATH", "") or system.files / _VENDORS)
    wanted = environ.get("OCL_ICD_VENDORS", "")
    if not wanted:
        return _in_folder(system, usual)
    if Path(wanted).is_dir():
        return _in_folder(system, Path(wanted))
    if "/" not in wanted and (usual / wanted).is_file():
        return [usual / wanted]
    return [Path(wanted)]


def _in_folder(system: System, folder: Path) -> list[Path]:
    return [entry for entry in system.entries(folder) if entry.name.endswith(_SUFFIX)]


def _library(system: System, file: Path) -> str:
    """Return the first line of an ICD file; empty if it is not a valid library name."""
    data = (system.bytes(file) or b"")[: _MAX_NAME_BYTES + 1]
    try:
        line = data.decode().splitlines()[0].strip()
    except (UnicodeDecodeError, IndexError):
        return ""
    return line if line.isprintable() and len(line) <= _MAX_NAME_BYTES else ""


def _library_paths(system: System, library: str) -> Iterator[Path]:
    if "/" in library:
        yield system.below_files(library)
        return
    for folder in _LIBRARY_FOLDERS:
        yield system.files / folder / library
        for entry in system.entries(system.files / folder):
            if "-linux-" in entry.name:
                yield entry / library
