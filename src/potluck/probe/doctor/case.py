"""All that the checks are told: the machine, what the probe found, and what was looked at besides.

Also the questions that several checks ask of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from potluck.portability.finding import Finding as Lack
from potluck.probe.doctor.distribution import Distribution
from potluck.probe.doctor.finding import Severity
from potluck.probe.system import System
from potluck.types.hardware import (
    BackendLibrary,
    BackendSpec,
    Device,
    DeviceKind,
    ProbeReport,
    Trial,
)

KERNEL_LOG = "sudo dmesg --level err,warn | tail -n 50"
"""Where drivers say what ails them."""

COMPUTING_MAKES = frozenset({"NVIDIA", "AMD", "Intel", "Arm Mali", "Qualcomm Adreno"})
"""Makes of GPUs that there are compute drivers for, whether or not a backend uses them yet."""

_APIS = {
    "NVIDIA": {"cuda", "opencl"},
    "AMD": {"kfd", "opencl"},
    "Intel": {"opencl"},
    "Arm Mali": {"opencl"},
    "Qualcomm Adreno": {"kgsl", "opencl"},
}
"""The interfaces that a make's GPUs can have, given the right drivers."""

_DRAWING_DRIVERS = frozenset({"lima"})
"""Of GPUs that cannot compute at all (Mali-400 to 470)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Who asks. ``groups`` are those in force in this process, by name."""

    name: str
    is_root: bool
    groups: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder that Potluck writes to, and the disk under it.

    ``purpose`` completes "the folder for …". ``needed_bytes`` is what should be free there at
    least. ``file_system`` is its type (``ext4``), empty where not known; the folder itself need not
    be there yet.
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
    """A TCP port that an agent would listen on; ``problem`` says why it could not, or nothing.

    ``option`` is the start of what to give ``potluck up`` for another one (``--http 127.0.0.1:``).
    """

    number: int
    purpose: str
    option: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNetwork:
    """What can be told of the network without another node.

    ``multicast_problem``: why a datagram that does not leave the machine does not come back on the
    interface at ``address``; empty if it does. ``address`` is empty without a network.
    """

    address: str
    ports: tuple[Port, ...]
    multicast_problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """How another node and this one get along; what was not tried is None.

    ``problem``: why it did not answer, or nothing. ``skew_seconds`` is its clock less this node's,
    give or take ``uncertainty_seconds``. ``control_problem``, ``edge_problem``: why it could not
    connect to this node's control address, and to a port like those of edges; empty if it could.
    ``is_heard``: whether its multicast arrives here.
    """

    node_id: str
    problem: str = ""
    skew_seconds: float | None = None
    uncertainty_seconds: float | None = None
    control_problem: str | None = None
    edge_problem: str | None = None
    is_heard: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What this node's agent found out with the others. ``address`` is its own, HOST:PORT."""

    node_id: str
    address: str
    peers: tuple[Peer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnloadablePackage:
    """A package of Python that is installed, and whose compiled part cannot be loaded.

    ``loss`` completes "without it …", empty where Potluck does without. ``said`` is what Python
    says of it, ``lacks`` what its files need of this machine in vain, as far as they tell.
    """

    name: str
    version: str
    loss: str
    said: str
    lacks: tuple[Lack, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedLibrary:
    """A library of the machine's that a backend opens, which works on nothing it was tried on.

    ``path`` is where it finds it, empty if nowhere. ``said`` is what the dynamic linker says of it,
    empty if it loads; ``lacks`` is what it needs of this machine in vain, as far as it tells.
    """

    library: BackendLibrary
    path: str
    said: str
    lacks: tuple[Lack, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is examined. ``shared_memory_bytes`` is the size of ``/dev/shm``, None without one.

    ``missing_packages`` are those that backends need and that are not installed,
    ``unloadable_packages`` are installed in vain. ``opened_libraries`` are those of backends that
    do not work.
    ``missing_folder`` says why a folder has no place at all (no home directory), or nothing.
    ``cluster`` is None when no agent runs here. ``library_folders`` are the absolute folders of
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
        """Devices but the CPU that could compute: others are of no use whatever is done."""
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
        """Which sort of container this is, or empty; WSL has nobody to ask for more devices."""
        return "" if self.report.container == "wsl" else self.report.container

    @property
    def container_tool(self) -> str:
        """The command that starts containers like this one, or empty outside of containers."""
        if not self.container:
            return ""
        return "podman" if self.container == "podman" else "docker"

    def severity(self, device: Device) -> Severity:
        """Of what keeps ``device`` from work: a device that no backend is for is no loss yet."""
        return Severity.PREVENTS if self._is_wanted(device) else Severity.NOTE

    @property
    def lacking_backends(self) -> tuple[BackendSpec, ...]:
        """Those that cannot run before an extra of Potluck is installed."""
        missing = set(self.missing_packages)
        return tuple(each for each in self.backends if each.extra and missing & set(each.packages))

    def hindrances(self, trial: Trial) -> tuple[OpenedLibrary, ...]:
        """The libraries that keep the trial's backend from working anywhere."""
        opened = {
            library
            for backend in self.backends
            if backend.name == trial.backend
            for library in backend.libraries
        }
        return tuple(
            each
            for each in self.opened_libraries
            if each.library in opened and (not each.path or each.said)
        )

    @property
    def unloadable_backends(self) -> frozenset[str]:
        """The names of those that need a package which cannot be loaded."""
        unloadable = {each.name for each in self.unloadable_packages}
        return frozenset(each.name for each in self.backends if unloadable & set(each.packages))

    def _is_wanted(self, device: Device) -> bool:
        """Whether a backend is for it, or would be with the right drivers."""
        apis = _APIS.get(device.make, set()) | {each.api for each in device.interfaces}
        return not device.is_software and any(
            not backend.is_software
            and device.kind in backend.kinds
            and (not backend.makes or device.make in backend.makes)
            and (not backend.api or backend.api in apis)
            for backend in self.backends
        )

    def shown(self, device_file: Path) -> str:
        """A device file as it is called on the machine itself."""
        if device_file.is_relative_to(self.system.dev):
            return str(PurePosixPath("/dev") / device_file.relative_to(self.system.dev))
        return str(device_file)

    def below_files(self, path: str) -> Path:
        """``/etc/…`` and the like in the tree that is examined."""
        return self.system.files / path.lstrip("/")


def _is_computing_gpu(device: Device) -> bool:
    return device.kind is DeviceKind.GPU and device.make in COMPUTING_MAKES


def title(device: Device) -> str:
    """A device as messages call it: make and name, with the chip where it has no name.

    ``Arm Mali`` and ``Mali-G610`` are ``Arm Mali-G610``.
    """
    name = device.name or device.reported_name or device.chip or device.device_id
    words = device.make.split()
    if words and name.startswith(words[-1]):
        words.pop()
    return " ".join([*words, name])
