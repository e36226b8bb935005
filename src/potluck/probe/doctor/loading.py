"""Tries to load what is installed and compiled, and reads out of the files why that fails.

Each thing is loaded in a child process of its own: it may be what crashes. Files are read only of
what does not load.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import msgspec

from potluck.portability.finding import Finding as Lack
from potluck.probe.child import ChildAnswer, ChildFailure, run_child
from potluck.probe.child_output import one_line
from potluck.probe.doctor.case import OpenedLibrary, UnloadablePackage
from potluck.probe.guard import run_at_once
from potluck.probe.regular_file import read_regular_file
from potluck.probe.system import System
from potluck.types.hardware import BackendLibrary, BackendSpec, ProbeReport

# For the threads of ``run_at_once``: see ``chip_table``, which meets the same crash of msgspec.
msgspec.json.Decoder(tuple[Lack, ...])

_LOAD_SECONDS = 10.0
"""A driver's library that is cold on a memory card takes some seconds."""
_LOAD_BYTES = 1 << 30

_ELF = b"\x7fELF"


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A distribution with compiled parts, the module that loads them, and what is lost without it.

    ``loss`` completes "without it …"; empty where Potluck does without.
    """

    name: str
    module: str
    loss: str = ""


PACKAGES = (
    Package(name="numpy", module="numpy", loss="nothing is computed"),
    Package(name="eclipse-zenoh", module="zenoh", loss="this node cannot be in a cluster"),
    Package(name="cryptography", module="cryptography.x509", loss="nodes cannot trust each other"),
    Package(name="tokenizers", module="tokenizers", loss="no text can be read"),
    Package(name="pyopencl", module="pyopencl"),
)


def look_at_packages(packages: Sequence[Package] = PACKAGES) -> tuple[UnloadablePackage, ...]:
    """Those that are installed and cannot be imported.

    One child imports all of them, which saves the start of Python for each. Only where it does not
    come through does each get a child of its own, which tells whose fault that was.
    """
    modules = [each.module for each in packages if _installed(each) is not None]
    if not _problem("module", *modules):
        return ()
    looked = run_at_once([partial(_look_at_package, each) for each in packages])
    return tuple(each for each in looked if each is not None)


def _look_at_package(package: Package) -> UnloadablePackage | None:
    installed = _installed(package)
    if installed is None:
        return None
    said = _problem("module", package.module)
    if not said:
        return None
    root = Path(str(installed.locate_file("")))
    files = {str(file): root / file for file in installed.files or () if ".so" in file.name}
    return UnloadablePackage(
        name=package.name,
        version=installed.version,
        loss=package.loss,
        said=said,
        lacks=_lacks(f"{package.name} {installed.version}", files),
    )


def _installed(package: Package) -> importlib.metadata.Distribution | None:
    try:
        return importlib.metadata.distribution(package.name)
    except importlib.metadata.PackageNotFoundError:
        return None


def look_at_opened_libraries(
    system: System,
    report: ProbeReport,
    backends: Sequence[BackendSpec],
    environ: Mapping[str, str],
) -> tuple[OpenedLibrary, ...]:
    """The libraries of backends that work on nothing they were tried on: where they are, if they
    are, and why they do not load, if they do not.
    """
    works = {trial.backend for trial in report.trials if trial.works}
    tried = {trial.backend for trial in report.trials if not trial.is_pending}
    wanted = {
        library: None
        for spec in backends
        if spec.name in tried - works
        for library in spec.libraries
    }
    machine = report.cpu.architecture

    def look_at(library: BackendLibrary) -> OpenedLibrary:
        return _look_at_library(system, library, find_library(system, library, machine, environ))

    return tuple(run_at_once([partial(look_at, library) for library in wanted]))


def find_library(
    system: System, library: BackendLibrary, machine: str, environ: Mapping[str, str]
) -> str:
    """The file that a backend would open, as it is called on the machine; empty without one."""
    named = environ.get(library.variable, "")
    if named and _below(system, named).is_file():
        return named
    usual = (folder.format(machine=machine) for folder in library.folders)
    folders = [named, *environ.get("LD_LIBRARY_PATH", "").split(":"), *usual]
    for pattern in library.patterns:
        for folder in filter(None, folders):
            for file in system.entries(_below(system, folder)):
                if re.fullmatch(pattern, file.name) and _is_elf(file):
                    return str(PurePosixPath(folder) / file.name)
    return ""


def _look_at_library(system: System, library: BackendLibrary, path: str) -> OpenedLibrary:
    said = _problem("library", path) if path else ""
    files = {path: _below(system, path)} if said else {}
    lacks = _lacks(library.name, files)
    return OpenedLibrary(library=library, path=path, said=said, lacks=lacks)


def _below(system: System, path: str) -> Path:
    return system.files / path.lstrip("/")


def _is_elf(file: Path) -> bool:
    """Not a linker script, which has the name of a library too."""
    try:
        return read_regular_file(file, len(_ELF)) == _ELF
    except OSError:
        return False


def _problem(kind: str, *names: str) -> str:
    """Why one of them cannot be loaded, in one line; empty if all can."""
    outcome = run_child(
        "potluck.probe.children.load",
        (kind, *names),
        deadline_seconds=_LOAD_SECONDS,
        max_resident_bytes=_LOAD_BYTES,
    )
    if isinstance(outcome, ChildAnswer):
        return one_line(str(outcome.document.get("problem", "")))
    return one_line(outcome.reason)


def _lacks(label: str, files: Mapping[str, Path]) -> tuple[Lack, ...]:
    """What keeps the files of ``label`` from loading, which are by their names in it; none if they
    do not tell.

    In a child too: what reads them needs NumPy.
    """
    if not files:
        return ()
    named = {name: str(path) for name, path in files.items()}
    outcome = run_child(
        "potluck.probe.children.lacks",
        (label, msgspec.json.encode(named).decode()),
        deadline_seconds=_LOAD_SECONDS,
        max_resident_bytes=_LOAD_BYTES,
    )
    if isinstance(outcome, ChildFailure):
        return ()
    return msgspec.convert(outcome.document["lacks"], tuple[Lack, ...])
