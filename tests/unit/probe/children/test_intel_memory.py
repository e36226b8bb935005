"""The questions to i915 and xe, against replies laid out by hand from the kernel's headers."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable

import pytest

from potluck.probe.children.documents import IntelCard
from potluck.probe.children.intel_memory import Ioctl, ask_i915, ask_xe

DESCRIPTOR = 7
SYSTEM, DEVICE = 0, 1


def regions(header: bytes, *rows: tuple[int, int, int]) -> bytes:
    """``header``, and a region of 88 bytes for each class, total, and what is free or used."""
    body = [
        struct.pack("=HHI10Q", kind, 0, 0, total, other, *[0] * 8) for kind, total, other in rows
    ]
    assert all(len(row) == 88 for row in body)
    return header + b"".join(body)


def fake_i915(reply: bytes, *, error: int = 0) -> Ioctl:
    """Writes the reply's length or a negated error into the item, and the reply where it says."""

    def ioctl(descriptor: int, request: int, argument: bytearray) -> None:
        # DRM_IOWR(DRM_COMMAND_BASE + DRM_I915_QUERY, struct drm_i915_query)
        assert (descriptor, request) == (
            DESCRIPTOR,
            3 << 30 | 16 << 16 | ord("d") << 8 | 0x40 + 0x39,
        )
        num_items, flags, items = struct.unpack("=IIQ", argument)
        assert (num_items, flags) == (1, 0)
        query, length, flags, data = struct.unpack("=QiIQ", ctypes.string_at(items, 24))
        assert (query, flags) == (4, 0)
        reported_length = -error if error else len(reply)
        ctypes.memmove(items + 8, struct.pack("=i", reported_length), 4)
        if length:
            assert length == len(reply)
            ctypes.memmove(data, reply, len(reply))

    return ioctl


def fake_xe(reply: bytes) -> Ioctl:
    """Writes the reply's size into the question, and the reply where it says."""

    def ioctl(descriptor: int, request: int, argument: bytearray) -> None:
        # DRM_IOWR(DRM_COMMAND_BASE + DRM_XE_DEVICE_QUERY, struct drm_xe_device_query)
        assert (descriptor, request) == (DESCRIPTOR, 3 << 30 | 40 << 16 | ord("d") << 8 | 0x40)
        extensions, query, size, data, *reserved = struct.unpack("=QIIQQQ", argument)
        assert (extensions, query, reserved) == (0, 1, [0, 0])
        if size:
            assert size == len(reply)
            ctypes.memmove(data, reply, len(reply))
        struct.pack_into("=I", argument, 12, len(reply))

    return ioctl


@pytest.mark.parametrize(
    ("rows", "total", "free"),
    [
        ([(SYSTEM, 64 << 30, 64 << 30), (DEVICE, 16 << 30, 15 << 30)], 16 << 30, 15 << 30),
        ([(SYSTEM, 64 << 30, 64 << 30), (DEVICE, 16 << 30, 16 << 30)], 16 << 30, None),
        ([(SYSTEM, 64 << 30, 60 << 30)], 0, None),
    ],
)
def test_i915(rows: list[tuple[int, int, int]], total: int, free: int | None) -> None:
    reply = regions(struct.pack("=I12x", len(rows)), *rows)
    card = ask_i915("0000:03:00.0", DESCRIPTOR, fake_i915(reply))
    assert card == IntelCard(address="0000:03:00.0", total_bytes=total, free_bytes=free)


@pytest.mark.parametrize(
    ("rows", "total", "free"),
    [
        ([(SYSTEM, 64 << 30, 1 << 30), (DEVICE, 12 << 30, 3 << 30)], 12 << 30, 9 << 30),
        ([(DEVICE, 64 << 30, 1 << 30), (DEVICE, 64 << 30, 2 << 30)], 128 << 30, 125 << 30),
        ([(SYSTEM, 64 << 30, 0), (DEVICE, 12 << 30, 0)], 12 << 30, None),
        ([(SYSTEM, 64 << 30, 0)], 0, None),
    ],
)
def test_xe(rows: list[tuple[int, int, int]], total: int, free: int | None) -> None:
    reply = regions(struct.pack("=I4x", len(rows)), *rows)
    card = ask_xe("0000:03:00.0", DESCRIPTOR, fake_xe(reply))
    assert card == IntelCard(address="0000:03:00.0", total_bytes=total, free_bytes=free)


def test_an_old_i915_says_that_it_does_not_know() -> None:
    with pytest.raises(OSError, match="does not support memory regions"):
        ask_i915("0000:03:00.0", DESCRIPTOR, fake_i915(b"", error=22))


@pytest.mark.parametrize(("ask", "fake"), [(ask_i915, fake_i915), (ask_xe, fake_xe)])
def test_a_reply_that_is_cut_off_or_lies_of_its_number_has_only_what_is_there(
    ask: Callable[[str, int, Ioctl], IntelCard], fake: Callable[[bytes], Ioctl]
) -> None:
    header = 16 if ask is ask_i915 else 8
    reply = regions(struct.pack("=I", 0xFFFF_FFFF).ljust(header, b"\0"), (DEVICE, 8 << 30, 1 << 30))
    assert ask("", DESCRIPTOR, fake(reply + b"\1" * 40)).total_bytes == 8 << 30
    assert ask("", DESCRIPTOR, fake(reply[:50])).total_bytes == 0


@pytest.mark.parametrize(("ask", "fake"), [(ask_i915, fake_i915), (ask_xe, fake_xe)])
def test_a_reply_beyond_all_measure_is_refused(
    ask: Callable[[str, int, Ioctl], IntelCard], fake: Callable[[bytes], Ioctl]
) -> None:
    with pytest.raises(OSError, match="1000000 bytes"):
        ask("", DESCRIPTOR, fake(bytes(1_000_000)))
