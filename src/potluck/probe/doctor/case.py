"""The input of the checks: the machine, the probe's results, and additionally collected data.

Also has queries that several checks share.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from potluck.host.system import System
from potluck.portability.finding import Finding as MissingDependency
from potluck.types.backend import BackendLibrary, BackendSpec, DeviceKind
from potluck.types.document import NonEmpty
from potluck.types.hardware import Device, ProbeReport, Trial

KERNEL_LOG = "sudo dmesg --level err,warn | tail -n 50"
"""Shows the errors of drivers."""

COMPUTING_MAKES = frozenset({"NVIDIA", "AMD", "Intel", "Arm Mali", "Qualcomm Adreno"})
"""GPU vendors with compute drivers, whether or not a backend uses them yet."""

_APIS = {
    "NVIDIA": {"cuda", "opencl"},
    "AMD": {"kfd", "opencl"},
    "Intel": {"opencl"},
    "Arm Mali": {"opencl"},
    "Qualcomm Adreno": {"kgsl", "opencl"},
}
"""The interfaces that a vendor's GPUs can have with the right drivers."""

_DRAWING_DRIVERS = frozenset({"lima"})
"""Drivers of GPUs that cannot compute at all (Mali-400 to 470)."""

_DIRECTORIES = (
    "/usr/lib/{machine}-linux-gnu",
    "/usr/lib/{machine}-linux-gnu/mali",
    "/usr/lib/{machine}-linux-gnu/nvidia",
    "/usr/lib/{machine}-linux-gnu/nvidia/current",
    "/usr/lib/{machine}-linux-gnu/tegra",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/mali",
    "/usr/local/lib",
    "/usr/lib/wsl/lib",
    "/vendor/lib64",
    "/system/vendor/lib64",
)
"""Directories of Debian and Fedora derivatives, Arch, vendors' installers, WSL and Android."""


_MANAGERS = {
    "debian": "apt",
    "ubuntu": "apt",
    "raspbian": "apt",
    "fedora": "dnf",
    "rhel": "dnf",
    "centos": "dnf",
    "arch": "pacman",
    "archarm": "pacman",
}
UBUNTU_NVIDIA = "sudo ubuntu-drivers install"

