"""The output of ``children/nvml.py``: the raw values of NVML.

The reader validates them. A value is None if NVML did not provide it.
"""

from __future__ import annotations

import msgspec


class NvmlMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes in bytes; ``error`` says why there are none."""

    total_bytes: int | None = None
    free_bytes: int | None = None
    error: str = ""


class NvmlInstance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A MIG instance: the part of a card that belongs to one GPU instance and compute instance.

    ``uuid`` is the UUID that CUDA uses, including ``MIG-``. ``num_slices`` is the number of compute
    slices (3 for the profile ``3g.40gb``).
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

    ``address`` is the PCI address as sysfs writes it, and ``chip`` the PCI ids (``10de:2684``);
    both are None if NVML provided none (Tegra). ``uuid`` is the UUID that CUDA uses, including
    ``GPU-``. ``problem`` says why the GPU cannot be used; values that were read before it was lost
    are included. ``unanswered`` has one line per error, with the values that could not be read.
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
    """The whole document. ``cards`` is None if they could not be listed; ``problems`` say why."""

    cards: tuple[NvmlCard, ...] | None
    driver_version: str | None = None
    cuda_version: int | None = None
    problems: tuple[str, ...] = ()
