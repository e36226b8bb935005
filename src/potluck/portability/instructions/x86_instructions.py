"""Find extensions of x86-64 in a file's code, and whether the code can avoid them.

Compilers use an extension wherever they are allowed to, so a file that was compiled for a newer CPU
contains it everywhere. A file that selects code at run time asks the CPU for its features first,
with the instruction CPUID. Therefore:

- a file without CPUID needs what its code uses, unless its callers know which functions to avoid;
- a file with CPUID may avoid it. But compilers that may use AVX encode *every* instruction on
  vectors and floating-point numbers with the VEX prefix, and those that may use BMI2 (which comes
  with AVX2 and the rest of x86-64-v3) encode shifts by a variable as SHLX and its like: if (almost)
  no function has the older encoding, the whole file was compiled for it.

Functions are found by the unwind tables, which code from assemblers mostly lacks; instructions of
it are not seen, but CPUID is. Not searched for: CMPXCHG16B, FISTTP, and the parts of AVX-512
(every instruction with the EVEX prefix counts as ``avx512f``).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from potluck.portability.elf.frames import read_functions
from potluck.portability.elf.image import ElfImage
from potluck.portability.elf.machines import EM_X86_64
from potluck.portability.elf.sections import code_ranges
from potluck.portability.instructions.x86_lengths import (
    LONGEST,
    Bytes,
    instruction_starts,
    is_legacy_prefix,
)
from potluck.portability.shipped_toml import read_rows, read_toml

_BLOCK_BYTES = 2**21
"""Code that is examined at a time: about 40 MB of memory, and 0.15 s."""

_MAX_BLOCKS = 16
"""Larger files are sampled: this many blocks, spread over the file, are examined."""

_MOST_OLD = 0.02
"""Fraction of functions that may have an old encoding in a file compiled for the new one: those of
the C runtime, and of libraries in assembly that it contains.
"""

_LEAST_FUNCTIONS = 20
"""Fewer functions do not tell how a file was compiled."""

_Byte = Annotated[int, msgspec.Meta(ge=0, lt=256)]
_Positions = npt.NDArray[np.int64]

_LEGACY, _VEX = 0, 1
_FORMS = {"legacy": _LEGACY, "vex": _VEX}
_SHAPE = (len(_FORMS), 4, 4, 2, 256)
"""The shape of a table of instructions: form, map, prefix, 256 bits or not, opcode."""

_IS_QUERY = re.compile(
    r"cpu_?(id|model|indicator|info|features?|supports?|has|is|caps|flags|detect)"
)
"""Names of functions and data of other libraries that tell features: ``__cpu_model`` of libgcc,
``_dl_x86_get_cpu_features`` of glibc, ``cpuinfo_has_x86_avx2``, ``av_get_cpu_flags``.
"""

_CPUID = (_LEGACY, 1, slice(None), 0, 0xA2)
_FIRST_SHIFT = 0xE0
"""The first ModRM byte of a shift of a register; those before it rotate, or are about memory."""

_VECTOR_OPCODES = ((0x10, 0x17), (0x28, 0x2F), (0x50, 0x5F))
_VECTOR_OPCODES_66 = ((0x60, 0x76), (0x7C, 0x7F), (0xC4, 0xC6), (0xD0, 0xFE))
"""Opcodes of the 0F map that are vector instructions with the operand-size prefix only; without it,
they are MMX.
"""


_Flags = Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]


class _Level(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str
    flags: _Flags


class _LevelsTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    level: tuple[_Level, ...]
    variants: dict[str, dict[str, _Flags]]


@functools.cache
def _levels_table() -> _LevelsTable:
    return read_toml(__package__, "cpu_levels.toml", _LevelsTable)


@functools.cache
def level_flags() -> Mapping[str, frozenset[str]]:
    """Return the flags of ``/proc/cpuinfo`` of each x86-64 level, including those of lower levels,
    in ascending order.
    """
    flags: frozenset[str] = frozenset()
    by_level = {}
    for level in _levels_table().level:
        flags |= frozenset(level.flags)
        by_level[level.name] = flags
    return by_level


def variant_flags(machine: str, path: str) -> frozenset[str]:
    """Return the flags that the name of a file stands for: ``avx2`` for ``libfoo_avx2.so``."""
    variants = _levels_table().variants.get(machine, {})
    stem = PurePosixPath(path).name.partition(".so")[0].lower()
    parts = re.split(r"[^a-z0-9]+", stem)
    return frozenset(flag for part in parts for flag in variants.get(part, ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class X86Code:
    """Flags of ``/proc/cpuinfo``: ``needed`` for what the code cannot avoid, and ``used`` for what
    it uses beyond that.
    """

    needed: frozenset[str] = frozenset()
    used: frozenset[str] = frozenset()


class _Instruction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    flag: str
    what: str
    map: Literal[1, 2, 3]
    opcodes: tuple[tuple[_Byte, _Byte], ...]
    form: Literal["legacy", "vex"] = "legacy"
    prefix: tuple[Annotated[int, msgspec.Meta(ge=0, le=3)], ...] = (0, 1, 2, 3)
    long: bool = False


def x86_code(image: ElfImage, imports: Iterable[str] = ()) -> X86Code:
    """Return what the functions of a file use and need; ``imports`` are the names of its undefined
    symbols. Both are empty for other machines, and for files without unwind tables.
    """
    if image.header.machine_number != EM_X86_64:
        return X86Code()
    starts, ends = read_functions(image)
    blocks = list(_blocks(starts, ends))
    step = -(-len(blocks) // _MAX_BLOCKS) or 1
    counts = _Counts()
    for first, last in blocks[::step]:
        counts.add(image, starts[first:last], ends[first:last])
    used = counts.flags()
    if not used:
        return X86Code()
    asks = (
        step > 1
        or counts.has_cpuid
        or any(map(_IS_QUERY.search, imports))
        or _has_cpuid_elsewhere(image, starts, ends)
    )
    needed = used if not asks else used & counts.compiled_for()
    return X86Code(needed=needed, used=used - needed)


def _blocks(starts: _Positions, ends: _Positions) -> Iterator[tuple[int, int]]:
    """Yield the half-open ranges of functions that span at most ``_BLOCK_BYTES``. Larger functions
    are omitted.
    """
    first = 0
    while first < len(starts):
        limit = int(starts[first]) + _BLOCK_BYTES
        last = int(np.searchsorted(ends, limit, "right"))
        if last > first:
            yield first, last
        first = max(last, first + 1)


class _Counts:
    """How often each instruction occurs, and how many functions have vectors, and shifts by a
    variable, in the encodings of AVX and BMI2 (new) or in those of before (old).
    """

    def __init__(self) -> None:
        self._counts = np.zeros(_SHAPE, dtype=np.int64)
        self._num_evex = 0
        self._num_new_vectors = 0
        self._num_old_vectors = 0
        self._num_new_shifts = 0
        self._num_old_shifts = 0

    @property
    def has_cpuid(self) -> bool:
        """Whether a function executes CPUID."""
        return bool(self._counts[_CPUID].any())

    def compiled_for(self) -> frozenset[str]:
        """Return the flags that the compiler was allowed to use in every function."""
        if not _is_throughout(self._num_new_vectors, self._num_old_vectors):
            return frozenset()
        if _is_throughout(self._num_new_shifts, self._num_old_shifts):
            return level_flags()["x86-64-v3"]
        return frozenset({"avx"})

    def add(self, image: ElfImage, starts: _Positions, ends: _Positions) -> None:
        """Count the instructions of successive functions."""
        start, end = int(starts[0]), int(ends[-1])
        code = np.frombuffer(image.read(start, end - start, "code"), dtype=np.uint8)
        starts, ends = starts - start, ends - start
        at = instruction_starts(code, zip(starts.tolist(), ends.tolist(), strict=True))
        found = _found(code, at)
        np.add.at(self._counts.reshape(-1), found.keys, 1)
        self._num_evex += found.num_evex

        def num_functions(positions: _Positions) -> int:
            return len(np.unique(np.searchsorted(starts, positions, "right")))

        is_vector = _vector_table().reshape(-1)[found.keys]
        is_vex = found.keys >= _vector_table()[0].size
        is_shift = _shift_table().reshape(-1)[found.keys]
        self._num_new_vectors += num_functions(found.positions[is_vector & is_vex])
        self._num_old_vectors += num_functions(found.positions[is_vector & ~is_vex])
        self._num_new_shifts += num_functions(found.positions[is_shift])
        self._num_old_shifts += num_functions(found.shifts)

    def flags(self) -> frozenset[str]:
        """Return the flags for all instructions that were counted."""
        flags = {flag for flag, where in _tables().items() if self._counts[where].any()}
        if (self._counts[_VEX] * _vector_table()[_VEX]).any():
            flags.add("avx")
        if self._num_evex:
            flags.add("avx512f")
        return frozenset(flags)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Instructions of the larger maps: where they are, and their index in a flat table; ``shifts``
    are the positions of shifts of a register by CL.
    """

    positions: _Positions
    keys: _Positions
    shifts: _Positions
    num_evex: int


