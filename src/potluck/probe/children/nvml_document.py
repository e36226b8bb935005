"""What ``children/nvml.py`` prints: what NVML told, as it told it; judged by who reads it.

A value is None where NVML did not give it.
"""

from __future__ import annotations

import msgspec


class NvmlMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes in bytes; ``error`` says why there are none."""

    total_bytes: int | None = None
    free_bytes: int | None = None
    error: str = ""


class NvmlInstance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A MIG instance: the part of a card that one GPU instance and compute instance make.

    ``uuid`` is that of CUDA's devices, with its ``MIG-``.
    ``num_slices`` are of the card's compute slices (the 3 of a profile ``3g.40gb``).
    """

    gpu_instance: int
    uuid: str | None = None
    compute_instance: int
    name: str | None
    memory: NvmlMemory
    num_multiprocessors: int | None
    num_slices: int | None


class NvmlCard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A card at NVML's ``index``.

    ``address`` is the PCI address as sysfs writes it, ``chip`` the PCI ids (``10de:2684``), both
    None where NVML gave none (Tegra). ``uuid`` is that of CUDA's device, with its ``GPU-``.
    ``problem`` says why the card cannot be used; what it told before it was lost is there.
    ``unanswered`` has a line for each error: it, and what it cost.
    """

    index: int
    address: str | None = None
    chip: str | None = None
    uuid: str | None = None
    name: str | None = None
    memory: NvmlMemory = NvmlMemory(error="not asked")
    num_cores: int | None = None
    max_sm_clock_mhz: int | None = None
    max_memory_clock_mhz: int | None = None
    bus_width_bits: int | None = None
    compute_capability: tuple[int, int] | None = None
    vbios_version: str | None = None
    is_mig: bool = False
    instances: tuple[NvmlInstance, ...] = ()
    problem: str = ""
    unanswered: tuple[str, ...] = ()


class NvmlDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of it. ``cards`` is None where there is no list of them; ``problems`` say why."""

    cards: tuple[NvmlCard, ...] | None
    driver_version: str | None = None
    cuda_version: int | None = None
    problems: tuple[str, ...] = ()
