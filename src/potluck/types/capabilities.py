"""A node's capabilities for a scheduler: names, memory, arithmetic rates, and their sources."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from potluck.types.backend import DeviceKind
from potluck.types.hardware import Origin
from potluck.types.unit import Role

SCHEMA = "potluck.capabilities/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flops:
    """Dense rates in TFLOPS (10^12 operations per second, where a multiply-add counts as two), or
    in TOPS for int8.

    None means unknown; rates are never 0. ``fp16`` stands for 16-bit floats; the source says if
    they are bf16.
    """

    fp32: float | None = None
    fp16: float | None = None
    int8: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """How a figure was obtained and its source, or why it is unknown."""

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
    """Whether a format can be run, and in one line how, or why not. It is true if it can."""

    is_supported: bool
    reason: str

    def __bool__(self) -> bool:
        return self.is_supported


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCapabilities:
    """The capabilities of one device of a node, or at the top level those of the node.

    ``model`` is the name of the machine or board, and ``chip`` that of the device. At the top level
    this is the device that serves, which is the fastest that passed its test, or the CPU if none
    did. ``memory`` is the available and ``total_memory`` the total memory, both in MiB; for a
    device that shares the machine's memory, they are the machine's, so the values in ``devices``
    must not be added. ``read_bytes_per_second`` limits the speed of decoding. None means unknown.

    ``is_software`` marks a software-emulated GPU, such as PoCL.

    ``f16`` and ``int8`` say whether the device runs models with weights in that format, and in
    which format it computes. ``backend`` is the backend of the device, empty if none works;
    ``role`` says whether the node uses it, and ``reason`` why not. ``devices`` has an entry of the
    same kind for every device of the node, the CPU first; it is empty in these entries.
    """

    model: str
    chip: str
    memory: int | None
    flops: Flops
    total_memory: int | None
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
        """Return the capabilities in JSON types, with the keys that schedulers use.

        The keys are the names of the fields, in their order, so ``model``, ``chip``, ``memory`` and
        ``flops`` (``fp32``, ``fp16``, ``int8``) come first. The schema is
        ``potluck/capabilities/schema.json``.
        """
        return {"schema": SCHEMA, **self._entry(), "devices": [d._entry() for d in self.devices]}

    def _entry(self) -> dict[str, object]:
        entry: dict[str, object] = msgspec.to_builtins(self)
        del entry["devices"]
        return entry