def _found(code: Bytes, at: _Positions) -> _Found:
    padded = np.concatenate([code, np.zeros(LONGEST + 4, dtype=np.uint8)])
    opcode_at, prefix = _skip_prefixes(padded, at)
    first = padded[opcode_at]
    is_legacy = first == 0x0F
    is_short_vex, is_vex = first == 0xC5, first == 0xC4
    keys = np.concatenate(
        [
            _legacy_keys(padded, opcode_at[is_legacy], prefix[is_legacy]),
            _vex_keys(padded, opcode_at[is_short_vex], 1, 1),
            _vex_keys(padded, opcode_at[is_vex], 2, padded[opcode_at[is_vex] + 1] & 3),
        ]
    )
    positions = np.concatenate([at[is_legacy], at[is_short_vex], at[is_vex]])
    is_shift = (first == 0xD3) & (padded[opcode_at + 1] >= _FIRST_SHIFT)
    return _Found(
        positions=positions,
        keys=keys,
        shifts=at[is_shift],
        num_evex=int(np.count_nonzero(first == 0x62)),
    )


def _skip_prefixes(padded: Bytes, at: _Positions) -> tuple[_Positions, _Positions]:
    """Return the positions of the opcodes, and which prefix selects the instruction: a repeat
    prefix before the one for the operand size.
    """
    opcode_at = at.copy()
    prefix = np.zeros(len(at), dtype=np.int64)
    left = np.flatnonzero(is_legacy_prefix(padded[opcode_at]))
    while len(left):
        byte = padded[opcode_at[left]]
        prefix[left[byte == 0xF3]] = 2
        prefix[left[byte == 0xF2]] = 3
        is_short = left[byte == 0x66]
        prefix[is_short] = np.maximum(prefix[is_short], 1)
        opcode_at[left] += 1
        left = left[is_legacy_prefix(padded[opcode_at[left]])]
    opcode_at += (padded[opcode_at] & 0xF0) == 0x40
    return opcode_at, prefix


