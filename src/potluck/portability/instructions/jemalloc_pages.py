"""Find the largest page size that a copy of jemalloc in a file supports, on 64-bit ARM.

jemalloc is compiled for a page size (``--with-lg-page``, by default that of the machine that builds
it). If the kernel's pages are larger, it writes a message and fails (``pages_boot`` in its
src/pages.c), so that every allocation fails. Smaller pages are supported. The constant is in the
comparison that leads to the message: compilers emit ``cmp x0, #4, lsl #12`` and then ``b.hi`` to
the code that loads the address of the message, or ``b.ls`` past it.

Sources: Arm Architecture Reference Manual for A-profile (ADR, ADRP, ADD, SUBS, B.cond).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from potluck.portability.elf.image import END_OF_ADDRESSES, ElfImage
from potluck.portability.elf.machines import EM_AARCH64
from potluck.portability.elf.sections import code_ranges, find_constant
from potluck.portability.elf.tables import read_table
from potluck.portability.instructions.cpu_needs import CODE_BLOCK_BYTES

_MESSAGE = b"<jemalloc>: Unsupported system page size"

_PAGE_BYTES = (2**12, 2**14, 2**16)
"""The page sizes of 64-bit ARM."""

_WORD = np.dtype("<u4")
_BRANCH_BYTES = 2**20
"""How far a conditional branch reaches, in both directions."""
_MAX_CANDIDATES = 2**14
"""Limit of instructions that refer to the page of a message; real files have a few hundred."""
_MAX_REFERENCES = 2**6
"""Limit of those that refer to a message itself; each copy of jemalloc has one."""
_MAX_WORDS_APART = 6
"""Other instructions that compilers place between those that belong together."""

_HIGHER, _LOWER_OR_SAME = 8, 9
"""Conditions of branches."""


def jemalloc_page_bytes(image: ElfImage) -> int | None:
    """Return the largest page size that the jemalloc in a file supports; 0 if that cannot be
    determined, None if the file contains no jemalloc or is for another machine.
    """
    if image.header.machine_number != EM_AARCH64:
        return None
    offsets = find_constant(image, _MESSAGE)
    if not offsets:
        return None
    addresses = [each for offset in offsets if (each := _address(image, offset)) is not None]
    sizes = [
        size
        for bounds in code_ranges(image, alignment=4)
        for offset in _references(image, bounds, addresses)
        for size in _compared(image, bounds, offset)
    ]
    return min(sizes, default=0)


def _references(image: ElfImage, bounds: tuple[int, int], addresses: list[int]) -> Iterator[int]:
    """Yield the file offsets of instructions that begin to compute one of the addresses."""
    num_candidates = num_references = 0
    pages = np.array([address >> 12 for address in addresses], dtype=np.int64)
    for start in range(*bounds, CODE_BLOCK_BYTES):
        words = _words(image, start, min(bounds[1], start + CODE_BLOCK_BYTES))
        base = _address(image, start)
        if base is None:
            continue
        places = np.flatnonzero((words & 0x1F000000) == 0x10000000)  # ADR and ADRP
        found = words[places].astype(np.int64)
        distance = ((found >> 5 & 0x7FFFF) << 2 | found >> 29 & 3) ^ 1 << 20
        distance -= 1 << 20
        own = base + 4 * places
        is_page = found >> 31 == 1
        is_near = ~is_page & np.isin(own + distance, addresses)
        is_candidate = is_near | is_page & np.isin((own >> 12) + distance, pages)
        for index in np.flatnonzero(is_candidate):
            num_candidates += 1
            if num_candidates > _MAX_CANDIDATES or num_references == _MAX_REFERENCES:
                return
            offset = start + 4 * int(places[index])
            if is_near[index] or _adds_rest(image, bounds, offset, addresses):
                num_references += 1
                yield offset


def _adds_rest(image: ElfImage, bounds: tuple[int, int], offset: int, addresses: list[int]) -> bool:
    """Return whether an ADD after an ADRP completes one of the addresses."""
    words = _words(image, offset, min(bounds[1], offset + 4 * (_MAX_WORDS_APART + 2)))
    register = int(words[0]) & 31
    for word in map(int, words[1:]):
        if word & 0xFFC00000 == 0x91000000 and word >> 5 & 31 == register:
            return any(word >> 10 & 0xFFF == address & 0xFFF for address in addresses)
    return False


def _compared(image: ElfImage, bounds: tuple[int, int], target: int) -> Iterator[int]:
    """Yield the page sizes in comparisons that decide whether the code at ``target`` runs."""
    start = max(bounds[0], target - _BRANCH_BYTES)
    words = _words(image, start, min(bounds[1], target + _BRANCH_BYTES))
    places = np.flatnonzero((words & 0xFF000010) == 0x54000000)  # B.cond
    branches = words[places].astype(np.int64)
    distance = ((branches >> 5 & 0x7FFFF) ^ 1 << 18) - (1 << 18)
    number = (target - start) // 4
    condition = branches & 15
    before = number - (places + distance)
    leads = (condition == _HIGHER) & (before >= 0) & (before <= _MAX_WORDS_APART)
    skips = (condition == _LOWER_OR_SAME) & ((before < 0) | (distance < 0))
    skips &= (places < number) & (number - places <= _MAX_WORDS_APART)
    for place in map(int, places[leads | skips]):
        earlier = words[max(0, place - _MAX_WORDS_APART) : place]
        # SUBS of an immediate that is shifted by 12 bits; into XZR it is CMP
        compared = earlier[(earlier & 0xFFC00000) == 0xF1400000]
        if len(compared):
            size = (int(compared[-1]) >> 10 & 0xFFF) << 12
            if size in _PAGE_BYTES:
                yield size


def _address(image: ElfImage, offset: int) -> int | None:
    """Return the address of a byte; None if no process can have it."""
    address = image.address(offset)
    return None if address is None or address >= END_OF_ADDRESSES else address


def _words(image: ElfImage, start: int, end: int) -> Any:
    return read_table(image, _WORD, start, max(0, end - start) // 4, "code")
