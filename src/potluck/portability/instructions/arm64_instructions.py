"""Find extensions of 64-bit ARM that appear in a file's code.

Instructions have four bytes and are aligned to four bytes, so words can be compared with encodings
without following the code. Data within code may look like an instruction, and code may be selected
at run time: what is found *may* be needed. Extensions in the table that are not found are not
needed; the table has what compilers emit by themselves for ARMv8.1 to ARMv8.6 and SVE, and what
libraries write by hand.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Annotated

import msgspec
import numpy as np

from potluck.portability.elf.image import ElfImage
from potluck.portability.elf.machines import EM_AARCH64
from potluck.portability.elf.sections import code_ranges

CODE_BLOCK_BYTES = 2**18
"""Number of words that stay in a core's cache while they are compared with every encoding."""

_Word = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class _Instruction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    flag: str
    what: str
    mask: _Word
    value: _Word


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    instruction: tuple[_Instruction, ...]


def arm64_flags(image: ElfImage) -> frozenset[str]:
    """Return the flags of ``/proc/cpuinfo`` for the extensions found; none for other machines."""
    if image.header.machine_number != EM_AARCH64:
        return frozenset()
    not_found = dict(_instructions())
    for start, end in code_ranges(image, alignment=4):
        for position in range(start, end - 3, CODE_BLOCK_BYTES):
            num_words = min(end - position, CODE_BLOCK_BYTES) // 4
            words = image.table(np.dtype("<u4"), position, num_words, "code")
            for flag, rows in list(not_found.items()):
                if any(np.any(words & row.mask == row.value) for row in rows):
                    del not_found[flag]
    return frozenset(_instructions().keys() - not_found.keys())


@functools.cache
def _instructions() -> Mapping[str, tuple[_Instruction, ...]]:
    file = resources.files(__package__).joinpath("arm64_instructions.toml")
    table = msgspec.convert(tomllib.loads(file.read_text("utf-8")), _Table)
    by_flag: dict[str, tuple[_Instruction, ...]] = {}
    for row in table.instruction:
        by_flag[row.flag] = (*by_flag.get(row.flag, ()), row)
    return by_flag