def _legacy_keys(padded: Bytes, at: _Positions, prefix: _Positions) -> _Positions:
    second = padded[at + 1].astype(np.int64)
    opcode_map = np.where(second == 0x38, 2, np.where(second == 0x3A, 3, 1))
    opcode = np.where(opcode_map == 1, second, padded[at + 2])
    return np.ravel_multi_index((_LEGACY, opcode_map, prefix, 0, opcode), _SHAPE)


def _vex_keys(
    padded: Bytes, at: _Positions, payload: int, opcode_map: npt.NDArray[np.uint8] | int
) -> _Positions:
    """``payload`` is the place of the last byte of the prefix, before the opcode."""
    fields = padded[at + payload].astype(np.int64)
    prefix, is_long = fields & 3, fields >> 2 & 1
    opcode = padded[at + payload + 1]
    return np.ravel_multi_index((_VEX, opcode_map, prefix, is_long, opcode), _SHAPE)


def _has_cpuid_elsewhere(image: ElfImage, starts: _Positions, ends: _Positions) -> bool:
    """Return whether CPUID may be in code outside the known functions."""
    for start, end in code_ranges(image):
        if end - start > _MAX_BLOCKS * _BLOCK_BYTES:
            return True
        code = np.frombuffer(image.read(start, max(0, end - start), "code"), dtype=np.uint8)
        at = np.flatnonzero((code[:-1] == 0x0F) & (code[1:] == 0xA2)) + start
        index = np.searchsorted(starts, at, "right") - 1
        if np.any((index < 0) | (at >= ends[index])):
            return True
    return False


def _is_throughout(num_new: int, num_old: int) -> bool:
    """Return whether a compiler was allowed to use the new encoding in every function."""
    return num_new >= _LEAST_FUNCTIONS and num_old <= _MOST_OLD * (num_new + num_old)


@functools.cache
def _tables() -> Mapping[str, npt.NDArray[np.bool_]]:
    """Return for each flag which instructions it stands for."""
    tables: dict[str, npt.NDArray[np.bool_]] = {}
    rows = tuple[_Instruction, ...]
    for row in read_rows(__package__, "x86_instructions.toml", "instruction", rows):
        where = tables.setdefault(row.flag, np.zeros(_SHAPE, dtype=np.bool_))
        for prefix in row.prefix:
            for first, last in row.opcodes:
                where[_FORMS[row.form], row.map, prefix, int(row.long) :, first : last + 1] = True
    return tables


@functools.cache
def _shift_table() -> npt.NDArray[np.bool_]:
    """Return which instructions are SARX, SHLX and SHRX."""
    table = np.zeros(_SHAPE, dtype=np.bool_)
    table[_VEX, 2, 1:, :, 0xF7] = True
    return table


@functools.cache
def _vector_table() -> npt.NDArray[np.bool_]:
    """Return which instructions are on vectors and floating-point numbers in their registers."""
    table = np.zeros(_SHAPE, dtype=np.bool_)
    table[_VEX] = True
    for flag in ("bmi1", "bmi2"):
        table &= ~_tables()[flag]
    legacy = table[_LEGACY]
    for first, last in _VECTOR_OPCODES:
        legacy[1, :, :, first : last + 1] = True
    for first, last in _VECTOR_OPCODES_66:
        legacy[1, 1:, :, first : last + 1] = True
    for flag in ("ssse3", "sse4_1"):
        legacy[2:, 1] |= _tables()[flag][_LEGACY, 2:, 1]
    return table