_INSTALL = {
    "apt": "sudo apt install",
    "dnf": "sudo dnf install",
    "pacman": "sudo pacman -S",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """A distribution: ``name`` is its ID or the ID of the one that it derives from, and ``manager``
    its package manager.

    Both are empty if unknown.
    """

    name: str
    manager: str

    def install(self, packages: Mapping[str, str]) -> str:
        """Return the command that installs the package that ``packages`` has for this manager, or
        empty.

        A key that names the distribution takes precedence over that of its manager.
        """
        package = packages.get(self.name) or packages.get(self.manager)
        return f"{_INSTALL[self.manager]} {package}" if package and self.manager else ""


def read_distribution(system: System) -> Distribution:
    """Read ``/etc/os-release``, or if that is missing ``/usr/lib/os-release``."""
    for place in ("etc/os-release", "usr/lib/os-release"):
        text = system.text(system.files / PurePosixPath(place))
        if text is not None:
            break
    else:
        return Distribution(name="", manager="")
    pairs = (line.partition("=") for line in text.splitlines())
    values = {name.strip(): value.strip().strip("\"'") for name, _, value in pairs}
    names = [values.get("ID", ""), *values.get("ID_LIKE", "").split()]
    name = next((name for name in names if name in _MANAGERS), names[0])
    return Distribution(name=name, manager=_MANAGERS.get(name, ""))


class Severity(enum.Enum):
    """How severe a finding is."""

    PREVENTS = "prevents"
    """A unit that could work does not, or this node cannot take part in a cluster."""
    SLOWS = "slows"
    NOTE = "note"
    """Information; it may be intended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One possible improvement."""

    check: NonEmpty
    """The name of the check in ``docs/guides/doctor.md``."""
    severity: Severity
    """``prevents``: a unit that could work does not, or this node cannot take part in a cluster
    (exit code 1)."""
    message: NonEmpty
    """One line."""
    command: NonEmpty
    """The command to run, as root if it begins with sudo."""
    details: str = ""
    """One more line about the command; may be empty."""
    device_id: NonEmpty | None = None
    """The device concerned, if any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """The user. ``groups`` are the names of those in effect in this process."""

    name: str
    is_root: bool
    groups: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A directory that Potluck writes to, and its disk.

    ``purpose`` completes "the folder for …". ``needed_bytes`` is the minimum that should be free.
    ``file_system`` is its type (``ext4``), empty if unknown; the directory itself need not exist
    yet.
    """

    purpose: str
    path: Path
    needed_bytes: int
    free_bytes: int
    file_system: str
    mount_point: str
    is_writable: bool
    is_read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A TCP port that an agent would listen on; ``problem`` says why it could not, or is empty.

    ``option`` makes ``potluck up`` use another port (``--http 127.0.0.1:8001``).
    """

    number: int
    purpose: str
    option: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNetwork:
    """The facts about the network that are known without another node.

    ``multicast_problem`` says why a datagram that stays on the machine does not come back on the
    interface at ``address``; empty if it does. ``address`` is empty without a network.
    """

    address: str
    ports: tuple[Port, ...]
    multicast_problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """The connections between another node and this one; values that were not tested are None.

    ``problem`` says why it did not respond, or is empty. ``skew_seconds`` is its clock minus this
    node's, ± ``uncertainty_seconds``. ``port_problem`` says why it could not connect to this node's
    address; empty if it could. ``is_reached`` is whether this node could connect to it at its last
    attempt, and ``is_heard`` whether its multicast arrives here.
    """

    node_id: str
    problem: str = ""
    skew_seconds: float | None = None
    uncertainty_seconds: float | None = None
    port_problem: str | None = None
    is_reached: bool = True
    is_heard: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The results of checks between the nodes. ``address`` is this node's own, HOST:PORT;
    ``is_address_gone``: the machine no longer has it.

    ``silent_pairs`` are pairs of nodes, neither of which can connect to the other.
    """

    node_id: str
    address: str
    peers: tuple[Peer, ...]
    is_address_gone: bool = False
    silent_pairs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnloadablePackage:
    """An installed Python package whose compiled part cannot be loaded.

    ``loss`` completes "without it …"; it is empty if Potluck works without the package.
    ``load_error`` is Python's error, and ``lacks`` the known requirements of its files that this
    machine lacks.
    """

    name: str
    version: str
    loss: str
    load_error: str
    lacks: tuple[MissingDependency, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedLibrary:
    """A system library that is opened by a backend that failed on every device.

    ``path`` is where the backend finds it; empty if it does not. ``load_error`` is the dynamic
    linker's error; empty if the library loads. ``lacks`` has its known requirements that this
    machine lacks.
    """

    library: BackendLibrary
    path: str
    load_error: str
    lacks: tuple[MissingDependency, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The input of the checks. ``shared_memory_bytes`` is the size of ``/dev/shm``, None without
    one.

    ``missing_packages`` are needed by backends but not installed; ``unloadable_packages`` are
    installed but cannot be loaded. ``opened_libraries`` are those of backends that do not work.
    ``missing_folder`` says why a directory has no location (no home directory), or is empty.
    ``cluster`` is None if no agent runs here. ``library_folders`` are the absolute folders of
    ``LD_LIBRARY_PATH``.
    """

    system: System
    report: ProbeReport
    backends: tuple[BackendSpec, ...]
    missing_packages: tuple[str, ...]
    unloadable_packages: tuple[UnloadablePackage, ...]
    opened_libraries: tuple[OpenedLibrary, ...]
    distribution: Distribution
    user: User
    folders: tuple[Folder, ...]
    missing_folder: str
    shared_memory_bytes: int | None
    network: LocalNetwork | None
    cluster: Cluster | None
    library_folders: tuple[str, ...] = ()

    @property
    def accelerators(self) -> tuple[Device, ...]:
        """Devices other than the CPU that could compute; others are useless in any case."""
        return tuple(
            each
            for each in self.report.devices
            if each.kind is not DeviceKind.CPU
            and not each.is_software
            and each.driver not in _DRAWING_DRIVERS
            and (self._is_wanted(each) or _is_computing_gpu(each))
        )

    @property
    def container(self) -> str:
        """The kind of container, or empty; also empty for WSL, which cannot be given more
        devices.
        """
        return "" if self.report.container == "wsl" else self.report.container

    @property
    def container_tool(self) -> str:
        """The command that starts containers like this one, or empty outside of containers."""
        if not self.container:
            return ""
        return "podman" if self.container == "podman" else "docker"

    def severity(self, device: Device) -> Severity:
        """Return the severity of a problem of ``device``: a note if no backend supports it."""
        return Severity.PREVENTS if self._is_wanted(device) else Severity.NOTE

    @property
    def lacking_backends(self) -> tuple[BackendSpec, ...]:
        """The backends that require an extra of Potluck that is not installed."""
        missing = set(self.missing_packages)
        return tuple(each for each in self.backends if each.extra and missing & set(each.packages))

    def blocking_libraries(self, trial: Trial) -> tuple[OpenedLibrary, ...]:
        """Return the libraries that keep the trial's backend from working anywhere."""
        opened = {
            library
            for backend in self.backends
            if backend.name == trial.backend
            for library in backend.libraries
        }
        return tuple(
            each
            for each in self.opened_libraries
            if each.library in opened and (not each.path or each.load_error)
        )

    @property
    def unloadable_backends(self) -> frozenset[str]:
        """The names of the backends that need a package that cannot be loaded."""
        unloadable = {each.name for each in self.unloadable_packages}
        return frozenset(each.name for each in self.backends if unloadable & set(each.packages))

    def _is_wanted(self, device: Device) -> bool:
        """Return whether a backend supports the device, or would with the right drivers."""
        apis = _APIS.get(device.make, set()) | {each.api for each in device.interfaces}
        return not device.is_software and any(
            not backend.is_software
            and device.kind in backend.kinds
            and (not backend.makes or device.make in backend.makes)
            and (not backend.api or backend.api in apis)
            for backend in self.backends
        )

    def shown(self, device_file: Path) -> str:
        """Return a device file's path on the machine itself."""
        if device_file.is_relative_to(self.system.dev):
            return str(PurePosixPath("/dev") / device_file.relative_to(self.system.dev))
        return str(device_file)


def _is_computing_gpu(device: Device) -> bool:
    return device.kind is DeviceKind.GPU and device.make in COMPUTING_MAKES


def title(device: Device) -> str:
    """Return a device's name in messages: vendor and name, with the chip if it has no name.

    ``Arm Mali`` and ``Mali-G610`` are ``Arm Mali-G610``.
    """
    name = device.name or device.reported_name or device.chip or device.device_id
    words = device.make.split()
    if words and name.startswith(words[-1]):
        words.pop()
    return " ".join([*words, name])


def libraries(case: Case, pattern: str) -> Iterator[PurePosixPath]:
    """Return files whose whole name matches ``pattern``, by their paths on the machine."""
    seen: set[Path] = set()
    usual = (each.format(machine=case.report.cpu.architecture) for each in _DIRECTORIES)
    for directory in (*case.library_folders, *usual):
        path = case.system.below_files(directory)
        try:
            resolved = path.resolve()  # /usr/lib64 may be a link to /usr/lib
        except (OSError, RuntimeError):  # RuntimeError: a loop of links
            continue
        if resolved in seen:
            continue
        seen.add(resolved)
        for file in case.system.entries(path):
            if re.fullmatch(pattern, file.name):
                yield PurePosixPath(directory) / file.name
