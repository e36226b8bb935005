"""What ``children/opencl.py`` prints: what an OpenCL driver told, as it told it; judged by who
reads it.

A value is None where the driver did not give it.
"""

from __future__ import annotations

import msgspec


class OpenclDevice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device. ``platform`` and ``device`` are its places, from 0, in what the driver shows when
    it is loaded alone; of a platform's devices GPUs come first.

    ``type`` is of the bits ``CL_DEVICE_TYPE_*``. Sizes are in bytes: the memory, and the largest
    buffer. ``is_shared``: the memory is the machine's own. ``pci_address`` is as sysfs writes it.
    """

    platform: int
    device: int
    platform_name: str
    type: int
    name: str | None = None
    vendor: str | None = None
    vendor_id: int | None = None
    driver_version: str | None = None
    memory_bytes: int | None = None
    largest_bytes: int | None = None
    num_units: int | None = None
    clock_mhz: int | None = None
    is_shared: bool | None = None
    has_f16: bool = False
    pci_address: str | None = None


class OpenclDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The devices of one driver. ``loader_problem`` says why there is no loader to ask, which is
    no driver's fault; ``problems`` are the driver's.
    """

    devices: tuple[OpenclDevice, ...] = ()
    loader_problem: str = ""
    problems: tuple[str, ...] = ()
