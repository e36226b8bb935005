"""Try to load installed native code, and determine from the files why loading fails.

Each item is loaded in a separate child process, since it may crash. Only the files of items that do
not load are read.
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
from potluck.probe.doctor.case import OpenedLibrary, UnloadablePackage
from potluck.probe.machine.system import System, read_regular_file
from potluck.probe.processes.child import ChildAnswer, ChildFailure, run_child
from potluck.probe.processes.guard import run_at_once
from potluck.probe.processes.output import one_line
from potluck.types.backend import BackendLibrary, BackendSpec
from potluck.types.hardware import ProbeReport

# For the threads of ``run_at_once``; see ``chips.table`` about the same crash of msgspec.
msgspec.json.Decoder(tuple[Lack, ...])

_LOAD_SECONDS = 10.0
"""Reading a driver's library from a memory card takes a few seconds."""
_LOAD_BYTES = 1 << 30

_ELF = b"\x7fELF"


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A distribution with compiled parts, and the module that loads them.

    ``loss`` completes "without it …"; it is empty if Potluck works without the package.
    """

    name: str
    module: str
    loss: str = ""


PACKAGES = (
    Package(name="numpy", module="numpy", loss="nothing can be computed"),
    Package(name="eclipse-zenoh", module="zenoh", loss="this node cannot join a cluster"),
    Package(name="cryptography", module="cryptography.x509", loss="nodes cannot trust each other"),
    Package(name="tokenizers", module="tokenizers", loss="no text can be tokenized"),
    Package(name="pyopencl", module="pyopencl"),
)


def inspect_packages(packages: Sequence[Package] = PACKAGES) -> tuple[UnloadablePackage, ...]:
    """Return packages that are installed but cannot be imported.

    One child imports all of them, which saves starting Python for each. Only if it fails is each
    imported in a separate child, to find the faulty one.
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
    load_error = _problem("module", package.module)
    if not load_error:
        return None
    root = Path(str(installed.locate_file("")))
    files = {str(file): root / file for file in installed.files or () if ".so" in file.name}
    return UnloadablePackage(
        name=package.name,
        version=installed.version,
        loss=package.loss,
        load_error=load_error,
        lacks=_lacks(f"{package.name} {installed.version}", files),
    )


def _installed(package: Package) -> importlib.metadata.Distribution | None:
    try:
        return importlib.metadata.distribution(package.name)
    except importlib.metadata.PackageNotFoundError:
        return None


def inspect_opened_libraries(
    system: System,
    report: ProbeReport,
    backends: Sequence[BackendSpec],
    environ: Mapping[str, str],
) -> tuple[OpenedLibrary, ...]:
    """Return the libraries of backends that failed on every device, with their paths and the
    reasons why they do not load.
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
    """Return the path on the machine of the file that a backend would open; empty if none."""
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
    load_error = _problem("library", path) if path else ""
    files = {path: _below(system, path)} if load_error else {}
    lacks = _lacks(library.name, files)
    return OpenedLibrary(library=library, path=path, load_error=load_error, lacks=lacks)


def _below(system: System, path: str) -> Path:
    return system.files / path.lstrip("/")


def _is_elf(file: Path) -> bool:
    """Return whether it is an ELF file, not a linker script that is named like a library."""
    try:
        return read_regular_file(file, len(_ELF)) == _ELF
    except OSError:
        return False


def _problem(kind: str, *names: str) -> str:
    """Return why one of ``names`` cannot be loaded, in one line; empty if all can."""
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
    """Return the requirements of ``files`` that this machine lacks; empty if unknown.

    This also runs in a child, since reading the files requires NumPy.
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
