"""Queries one OpenCL driver for its devices, in a separate process.

``python -m potluck.probe.children.opencl LIBRARY`` prints an ``OpenclDocument``. The environment
makes the loader load no other driver (``probe.gpus.icds``). LIBRARY is the driver's library, which
is used to find out why it could not be loaded, because loaders do not report that. The process may
crash, hang and print anything: ``host.child`` handles that.

Sources: ``CL/cl.h`` and ``CL/cl_ext.h`` (Khronos's OpenCL-Headers) for names and numbers; the
extensions cl_khr_pci_bus_info, cl_nv_device_attribute_query and cl_amd_device_attribute_query for
addresses on the PCI bus.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Callable, Iterator

import msgspec

from potluck.probe.children.documents import OpenclDevice, OpenclDocument

LOADER = "libOpenCL.so.1"

_MAX_PLATFORMS = 8
_MAX_DEVICES = 64
"""More than any driver reports; a higher count is an error."""
_MAX_INFO_BYTES = 1 << 16
"""Maximum bytes per string; lists of extensions have a few thousand."""

_MAX_TEXT_CHARACTERS = 200
"""Maximum length of a printed name: above the longest, and small enough for the output's limit."""

_TYPE_GPU = 1 << 2
_TYPE_ALL = 0xFFFF_FFFF

_PLATFORM_NAME = 0x0902
_DEVICE_TYPE = 0x1000
_DEVICE_MAX_COMPUTE_UNITS = 0x1002
_DEVICE_MAX_CLOCK_FREQUENCY = 0x100C
_DEVICE_MAX_MEM_ALLOC_SIZE = 0x1010
_DEVICE_GLOBAL_MEM_SIZE = 0x101F
_DEVICE_NAME = 0x102B
_DEVICE_VENDOR = 0x102C
_DRIVER_VERSION = 0x102D
_DEVICE_EXTENSIONS = 0x1030
_DEVICE_HOST_UNIFIED_MEMORY = 0x1035
_DEVICE_PCI_BUS_INFO_KHR = 0x410F
_DEVICE_PCI_BUS_ID_NV = 0x4008
_DEVICE_PCI_SLOT_ID_NV = 0x4009
_DEVICE_PCI_DOMAIN_ID_NV = 0x400A
_DEVICE_TOPOLOGY_AMD = 0x4037

_PLATFORM_NOT_FOUND = -1001

_PCI_BUS_INFO = struct.Struct("=IIII")  # domain, bus, device, function
_TOPOLOGY_AMD = struct.Struct("=I17xBBB")  # type, bus, device, function
_TOPOLOGY_AMD_PCIE = 1

_Handles = list[int]


