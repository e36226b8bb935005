"""The output of ``children/opencl.py``: the raw values of an OpenCL driver.

The reader validates them. A value is None if the driver did not provide it.
"""

from __future__ import annotations

import msgspec


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
    """The devices of one driver. ``loader_problem`` says why there is no loader, which does not
    depend on the driver; ``problems`` are the driver's.
    """

    devices: tuple[OpenclDevice, ...] = ()
    loader_problem: str = ""
    problems: tuple[str, ...] = ()
