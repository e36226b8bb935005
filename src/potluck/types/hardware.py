"""A machine's devices and their capabilities, as reported by the probe."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from potluck.types.backend import DeviceKind
from potluck.types.memory import MemoryFacts
from potluck.types.unit import Interface


class Origin(enum.Enum):
    """How a figure was obtained."""

    MEASURED = "measured"
    DERIVED = "derived"
    TABLE = "table"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number, its source, and how it was obtained.

    ``value`` is None if and only if ``origin`` is UNKNOWN; ``source`` then says why it is unknown.
    Unknown values are never given as 0 or as a guess.
    """

    value: float | None = None
    origin: Origin = Origin.UNKNOWN
    source: str = "not in any table; not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A device's rates: bytes read from its memory, and operations (a multiply-add counts as two).

    Rates are dense. ``f16`` stands for 16-bit floats; the source says if they are bf16. The rates
    of a CPU are measured in exact arithmetic, except ``fast_bf16``, which is the rate of BF16
    weights in the fast arithmetic of its instruction set, if there is one.
    """

    read_bytes_per_second: Figure = field(default_factory=Figure)
    f32_operations_per_second: Figure = field(default_factory=Figure)
    f16_operations_per_second: Figure = field(default_factory=Figure)
    int8_operations_per_second: Figure = field(default_factory=Figure)
    fast_bf16_operations_per_second: Figure = field(default_factory=Figure)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """A device's memory in bytes; None means unknown.

    If ``is_shared``, it is the machine's memory, and the CPU and the device share one budget.
    ``source`` is what reported the sizes, or says why they are unknown.
    """

    total_bytes: int | None
    free_bytes: int | None
    is_shared: bool
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A compute device of a node.

    ``device_id`` is unique on the node and stable across reboots if the hardware is unchanged:
    ``cpu``, ``pci-0000:01:00.0``, ``of-fb000000.gpu`` (a node of the device tree),
    ``pci-0000:01:00.0-mig-1-0`` (GPU and compute instance). ``name`` is normalized
    (``probe.chips.names``), and ``reported_name`` is the name reported by the device or its driver;
    empty if unknown. ``chip`` identifies the model exactly (``10de:2684``, ``gfx1100``,
    ``mali-a867``). ``driver`` is the kernel driver bound to it, or empty. ``versions`` are those of
    driver and firmware by name. ``problem`` says in one line why nothing can run on it, or is
    empty. ``interfaces`` are the interfaces through which it can be used. ``is_software`` marks a
    software-emulated GPU (such as PoCL or llvmpipe). ``compute_capability`` is that of an NVIDIA
    GPU, such as (8, 9), or None.
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
        """The free part of its own memory, 0 if unknown; None if it shares the machine's."""
        memory = self.memory
        if memory.is_shared or self.is_software:
            return None
        return (memory.free_bytes if memory.free_bytes is not None else memory.total_bytes) or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorReport:
    """The result of one detector; ``problems`` says what it could not determine, and why.

    If ``is_pending``, the detector was still running, and may find more.
    """

    detector: str
    devices: tuple[Device, ...] = ()
    problems: tuple[str, ...] = ()
    is_pending: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The measured rates of a small program through a backend, in tokens per second of one
    sequence.
    """

    decode_tokens_per_second: Figure = field(default_factory=Figure)
    prefill_tokens_per_second: Figure = field(default_factory=Figure)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The trial of a backend on a device: whether its results were correct, and if not, why.

    ``reason`` is one line, empty if everything works; if only some variants failed, the backend
    works and has a reason. ``variants`` are the instruction sets (or similar) that passed, slowest
    first; no others may be used. ``figures`` and ``rates`` were measured through the backend.
    ``interface`` is the interface through which the device was used. If ``is_pending``, it has not
    been tested yet, for ``reason``, and may work; ``works`` is then false.
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
        """The id of the unit (``cpu/native``) if the backend works."""
        return f"{self.device_id}/{self.backend}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuFacts:
    """The CPU and the part of it that this process may use.

    The machine has ``num_cores``; ``num_usable_cores`` may be used (affinity, control groups).
    """

    name: str
    architecture: str
    num_cores: int
    num_usable_cores: int
    usable_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """The probe's report about a node (``potluck.probe/1``).

    ``is_complete`` is false while slow detectors are still running.
    """

    host_name: str
    kernel: str
    container: str
    cpu: CpuFacts
    memory: MemoryFacts
    detectors: tuple[DetectorReport, ...]
    trials: tuple[Trial, ...]
    is_complete: bool

    @property
    def pending(self) -> tuple[str, ...]:
        """The names of detectors that are still running and of units that are not tested yet."""
        detectors = (detector.detector for detector in self.detectors if detector.is_pending)
        return (*detectors, *(trial.unit_id for trial in self.trials if trial.is_pending))

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of all detectors, the CPU first."""
        return tuple(device for detector in self.detectors for device in detector.devices)