class _Opencl:
    """The loader's functions. Errors and invalid values become None, or no handles."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def platforms(self) -> tuple[_Handles, int]:
        """Return the platforms without duplicates, and the error code, 0 if none."""
        handles, error = self._handles(self._library.clGetPlatformIDs, (), _MAX_PLATFORMS)
        return list(dict.fromkeys(handles)), error

    def devices(self, platform: int) -> _Handles:
        """Return a platform's devices, GPUs first.

        OpenCL reports an error code if there are none.
        """
        found: dict[int, None] = {}
        for kind in (_TYPE_GPU, _TYPE_ALL):
            before = (ctypes.c_void_p(platform), ctypes.c_uint64(kind))
            handles, _ = self._handles(self._library.clGetDeviceIDs, before, _MAX_DEVICES)
            found |= dict.fromkeys(handles)
        return list(found)

    def platform_text(self, platform: int, name: int) -> str | None:
        return _name(self._info(self._library.clGetPlatformInfo, platform, name))

    def name(self, device: int, name: int) -> str | None:
        return _name(self.data(device, name))

    def number(self, device: int, name: int) -> int | None:
        """Return an unsigned number of 4 or 8 bytes."""
        data = self.data(device, name)
        return int.from_bytes(data, sys.byteorder) if len(data) in (4, 8) else None

    def data(self, device: int, name: int) -> bytes:
        return self._info(self._library.clGetDeviceInfo, device, name)

    def _handles(
        self, call: Callable[..., int], before: tuple[object, ...], most: int
    ) -> tuple[_Handles, int]:
        count = ctypes.c_uint32()
        error = call(*before, ctypes.c_uint32(0), None, ctypes.byref(count))
        if error != 0:
            return [], error
        number = min(count.value, most)
        handles = (ctypes.c_void_p * number)()
        error = call(*before, ctypes.c_uint32(number), handles, None) if number else 0
        return [handle for handle in handles if handle] if error == 0 else [], error

    def _info(self, call: Callable[..., int], of: int, name: int) -> bytes:
        size = ctypes.c_size_t()
        what = (ctypes.c_void_p(of), ctypes.c_uint32(name))
        if call(*what, ctypes.c_size_t(0), None, ctypes.byref(size)) != 0:
            return b""
        if not 0 < size.value <= _MAX_INFO_BYTES:
            return b""
        data = ctypes.create_string_buffer(size.value)
        return data.raw if call(*what, size, data, None) == 0 else b""


def main(library: str) -> None:
    """Query the driver and print the document."""
    sys.stdout.buffer.write(msgspec.json.encode(_ask(library)))
    sys.stdout.flush()
    # Skip the exit handlers of drivers, which may crash or hang.
    os._exit(0)


def _ask(library: str) -> OpenclDocument:
    try:
        opencl = _Opencl(ctypes.CDLL(LOADER))
    except OSError as error:
        is_missing = str(error).startswith(LOADER) and "No such file" in str(error)
        problem = (
            f"{LOADER} is not installed" if is_missing else (f"{LOADER} cannot be loaded: {error}")
        )
        return OpenclDocument(loader_problem=problem)
    platforms, status = opencl.platforms()
    if not platforms:
        return OpenclDocument(problems=(_why_nothing(library, status),))
    devices = [
        _device(opencl, handle, platform, device, name)
        for platform, of in enumerate(platforms)
        for name in [opencl.platform_text(of, _PLATFORM_NAME) or ""]
        for device, handle in enumerate(opencl.devices(of))
    ]
    return OpenclDocument(
        devices=tuple(devices), problems=() if devices else ("its library reports no device",)
    )


def _why_nothing(library: str, status: int) -> str:
    try:
        ctypes.CDLL(library)
    except OSError as problem:
        return f"its library cannot be loaded: {problem}"
    if status in (0, _PLATFORM_NOT_FOUND):
        return "its library was loaded, but reports no platform"
    return f"the loader fails with OpenCL error {status}"


def _device(
    opencl: _Opencl, handle: int, platform: int, device: int, platform_name: str
) -> OpenclDevice:
    is_shared = opencl.number(handle, _DEVICE_HOST_UNIFIED_MEMORY)
    return OpenclDevice(
        platform=platform,
        device=device,
        platform_name=platform_name,
        type=opencl.number(handle, _DEVICE_TYPE) or 0,
        name=opencl.name(handle, _DEVICE_NAME),
        vendor=opencl.name(handle, _DEVICE_VENDOR),
        driver_version=opencl.name(handle, _DRIVER_VERSION),
        memory_bytes=opencl.number(handle, _DEVICE_GLOBAL_MEM_SIZE),
        largest_bytes=opencl.number(handle, _DEVICE_MAX_MEM_ALLOC_SIZE),
        num_units=opencl.number(handle, _DEVICE_MAX_COMPUTE_UNITS),
        clock_mhz=opencl.number(handle, _DEVICE_MAX_CLOCK_FREQUENCY),
        is_shared=None if is_shared is None else bool(is_shared),
        has_f16="cl_khr_fp16" in _text(opencl.data(handle, _DEVICE_EXTENSIONS)).split(),
        pci_address=next(_pci_addresses(opencl, handle), None),
    )


def _pci_addresses(opencl: _Opencl, device: int) -> Iterator[str]:
    """Return the device's address on the PCI bus, from any of the extensions that report it."""
    data = opencl.data(device, _DEVICE_PCI_BUS_INFO_KHR)
    if len(data) == _PCI_BUS_INFO.size:
        yield _pci_address(*_PCI_BUS_INFO.unpack(data))
    bus = opencl.number(device, _DEVICE_PCI_BUS_ID_NV)
    slot = opencl.number(device, _DEVICE_PCI_SLOT_ID_NV)
    if bus is not None and slot is not None:
        domain = opencl.number(device, _DEVICE_PCI_DOMAIN_ID_NV) or 0
        yield _pci_address(domain, bus, slot >> 3, slot & 7)
    data = opencl.data(device, _DEVICE_TOPOLOGY_AMD)
    if len(data) == _TOPOLOGY_AMD.size:
        kind, bus, number, function = _TOPOLOGY_AMD.unpack(data)
        if kind == _TOPOLOGY_AMD_PCIE:
            yield _pci_address(0, bus, number, function)  # it does not report the domain


def _pci_address(domain: int, bus: int, device: int, function: int) -> str:
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def _name(data: bytes) -> str | None:
    return _text(data)[:_MAX_TEXT_CHARACTERS] if data else None


def _text(data: bytes) -> str:
    return data.split(b"\0", 1)[0].decode(errors="replace").strip()


if __name__ == "__main__":
    main(sys.argv[1])
