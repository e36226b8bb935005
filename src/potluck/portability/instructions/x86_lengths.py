"""Find where the instructions of x86-64 code begin.

Instructions have 1 to 15 bytes, so code has to be followed from where a function starts. The length
of an instruction at *every* offset is computed first, for all offsets at once; following the code
is then one addition for each instruction.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, chapter 2 and
appendix A (opcode maps).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

LONGEST = 15
"""The longest instruction in bytes."""

Bytes = npt.NDArray[np.uint8]

_PREFIXES = (0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65, 0x66, 0x67, 0xF0, 0xF2, 0xF3)

_OPERAND_SIZE = 0x66
_ESCAPE, _ESCAPE_38, _ESCAPE_3A = 0x0F, 0x38, 0x3A
_VEX_2, _VEX_3, _EVEX = 0xC5, 0xC4, 0x62


def instruction_starts(code: Bytes, functions: Iterable[tuple[int, int]]) -> npt.NDArray[np.int64]:
    """Return the positions of the instructions of ``functions`` in ``code``, ascending.

    Functions are half-open ranges. One that contains anything but instructions is followed up to
    there.
    """
    lengths = instruction_lengths(code).tobytes()
    is_start = bytearray(len(code))
    for start, end in functions:
        at = start
        while at < end:
            length = lengths[at]
            if not length:
                break
            is_start[at] = 1
            at += length
    return np.flatnonzero(np.frombuffer(is_start, dtype=np.uint8))


def instruction_lengths(code: Bytes) -> Bytes:
    """Return the length of the instruction that begins at each position; 0 if none does."""
    # Reading beyond the end sees zeros.
    padded = np.zeros(len(code) + 2 * LONGEST, dtype=np.uint8)
    padded[: len(code)] = code
    operands = _operand_lengths(padded)
    plain, short, wide = _one_byte_map(padded, operands)
    others = _other_maps(padded, operands)
    for lengths in (plain, short, wide):
        for at, values in others:
            lengths[at] = values
    _add_rex(padded, plain, short, wide)
    _add_prefixes(padded, plain, short)
    plain[plain > LONGEST] = 0
    return plain[: len(code)]


def is_legacy_prefix(values: Bytes) -> npt.NDArray[np.bool_]:
    """Return which bytes are legacy prefixes, where an instruction begins."""
    found: npt.NDArray[np.bool_] = _prefix_table()[values]
    return found


@functools.cache
def _prefix_table() -> npt.NDArray[np.bool_]:
    table = np.zeros(256, dtype=np.bool_)
    table[list(_PREFIXES)] = True
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class _Maps:
    """Tables by opcode: sizes of opcode and immediate (0: not an instruction), usually, with 16-bit
    and with 64-bit operands, and whether operands follow (a ModRM byte).
    """

    sizes: Bytes
    sizes_16: Bytes
    sizes_64: Bytes
    has_operands: Bytes
    escaped_sizes: Bytes
    escaped_has_operands: Bytes


@functools.cache
def _maps() -> _Maps:
    sizes, has_operands = _opcodes(
        invalid="06 07 0E 16 17 1E 1F 27 2F 37 3F 60-62 82 9A C4 C5 CE D4-D6 EA 0F 40-4F",
        operands="00-03 08-0B 10-13 18-1B 20-23 28-2B 30-33 38-3B 63 69 6B 80 81 83-8F C0 C1 C6 C7"
        " D0-D3 D8-DF F6 F7 FE FF",
    )
    sizes[list(_PREFIXES)] = 0
    byte = "04 0C 14 1C 24 2C 34 3C 6A 6B 70-7F 80 83 A8 B0-B7 C0 C1 C6 CD E0-E7 EB"
    sizes[_numbers(byte)] += 1
    sizes[_numbers("C2 CA")] += 2
    sizes[_numbers("C8")] += 3
    sizes[_numbers("E8 E9")] += 4
    sizes[_numbers("A0-A3")] += 8
    by_operand_size = _numbers("05 0D 15 1D 25 2D 35 3D 68 69 81 A9 B8-BF C7")
    sizes_16, sizes_64 = sizes.copy(), sizes.copy()
    sizes[by_operand_size] += 4
    sizes_16[by_operand_size] += 2
    sizes_64[by_operand_size] += 4
    sizes_64[_numbers("B8-BF")] += 4
    escaped_sizes, escaped_has_operands = _opcodes(
        invalid="04 0A 0C 24-27 36 38-3F 7A 7B A6 A7",
        operands="00-03 0D 0F-23 28-2F 40-76 78 79 7C-7F 90-9F A3-A5 AB-AF B0-C7 D0-FF",
    )
    escaped_sizes[_numbers("0F 70-73 A4 AC BA C2 C4-C6")] += 1
    escaped_sizes[_numbers("80-8F")] += 4
    return _Maps(
        sizes=sizes,
        sizes_16=sizes_16,
        sizes_64=sizes_64,
        has_operands=has_operands,
        escaped_sizes=escaped_sizes,
        escaped_has_operands=escaped_has_operands,
    )


def _opcodes(*, invalid: str, operands: str) -> tuple[Bytes, Bytes]:
    sizes = np.ones(256, dtype=np.uint8)
    sizes[_numbers(invalid)] = 0
    has_operands = np.zeros(256, dtype=np.uint8)
    has_operands[_numbers(operands)] = 1
    return sizes, has_operands


def _numbers(ranges: str) -> list[int]:
    """Return the numbers in hexadecimal ranges such as ``04 70-7F``."""
    numbers: list[int] = []
    for each in ranges.split():
        first, _, last = each.partition("-")
        numbers += range(int(first, 16), int(last or first, 16) + 1)
    return numbers


def _operand_lengths(padded: Bytes) -> Bytes:
    """Return for each position the length of a ModRM byte there, with SIB and displacement."""
    mode, register = np.divmod(np.arange(256), 64)
    memory = register % 8
    by_byte = np.ones(256, dtype=np.uint8)
    by_byte[(mode < 3) & (memory == 4)] += 1
    by_byte[(mode == 0) & (memory == 5)] += 4
    by_byte[mode == 1] += 1
    by_byte[mode == 2] += 4
    lengths = by_byte[padded]
    without_base = np.flatnonzero((padded[:-1] & 0xC7) == 4)
    without_base = without_base[(padded[without_base + 1] & 7) == 5]
    lengths[without_base] += 4
    return lengths


def _one_byte_map(padded: Bytes, operands: Bytes) -> Iterator[Bytes]:
    """Yield the lengths of instructions as usual, with 16-bit and with 64-bit operands."""
    maps = _maps()
    of_operands = maps.has_operands[padded]
    of_operands[:-1] *= operands[1:]
    # TEST, the first two of the eight instructions of these opcodes, has an immediate.
    tests = np.flatnonzero((padded[:-1] & 0xFE) == 0xF6)
    tests = tests[(padded[tests + 1] & 0x38) < 0x10]
    for sizes in (maps.sizes, maps.sizes_16, maps.sizes_64):
        lengths = sizes[padded]
        lengths += of_operands
        lengths[tests] += np.where(padded[tests] == 0xF6, 1, sizes[0x81] - 1).astype(np.uint8)
        yield lengths


def _other_maps(padded: Bytes, operands: Bytes) -> list[tuple[npt.NDArray[np.int64], Bytes]]:
    """Return the positions and lengths of instructions of the other maps."""
    found = []
    last = len(padded) - LONGEST
    maps = _maps()

    def add(at: npt.NDArray[np.int64], lengths: Bytes) -> None:
        found.append((at, lengths.astype(np.uint8)))

    at = np.flatnonzero(padded[:last] == _ESCAPE)
    opcode = padded[at + 1]
    lengths = maps.escaped_sizes[opcode]
    lengths += (lengths > 0).astype(np.uint8)
    lengths += maps.escaped_has_operands[opcode] * operands[at + 2]
    lengths[opcode == _ESCAPE_38] = 3 + operands[at[opcode == _ESCAPE_38] + 3]
    lengths[opcode == _ESCAPE_3A] = 4 + operands[at[opcode == _ESCAPE_3A] + 3]
    add(at, lengths)

    at = np.flatnonzero(padded[:last] == _VEX_2)
    add(at, 2 + _vector_lengths(padded, operands, at + 2, np.ones(len(at), np.uint8)))
    at = np.flatnonzero(padded[:last] == _VEX_3)
    lengths = _vector_lengths(padded, operands, at + 3, padded[at + 1] & 0x1F)
    add(at, np.where(lengths, 3 + lengths, 0))
    at = np.flatnonzero(padded[:last] == _EVEX)
    lengths = _vector_lengths(padded, operands, at + 4, padded[at + 1] & 0x0F)
    add(at, np.where(lengths, 4 + lengths, 0))
    return found


def _vector_lengths(
    padded: Bytes, operands: Bytes, at: npt.NDArray[np.int64], opcode_map: npt.NDArray[Any]
) -> Bytes:
    """Return lengths from the opcode on; 0 for maps that do not exist."""
    opcode = padded[at]
    is_escaped = opcode_map == 1
    has_byte = (opcode_map == 3) | (is_escaped & _vector_has_byte()[opcode])
    lengths: Bytes = operands[at + 1] + has_byte.astype(np.uint8) + np.uint8(1)
    lengths[is_escaped & (opcode == 0x77)] = 1  # VZEROUPPER, VZEROALL
    lengths[~np.isin(opcode_map, (1, 2, 3, 5, 6))] = 0
    return lengths


@functools.cache
def _vector_has_byte() -> npt.NDArray[np.bool_]:
    table = np.zeros(256, dtype=np.bool_)
    table[_numbers("70-73 C2 C4-C6")] = True
    return table


def _add_rex(padded: Bytes, plain: Bytes, short: Bytes, wide: Bytes) -> None:
    """Extend the instructions that follow a REX prefix, which is the last prefix."""
    at = np.flatnonzero((padded[:-1] & 0xF0) == 0x40)
    is_wide = (padded[at] & 8) != 0
    for lengths in (short, plain):
        after = np.where(is_wide, wide[at + 1], lengths[at + 1])
        lengths[at] = np.where(after, after + 1, 0)


def _add_prefixes(padded: Bytes, plain: Bytes, short: Bytes) -> None:
    """Extend the instructions that follow legacy prefixes, from the last prefix to the first."""
    is_prefix = is_legacy_prefix(padded)
    is_prefix[-1] = False
    left = np.flatnonzero(is_prefix)
    for _ in range(LONGEST):
        is_last = ~is_prefix[left + 1]
        at = left[is_last]
        is_short = padded[at] == _OPERAND_SIZE
        for lengths in (plain, short):
            after = np.where(is_short, short[at + 1], lengths[at + 1])
            lengths[at] = np.where(after, after + 1, 0)
        is_prefix[at] = False
        left = left[~is_last]
        if not len(left):
            return
