"""Strings among the constants of a file, and names of shared libraries among them.

For names, a whole C string counts, after any directories: ``libcuda.so.1``,
``/usr/lib/libfoo.so``. A name within a sentence does not, nor a format string (``lib%s.so``), nor
strings without a terminator, such as Rust's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from potluck.portability.elf.image import (
    PF_R,
    PF_W,
    PF_X,
    PT_LOAD,
    ElfData,
    ElfImage,
    open_image,
    release_pages,
)
from potluck.portability.elf.sections import joined_ranges, read_sections

_CONSTANTS = (".rodata", ".lrodata")
_NAME = re.compile(
    rb"(?:[^\0\s]*/)?(lib[A-Za-z0-9_+.-]+?\.so(?:\.[0-9]+)*)(?:\.%[0-9]*[a-z])*", re.ASCII
)
"""A version that is formatted at run time (``libnvrtc.so.%d.%d``) is removed."""

_MARK = b".so"
_MAX_STRING_BYTES = 2**8
_WINDOW_BYTES = 2**20
_MAX_TEXTS = 16
_MAX_MARKS = 2**16
"""Limit of strings with ``.so`` that are examined per file. libtorch_cpu.so of PyTorch 2.13 has 58;
a file with more than this limit is probably hostile.
"""


def library_names(data: ElfData) -> tuple[str, ...]:
    """Return the names without duplicates, in the order of the file. Raise ``ElfError`` as
    ``read_elf`` does.
    """
    ranges = _constants(open_image(data))
    names: dict[str, None] = {}
    for text in _marked_strings(data, ranges):
        match = _NAME.fullmatch(text)
        if match is not None:
            names[match[1].decode("ascii")] = None
    return tuple(names)


def find_constant(data: ElfData, text: bytes) -> tuple[int, ...]:
    """Return the file offsets of a text, at most 16 of them. Raise ``ElfError`` as ``read_elf``
    does.
    """
    offsets: list[int] = []
    for start, end in _constants(open_image(data)):
        for position in range(start, min(end, len(data)), _WINDOW_BYTES):
            window = bytes(data[position : min(end, position + _WINDOW_BYTES + len(text) - 1)])
            found = window.find(text)
            while found >= 0 and len(offsets) < _MAX_TEXTS:
                offsets.append(position + found)
                found = window.find(text, found + 1)
            release_pages(data)
    return tuple(offsets)


def _constants(image: ElfImage) -> tuple[tuple[int, int], ...]:
    """Return half-open ranges of the file without overlaps. Without sections these are the
    read-only segments, or else also the executable ones: older linkers put constants next to code.
    """
    ranges = [
        (each.offset, each.offset + each.num_bytes)
        for each in read_sections(image)
        if each.is_loaded and not each.is_code and each.name.startswith(_CONSTANTS)
    ]
    for flags in (PF_R, PF_R | PF_X):
        if not ranges:
            ranges = [
                (int(each["offset"]), int(each["offset"]) + int(each["filesz"]))
                for each in image.of_type(PT_LOAD)
                if each["flags"] & (PF_R | PF_W | PF_X) == flags
            ]
    return tuple(joined_ranges(ranges))


def _marked_strings(data: ElfData, ranges: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    """Yield C strings that contain the mark, without their terminators."""
    num_marks = 0
    for start, end in ranges:
        for position in range(start, min(end, len(data)), _WINDOW_BYTES):
            # A string at a boundary is complete in one of the two windows.
            window_start = max(start, position - _MAX_STRING_BYTES)
            window = bytes(data[window_start : min(end, position + _WINDOW_BYTES)])
            found = window.find(_MARK)
            while found >= 0:
                num_marks += 1
                last = window.find(b"\0", found)
                if num_marks > _MAX_MARKS or last < 0:
                    break
                before = window.rfind(b"\0", max(0, found - _MAX_STRING_BYTES), found)
                is_whole = before >= 0 or window_start == start
                if is_whole and last - before - 1 <= _MAX_STRING_BYTES:
                    yield window[before + 1 : last]
                found = window.find(_MARK, last)
            release_pages(data)
