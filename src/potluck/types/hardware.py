"""A machine's devices and their capabilities, as reported by the probe."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace

from potluck.types.backend import DeviceKind
from potluck.types.document import Count, NonEmpty, PositiveAmount, PositiveCount
from potluck.types.memory import MemoryFacts
from potluck.types.tensor import TensorFormat
from potluck.types.unit import Interface

TRIAL_LAYERS = 2
"""Layers of the small program with which every backend's tokens per second are measured."""

TRIAL_FORMAT = TensorFormat.Q8_0

TRIAL_PREFILL_TOKENS = 32
"""A step size that every backend supports."""

TRIAL_WEIGHTS = TRIAL_LAYERS * 44_040_192
"""Weights of its matrices: 2048² for each of q and o, 2048 × 256 for k and v, three times
2048 × 5632 (``engines.profiling.rate_program``)."""

TRIAL_BYTES = TRIAL_FORMAT.row_bytes(TRIAL_WEIGHTS)


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

    value: PositiveAmount | None = None
    origin: Origin = Origin.UNKNOWN
    source: NonEmpty = "not in any table; not measured"


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


NVIDIA = "NVIDIA"
"""The make of NVIDIA's devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """A device's memory; sizes are None if unknown."""

    total_bytes: Count | None
    free_bytes: Count | None
    is_shared: bool
    """It is the machine's memory: the CPU and the device share one budget."""
    source: str
    """The source of the sizes, or the reason why they are unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A compute device of a node."""

    device_id: NonEmpty
    """Unique on the node, and stable across reboots if the hardware is unchanged: ``cpu``,
    ``pci-0000:01:00.0``, ``of-fb000000.gpu`` (a node of the device tree),
    ``pci-0000:01:00.0-mig-1-0`` (GPU and compute instance)."""
    kind: DeviceKind
    make: str
    name: str
    """Normalized (``probe.chips.names``)."""
    reported_name: str
    """As the device or its driver reports it; empty if unknown."""
    chip: str
    """The exact model: ``10de:2684``, ``gfx1100``, ``mali-a867``."""
    driver: str
    """The kernel driver bound to it; may be empty."""
    device_files: tuple[str, ...]
    memory: DeviceMemory
    figures: Figures = field(default_factory=Figures)
    versions: tuple[tuple[str, str], ...] = ()
    """Versions of driver and firmware, by name."""
    problem: str = ""
    """Why nothing can run on it, in one line; may be empty."""
    interfaces: tuple[Interface, ...] = ()
    """The interfaces through which it can be used, the preferred one first."""
    is_software: bool = False
    """The CPU emulates this GPU, as with PoCL or llvmpipe."""
    compute_capability: tuple[PositiveCount, Count] | None = None
    """Major and minor version for an NVIDIA GPU, such as (8, 9)."""

    @property
    def own_free_bytes(self) -> int | None:
        """The free part of its own memory, 0 if unknown; None if it shares the machine's."""
        memory = self.memory
        if memory.is_shared or self.is_software:
            return None
        return (memory.free_bytes if memory.free_bytes is not None else memory.total_bytes) or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorReport:
    """The result of one detector."""

    detector: str
    devices: tuple[Device, ...] = ()
    problems: tuple[str, ...] = ()
    """Everything that it could not determine, and why."""
    is_pending: bool = False
    """It was still running, and may find more."""

    def with_problems(self, *problems: str) -> DetectorReport:
        """Return the report with additional lines."""
        return replace(self, problems=(*self.problems, *problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The measured rates of a small program through a backend, in tokens per second of one
    sequence.
    """

    decode_tokens_per_second: Figure = field(default_factory=Figure)
    prefill_tokens_per_second: Figure = field(default_factory=Figure)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The trial of a backend on a device: whether its results were correct, and if not, why."""

    device_id: str
    backend: str
    works: bool
    reason: str = ""
    """Why it does not work or which variants failed, in one line; empty if everything works."""
    variants: tuple[str, ...] = ()
    """Instruction sets (or similar) that passed, slowest first. Others are not used."""
    figures: Figures = field(default_factory=Figures)
    """Measured through the backend."""
    rates: Rates = field(default_factory=Rates)
    """Measured through the backend."""
    interface: Interface | None = None
    """The interface through which the device was used."""
    is_pending: bool = False
    """It has not been tested yet, for ``reason``, and may work; ``works`` is then false."""

    @property
    def unit_id(self) -> str:
        """The id of the unit (``cpu/native``) if the backend works."""
        return f"{self.device_id}/{self.backend}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuFacts:
    """The CPU and the part of it that this process may use."""

    name: str
    architecture: str
    num_cores: PositiveCount
    """Cores of the machine."""
    num_usable_cores: PositiveCount
    """Cores that this process is allowed to use (affinity, control groups)."""
    usable_reason: str
    """Reason why some cores cannot be used; may be empty."""


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
