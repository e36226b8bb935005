"""What a machine has and what it can do, as the probe tells it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from potluck.types.abilities import BackendAbilities
from potluck.types.memory import MemoryLimit


class Origin(enum.Enum):
    """How a figure was obtained."""

    MEASURED = "measured"
    DERIVED = "derived"
    TABLE = "table"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number, where it comes from, and in what sense.

    ``value`` is None if and only if ``origin`` is UNKNOWN; ``source`` then says why nothing is
    known. Never 0 for "not known", and never a guess.
    """

    value: float | None = None
    origin: Origin = Origin.UNKNOWN
    source: str = "in no table, and not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a device can do: bytes read from its memory, and operations (a multiply-add is two).

    ``f16`` stands for 16-bit floats, of which a source says whether they are bf16. Dense rates.
    Those of a CPU are measured in exact arithmetic, but for ``fast_bf16``: the rate of BF16 weights
    in the fast arithmetic of its instruction set, where there is one.
    """

    read_bytes_per_second: Figure = field(default_factory=Figure)
    f32_operations_per_second: Figure = field(default_factory=Figure)
    f16_operations_per_second: Figure = field(default_factory=Figure)
    int8_operations_per_second: Figure = field(default_factory=Figure)
    fast_bf16_operations_per_second: Figure = field(default_factory=Figure)


class DeviceKind(enum.Enum):
    """What sort of thing computes."""

    CPU = "cpu"
    GPU = "gpu"
    NPU = "npu"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """A device's memory in bytes; None is not known.

    ``is_shared``: it is the machine's own memory, so that the CPU and the device have one budget.
    ``source`` says what told the sizes, or why nothing did.
    """

    total_bytes: int | None
    free_bytes: int | None
    is_shared: bool
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """A way that software reaches a device: what a backend opens it by.

    ``api`` is ``opencl``, ``cuda``, ``kfd`` (AMD's compute driver) or ``kgsl`` (Qualcomm's).
    ``address`` is in that interface's own terms: ``/etc/OpenCL/vendors/pocl.icd#0:0`` (the file
    that names the library, and in what it alone shows the platform and the device, both from 0,
    a platform's GPUs before its other devices);
    a CUDA device's UUID or PCI address, or nothing where there is only one; the place of a KFD
    node among those that compute. ``description`` is what the driver says of itself.
    """

    api: str
    address: str
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One thing on a node that can compute.

    ``device_id`` is unique on the node and stays over reboots where the hardware stays:
    ``cpu``, ``pci-0000:01:00.0``, ``of-fb000000.gpu`` (a node of the device tree),
    ``pci-0000:01:00.0-mig-1-0`` (GPU and compute instance). ``name`` is normalized
    (``probe.names``), ``reported_name`` what the device or its driver said; empty where nobody
    says. ``chip`` names the model exactly (``10de:2684``, ``gfx1100``, ``mali-a867``). ``driver``
    is the kernel driver bound to it, or empty. ``versions`` are those of driver and firmware by
    name. ``problem`` is the one line that says why nothing can run on it, or empty. ``interfaces``
    are the ways to reach it. ``is_software``: it only plays a GPU on the CPU (PoCL, llvmpipe).
    ``compute_capability`` is an NVIDIA GPU's, (8, 9), None where not known.
    """

    device_id: str
    kind: DeviceKind
    make: str
    name: str
    reported_name: str
    chip: str
    driver: str
    device_files: tuple[str, ...]
    memory: DeviceMemory
    figures: Figures = field(default_factory=Figures)
    versions: tuple[tuple[str, str], ...] = ()
    problem: str = ""
    interfaces: tuple[Interface, ...] = ()
    is_software: bool = False
    compute_capability: tuple[int, int] | None = None

    @property
    def own_free_bytes(self) -> int | None:
        """What is free of its own memory, 0 where nobody says; None if it has the machine's."""
        memory = self.memory
        if memory.is_shared or self.is_software:
            return None
        return (memory.free_bytes if memory.free_bytes is not None else memory.total_bytes) or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerReport:
    """What one layer of the probe found; ``problems`` are what it could not find out and why.

    ``is_pending``: it had not ended when this was reported, so that there may be more.
    """

    layer: str
    devices: tuple[Device, ...] = ()
    problems: tuple[str, ...] = ()
    is_pending: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendLibrary:
    """A library of the machine's that a backend finds and opens by itself when it is used.

    ``name`` is for people (``libOpenCL.so``). It is the first file whose whole name matches one of
    ``patterns`` (regular expressions, the preferred first) in one of ``folders``, in which
    ``{machine}`` stands for what ``uname -m`` says. ``variable`` of the environment may name the
    file, or a folder that goes before them, as folders of ``LD_LIBRARY_PATH`` do.
    """

    name: str
    patterns: tuple[str, ...]
    folders: tuple[str, ...]
    variable: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSpec:
    """A backend, known by the module that tries it out (``python -m``; see ``probe.trials``).

    ``kinds`` and ``makes`` say which devices it is tried on; no makes means all.
    ``engine`` names the module that computes on it (``engines.opening.EngineModule``); a backend
    without one is tried, and no stage can run on it.
    ``packages`` are the distributions whose versions belong to the fingerprint of a trial.
    ``api`` is the interface that a device must have, or empty. ``is_software``: it is tried only
    where software that plays a GPU is allowed. ``extra`` of this distribution installs the
    packages; empty where they are there with it. ``libraries`` are those of the machine that it
    cannot do without. ``abilities`` are those of its engines (``EngineCost.abilities``).
    """

    name: str
    module: str
    kinds: frozenset[DeviceKind]
    engine: str = ""
    makes: frozenset[str] = frozenset()
    packages: tuple[str, ...] = ()
    api: str = ""
    is_software: bool = False
    extra: str = ""
    libraries: tuple[BackendLibrary, ...] = ()
    abilities: BackendAbilities = field(default_factory=BackendAbilities)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What a small program reached through a backend, in tokens per second, one sequence."""

    decode_tokens_per_second: Figure = field(default_factory=Figure)
    prefill_tokens_per_second: Figure = field(default_factory=Figure)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A backend tried on a device: whether its numbers were right, and if not, why.

    ``reason`` is one line, empty if all of it works; a backend of which some variant failed works
    and has a reason. ``variants`` are the instruction sets (or the like) that passed, slowest
    first: no other may be used. ``figures`` and ``rates`` are what was measured through it.
    ``interface`` is what it was reached by. ``is_pending``: it has not been tested yet, for
    ``reason``, and may work; ``works`` is false then.
    """

    device_id: str
    backend: str
    works: bool
    reason: str = ""
    variants: tuple[str, ...] = ()
    figures: Figures = field(default_factory=Figures)
    rates: Rates = field(default_factory=Rates)
    interface: Interface | None = None
    is_pending: bool = False

    @property
    def unit_id(self) -> str:
        """The unit that this makes if it works: ``cpu/native``."""
        return f"{self.device_id}/{self.backend}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuFacts:
    """The CPU and what of it this process may use.

    ``num_cores`` are there, ``num_usable_cores`` may be used (affinity, control groups).
    """

    name: str
    architecture: str
    num_cores: int
    num_usable_cores: int
    usable_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    """The machine's memory: all of it, what is free, and the limit in force with its reason.

    ``reserve_bytes`` are left to the system: ``usable`` is less by them where the machine's memory
    itself is the limit.
    """

    total_bytes: int
    free_bytes: int
    reserve_bytes: int
    usable: MemoryLimit


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """Everything that the probe knows of a node (``potluck.probe/1``).

    ``is_complete`` is false while slow layers still run.
    """

    host_name: str
    kernel: str
    container: str
    cpu: CpuFacts
    memory: MemoryFacts
    layers: tuple[LayerReport, ...]
    trials: tuple[Trial, ...]
    is_complete: bool

    @property
    def pending(self) -> tuple[str, ...]:
        """The layers that had not ended and the units not tested yet, by name."""
        layers = (layer.layer for layer in self.layers if layer.is_pending)
        return (*layers, *(trial.unit_id for trial in self.trials if trial.is_pending))

    @property
    def devices(self) -> tuple[Device, ...]:
        """Of all layers, the CPU first."""
        return tuple(device for layer in self.layers for device in layer.devices)
