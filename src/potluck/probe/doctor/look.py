"""Collect the data that the checks need in addition to the probe's report.

Nothing is changed or sent: the datagram that tests multicast has a time to live of 0, so it does
not leave the machine.
"""

from __future__ import annotations

import errno
import importlib.metadata
import os
import pwd
import re
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import msgspec

from potluck.host.child import ChildAnswer, ChildFailure, run_child
from potluck.host.child_output import one_line
from potluck.host.control_groups import read_mounts
from potluck.host.guard import guarded, run_at_once
from potluck.host.system import System, group_name, read_regular_file
from potluck.portability.finding import Finding as MissingDependency
from potluck.probe.doctor.case import (
    Folder,
    LocalNetwork,
    OpenedLibrary,
    Port,
    UnloadablePackage,
    User,
)
from potluck.probe.doctor.multicast import (
    GROUP,
    MAX_DATAGRAM_BYTES,
    NUM_NONCE_BYTES,
    PORT,
    nonce_of,
    open_multicast_receiver,
    send_datagram,
)
from potluck.probe.fingerprint import installed_software
from potluck.types.backend import BackendLibrary, BackendSpec
from potluck.types.hardware import ProbeReport

_ANY = "0.0.0.0"
_LOOP_SECONDS = 0.5


def inspect_user() -> User:
    """Return the user who runs this process."""
    user_id = os.geteuid()
    try:
        name = pwd.getpwuid(user_id).pw_name
    except KeyError:  # containers may use ids without a user
        name = str(user_id)
    groups = {os.getegid(), *os.getgroups()}
    return User(name=name, is_root=user_id == 0, groups=frozenset(map(group_name, groups)))


def missing_packages(backends: Sequence[BackendSpec]) -> tuple[str, ...]:
    """Return the packages that backends need but that are not installed, without duplicates."""
    software = installed_software(tuple(name for each in backends for name in each.packages))
    return tuple(dict.fromkeys(name for name, version in software.packages if not version))


def inspect_folder(system: System, path: Path, *, purpose: str, needed_bytes: int) -> Folder | None:
    """Return a directory, or its nearest parent that is visible to this user. None if that cannot
    be examined.
    """
    path = path.absolute()
    try:
        # Path.exists would raise PermissionError for a path in a folder that may not be entered.
        there = next(each for each in (path, *path.parents) if os.path.exists(each)).resolve()  # noqa: PTH110
        disk = os.statvfs(there)
    except OSError:
        return None
    mount_point, file_system = _mount(system, there)
    return Folder(
        purpose=purpose,
        path=path,
        needed_bytes=needed_bytes,
        free_bytes=disk.f_bavail * disk.f_frsize,
        file_system=file_system,
        mount_point=mount_point,
        is_writable=there.is_dir() and os.access(there, os.W_OK | os.X_OK),
        is_read_only=bool(disk.f_flag & os.ST_RDONLY),
    )


def _mount(system: System, path: Path) -> tuple[str, str]:
    """Return the mount point and type of the file system of ``path``."""
    found = ("/", "")
    for fields, file_system in read_mounts(system):
        point = fields[4]
        if path.is_relative_to(point) and len(point) >= len(found[0]):
            found = (point, file_system[0])  # a later mount hides an earlier one
    return found


def inspect_shared_memory(system: System) -> int | None:
    """Return the size of /dev/shm."""
    try:
        disk = os.statvfs(system.dev / "shm")
    except OSError:
        return None
    return disk.f_blocks * disk.f_frsize


def inspect_network(address: str, *, lan_port: int, http_port: int) -> LocalNetwork:
    """Return whether an agent could listen, and whether multicast works at ``address``.

    ``address`` is this machine's own on the network, empty without one.
    """
    lan = Port(
        number=lan_port,
        purpose="other nodes (--lan)",
        option=f"--lan --listen {address or 'HOST'}:{_free_port(_ANY, lan_port)}",
        problem=_listen_problem(_ANY, lan_port),
    )
    loopback = "127.0.0.1"
    http = Port(
        number=http_port,
        purpose="clients (--http)",
        option=f"--http {loopback}:{_free_port(loopback, http_port)}",
        problem=_listen_problem(loopback, http_port),
    )
    problem = _loop_problem(address) if address else ""
    return LocalNetwork(address=address, ports=(lan, http), multicast_problem=problem)


