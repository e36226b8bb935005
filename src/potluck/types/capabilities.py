"""What a scheduler wants to know of a node: names, memory, arithmetic rates, and where from."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from potluck.types.hardware import DeviceKind, Origin
from potluck.types.unit import Role

SCHEMA = "potluck.capabilities/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flops:
    """Dense rates in TFLOPS (10^12 operations per second, a multiply-add is two; int8: TOPS).

    None is not known, and never 0. ``fp16`` stands for 16-bit floats; where they are bf16, its
    source says so.
    """

    fp32: float | None = None
    fp16: float | None = None
    int8: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """How a figure was obtained, and from what; for one that is not known, why not."""

    origin: Origin
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The source of each figure of ``DeviceCapabilities``."""

    memory: Source
    total_memory: Source
    fp32: Source
    fp16: Source
    int8: Source
    read_bytes_per_second: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """Whether something can be run, and in one line how, or why not. True or false as it says."""

    is_supported: bool
    reason: str

    def __bool__(self) -> bool:
        return self.is_supported


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCapabilities:
    """What one device of a node can do, and at the top what the node can.

    ``model`` names the machine or board, ``chip`` the device that computes: at the top the one
    that serves, which is the node's fastest that passed its test, or the CPU where none did.
    ``memory`` may still be taken, and ``total_memory`` is all there is, both in MiB; of a device
    that shares the machine's memory they are the machine's, so entries of ``devices`` do not add
    up. ``read_bytes_per_second`` is what bounds decoding. None is not known.

    ``is_software``: it only plays a GPU on the CPU, such as PoCL.

    ``f16`` and ``int8`` say whether the device runs models whose weights are in that format, and
    what it computes in. ``backend`` is what executes, empty where nothing does; ``role`` says
    whether the node uses it, and ``reason`` why not. ``devices`` are all of the node in the same
    way, the CPU first; each has none itself.
    """

    model: str
    chip: str
    memory: int | None
    total_memory: int | None
    flops: Flops
    read_bytes_per_second: float | None
    f16: Support
    int8: Support
    sources: Sources
    device_id: str
    kind: DeviceKind
    is_software: bool
    backend: str
    role: Role
    reason: str = ""
    devices: tuple[DeviceCapabilities, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """The same in types that JSON has, with the keys that such schedulers use.

        ``model``, ``chip``, ``memory`` and ``flops`` (``fp32``, ``fp16``, ``int8``) come first; the
        others are named as here. The schema is ``potluck/capabilities/schema.json``.
        """
        return {"schema": SCHEMA, **self._entry(), "devices": [d._entry() for d in self.devices]}

    def _entry(self) -> dict[str, object]:
        return {
            "model": self.model,
            "chip": self.chip,
            "memory": self.memory,
            "flops": asdict(self.flops),
            "total_memory": self.total_memory,
            "read_bytes_per_second": self.read_bytes_per_second,
            "f16": asdict(self.f16),
            "int8": asdict(self.int8),
            "sources": {
                name: {"origin": source["origin"].value, "text": source["text"]}
                for name, source in asdict(self.sources).items()
            },
            "device_id": self.device_id,
            "kind": self.kind.value,
            "is_software": self.is_software,
            "backend": self.backend,
            "role": self.role.value,
            "reason": self.reason,
        }
