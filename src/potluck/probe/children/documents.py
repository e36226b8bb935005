"""The outputs of the programs in this package that load vendors' libraries.

They have the raw values of the libraries, and the readers validate them. A value is None if the
library did not provide it.
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
    """The output of ``nvml.py``.

    ``cards`` is None if they could not be listed; ``problems`` say why.
    """

    cards: tuple[NvmlCard, ...] | None
    driver_version: str | None = None
    cuda_version: int | None = None
    problems: tuple[str, ...] = ()


class OpenclDevice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device. ``platform`` and ``device`` are its indexes, from 0, when only this driver is
    loaded; the GPUs of a platform come first.

    ``type`` has the bits ``CL_DEVICE_TYPE_*``. The sizes of the memory and of the largest buffer
    are in bytes. ``is_shared`` means that the memory is the machine's. ``pci_address`` is as sysfs
    writes it.
    """

    platform: int
    device: int
    platform_name: str
    type: int
    name: str | None = None
    vendor: str | None = None
    driver_version: str | None = None
    memory_bytes: int | None = None
    largest_bytes: int | None = None
    num_units: int | None = None
    clock_mhz: int | None = None
    is_shared: bool | None = None
    has_f16: bool = False
    pci_address: str | None = None


class OpenclDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The output of ``opencl.py``: the devices of one driver.

    ``loader_problem`` says why there is no loader, which does not depend on the driver;
    ``problems`` are the driver's.
    """

    devices: tuple[OpenclDevice, ...] = ()
    loader_problem: str = ""
    problems: tuple[str, ...] = ()


class IntelCard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A GPU's own memory, in bytes, 0 if it has none; ``free_bytes`` is None if not reported.

    ``address`` is that on the PCI bus: ``0000:03:00.0``.
    """

    address: str
    total_bytes: int
    free_bytes: int | None


class IntelDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The output of ``intel_memory.py``: the GPUs that responded, a line for each that did not."""

    cards: list[IntelCard]
    problems: list[str] = []