def _free_port(host: str, taken: int) -> int:
    """Return a free port near ``taken``; 0, which means any, if there is none."""
    numbers = range(taken + 2, taken + 20)
    return next((number for number in numbers if not _listen_problem(host, number)), 0)


def _listen_problem(host: str, port: int) -> str:
    """Return why nothing can listen there now. Binding is enough to find out."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            return "in use by another program" if taken else (error.strerror or str(error)).lower()
    return ""


def _loop_problem(address: str) -> str:
    """Return why a local datagram does not come back on an interface."""
    nonce = secrets.token_bytes(NUM_NONCE_BYTES)
    try:
        with open_multicast_receiver(address) as ear:
            send_datagram(address, nonce, hops=0)
            deadline = time.monotonic() + _LOOP_SECONDS
            while (left := deadline - time.monotonic()) > 0:
                ear.settimeout(left)
                if nonce_of(ear.recv(MAX_DATAGRAM_BYTES)) == nonce:
                    return ""
    except TimeoutError:
        pass
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return f"a datagram to {GROUP}, UDP port {PORT}, does not come back"


# For the threads of ``run_at_once``; see ``chips.table`` about the same crash of msgspec.
msgspec.json.Decoder(tuple[MissingDependency, ...])

_LOAD_SECONDS = 10.0
"""Reading a driver's library from a memory card takes a few seconds."""
_LOAD_BYTES = 1 << 30

_ELF = b"\x7fELF"


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A distribution with compiled parts, and the module that loads them.

    ``loss`` completes "without it …"; it is empty if Potluck works without the package.

    Each item is loaded in a separate child process, since it may crash. Only the files of items
    that do not load are read.
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
    label = f"{package.name} {installed.version}"
    return UnloadablePackage(
        name=package.name,
        version=installed.version,
        loss=package.loss,
        load_error=load_error,
        lacks=_lacks(label, partial(_compiled_files, installed)),
    )


def _compiled_files(installed: importlib.metadata.Distribution) -> dict[str, Path]:
    root = Path(str(installed.locate_file("")))
    return {str(file): root / file for file in installed.files or () if ".so" in file.name}


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
    failed = (spec for spec in backends if spec.name in tried - works)
    wanted = dict.fromkeys(library for spec in failed for library in spec.libraries)
    machine = report.cpu.architecture

    def look_at(library: BackendLibrary) -> OpenedLibrary:
        path = find_library(system, library, machine, environ)
        load_error = _problem("library", path) if path else ""
        files = {path: system.below_files(path)} if load_error else {}
        lacks = _lacks(library.name, lambda: files)
        return OpenedLibrary(library=library, path=path, load_error=load_error, lacks=lacks)

    return tuple(run_at_once([partial(look_at, library) for library in wanted]))


def find_library(
    system: System, library: BackendLibrary, machine: str, environ: Mapping[str, str]
) -> str:
    """Return the path on the machine of the file that a backend would open; empty if none."""
    named = environ.get(library.variable, "")
    if named and system.below_files(named).is_file():
        return named
    usual = (folder.format(machine=machine) for folder in library.folders)
    folders = [named, *environ.get("LD_LIBRARY_PATH", "").split(":"), *usual]
    for pattern in library.patterns:
        for folder in filter(None, folders):
            for file in system.entries(system.below_files(folder)):
                if re.fullmatch(pattern, file.name) and _is_elf(file):
                    return str(PurePosixPath(folder) / file.name)
    return ""


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


def _lacks(label: str, files: Callable[[], Mapping[str, Path]]) -> tuple[MissingDependency, ...]:
    """Return the requirements of ``files()`` that this machine lacks; empty if unknown, as when a
    package's list of its files is damaged, or a name is not UTF-8.
    """
    return guarded(lambda: _lacks_of_files(label, files()), lambda _: ())


def _lacks_of_files(label: str, files: Mapping[str, Path]) -> tuple[MissingDependency, ...]:
    """Ask a child, since reading the files requires NumPy."""
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
    return msgspec.convert(outcome.document["lacks"], tuple[MissingDependency, ...])
