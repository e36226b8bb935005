"""Queries the drivers of Intel GPUs for the cards' memory, in a separate process.

``python -m potluck.probe.children.intel_memory`` prints an ``IntelDocument``. The drivers report it
only through an open render node, and opening one may hang in a driver.

The structures are those of ``include/uapi/drm/i915_drm.h`` (``DRM_I915_QUERY_MEMORY_REGIONS``) and
``xe_drm.h`` (``DRM_XE_DEVICE_QUERY_MEM_REGIONS``) of the kernel, which are the same on all 64-bit
architectures.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import sys
from collections.abc import Callable

import msgspec

from potluck.host.system import System
from potluck.probe.children.documents import IntelCard, IntelDocument

Ioctl = Callable[[int, int, bytearray], object]
"""``fcntl.ioctl``, whose argument the driver reads and changes."""

_I915_QUERY = 0xC010_6479
_I915_QUERY_STRUCT = struct.Struct("=IIQ")  # number of items, flags, address of the items
_I915_ITEM = struct.Struct("=QiIQ")  # query, length, flags, address of the data
_I915_MEMORY_REGIONS = 4
_I915_HEADER_BYTES = 16  # number of regions, and 12 bytes reserved

_XE_DEVICE_QUERY = 0xC028_6440
_XE_QUERY_STRUCT = struct.Struct("=QIIQ16x")  # extensions, query, size, address of the data
_XE_MEMORY_REGIONS = 1
_XE_HEADER_BYTES = 8  # number of regions, and 4 bytes reserved

_REGION = struct.Struct("=HHIQQ64x")
"""A region of both drivers: class, instance, a field not used here, total, and free (i915) or used
(xe)."""

_CLASS_DEVICE = 1
"""The class of the card's own memory in both drivers; 0 is the system's memory."""

_MAX_REPLY_BYTES = 1 << 16
"""Enough for several hundred regions; a GPU has one per tile."""


def ask(system: System) -> IntelDocument:
    """Query every Intel GPU that has a render node."""
    cards, problems = [], []
    for node in system.render_nodes():
        if node.driver not in _QUERIES:
            continue
        try:
            cards.append(_ask(node.device.name, node.driver, str(node.device_file)))
        except OSError as error:
            problems.append(f"{node.driver} on {node.device.name}: {error.strerror or error}")
    return IntelDocument(cards=cards, problems=problems)


def _ask(address: str, driver: str, file: str) -> IntelCard:
    descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        return _QUERIES[driver](address, descriptor, fcntl.ioctl)
    finally:
        os.close(descriptor)


def ask_i915(address: str, descriptor: int, ioctl: Ioctl) -> IntelCard:
    """Query i915. Raise ``OSError`` if it does not support the query (before Linux 5.14)."""
    length = _i915_query(descriptor, ioctl, 0, 0)
    data = _buffer(length)
    _i915_query(descriptor, ioctl, length, ctypes.addressof(data))
    total, rest = _own_memory(data.raw, _I915_HEADER_BYTES)
    # Without CAP_PERFMON everything is reported as free, as in kernels before 6.1.
    free = rest if rest < total else None
    return IntelCard(address=address, total_bytes=total, free_bytes=free)


def _i915_query(descriptor: int, ioctl: Ioctl, length: int, data_address: int) -> int:
    """Return the length of the reply; with ``length``, also write the reply to the buffer."""
    item = ctypes.create_string_buffer(
        _I915_ITEM.pack(_I915_MEMORY_REGIONS, length, 0, data_address), _I915_ITEM.size
    )
    ioctl(descriptor, _I915_QUERY, bytearray(_I915_QUERY_STRUCT.pack(1, 0, ctypes.addressof(item))))
    _, replied, _, _ = _I915_ITEM.unpack(item.raw)
    if replied <= 0:  # a negated error number
        raise OSError(-replied, "does not support memory regions")
    return int(replied)


def ask_xe(address: str, descriptor: int, ioctl: Ioctl) -> IntelCard:
    """Query xe. Raise ``OSError`` if the driver refuses."""
    question = bytearray(_XE_QUERY_STRUCT.pack(0, _XE_MEMORY_REGIONS, 0, 0))
    ioctl(descriptor, _XE_DEVICE_QUERY, question)
    _, _, length, _ = _XE_QUERY_STRUCT.unpack(question)
    data = _buffer(length)
    pointer = ctypes.addressof(data)
    question = bytearray(_XE_QUERY_STRUCT.pack(0, _XE_MEMORY_REGIONS, length, pointer))
    ioctl(descriptor, _XE_DEVICE_QUERY, question)
    total, used = _own_memory(data.raw, _XE_HEADER_BYTES)
    # Without CAP_PERFMON nothing is reported as used.
    free = total - used if 0 < used <= total else None
    return IntelCard(address=address, total_bytes=total, free_bytes=free)


def _buffer(length: int) -> ctypes.Array[ctypes.c_char]:
    if length > _MAX_REPLY_BYTES:
        raise OSError(0, f"requested a buffer of {length} bytes")
    return ctypes.create_string_buffer(length)


def _own_memory(reply: bytes, header_bytes: int) -> tuple[int, int]:
    """Return the size of the card's own memory, over all regions, and its free or used part."""
    number = int.from_bytes(reply[:4], sys.byteorder)
    size = other_size = 0
    for offset in range(header_bytes, len(reply) - _REGION.size + 1, _REGION.size)[:number]:
        memory_class, _, _, total, other = _REGION.unpack_from(reply, offset)
        if memory_class == _CLASS_DEVICE:
            size += total
            other_size += other
    return size, other_size


_QUERIES = {"i915": ask_i915, "xe": ask_xe}

if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(ask(System())))
