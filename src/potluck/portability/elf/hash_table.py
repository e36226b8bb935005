"""Find the symbols in a file's hash table, and define which kinds of them a lookup returns.

The GNU hash table has no specification, see
https://sourceware.org/legacy-ml/binutils/2006-10/msg00377.html.
"""

from __future__ import annotations

from potluck.errors import ElfError
from potluck.portability.elf.dynamic import DT_GNU_HASH, DT_HASH, Dynamic, read_words
from potluck.portability.elf.image import ElfImage
from potluck.portability.elf.machines import WIDE_HASH_MACHINES

MAX_SYMBOLS = 2**20
"""Limit per file. libtorch_cpu.so of PyTorch 2.13 has 75,000; the maximum, with names of 100 bytes,
takes 2 s and 270 MB.
"""

SHN_ABS = 0xFFF1
STB_GLOBAL, STB_WEAK = 1, 2
FOUND_BINDINGS = (STB_GLOBAL, STB_WEAK, 10)
"""Also STB_GNU_UNIQUE."""
STT_TLS = 6
FOUND_TYPES = (0, 1, 2, 5, STT_TLS, 10)
"""Types of symbols that a lookup may return: no type, object, function, common, TLS, indirect."""
VISIBLE = (0, 3)
"""STV_DEFAULT and STV_PROTECTED; the others bind within the object."""

_CHAIN_WORDS = 2**10
_WHAT = "the hash table"


def read_hashed(image: ElfImage, dynamic: Dynamic) -> tuple[int, int]:
    """Return the half-open range of symbols that a lookup can find. If a file has both tables, the
    GNU table is used, as the linker does.
    """
    if DT_GNU_HASH in dynamic.entries:
        return _gnu_hashed(image, dynamic.entries[DT_GNU_HASH])
    if DT_HASH not in dynamic.entries:
        return 0, 0
    is_wide = image.header.is_64_bit and image.header.machine_number in WIDE_HASH_MACHINES
    head = image.loaded(dynamic.entries[DT_HASH], 16 if is_wide else 8, _WHAT)
    return 1, read_words(image, head, has_8_bytes=is_wide)[1]


def _gnu_hashed(image: ElfImage, address: int) -> tuple[int, int]:
    """Chains are stored in the order of symbols, and each ends with a word whose lowest bit is set:
    the end of the last chain is the last symbol.
    """
    num_buckets, first, num_bloom_words, _ = read_words(image, image.loaded(address, 16, _WHAT))
    buckets_address = address + 16 + num_bloom_words * (8 if image.header.is_64_bit else 4)
    buckets = image.loaded(buckets_address, 4 * num_buckets, _WHAT)
    step = 4 * _CHAIN_WORDS
    pieces = (buckets[start : start + step] for start in range(0, len(buckets), step))
    last = max((max(read_words(image, piece)) for piece in pieces), default=0)
    if last < first or not last:
        return first, first
    chain_address = buckets_address + 4 * num_buckets + 4 * (last - first)
    offset, most_bytes = image.locate(chain_address, _WHAT)
    num_words = min(most_bytes // 4, MAX_SYMBOLS)
    for start in range(0, num_words, _CHAIN_WORDS):
        end = min(start + _CHAIN_WORDS, num_words)
        chain = image.read(offset + 4 * start, 4 * (end - start), _WHAT)
        for number, word in enumerate(read_words(image, chain), start):
            if word & 1:
                return first, last + number + 1
    raise ElfError(f"{_WHAT} has an unterminated chain")
