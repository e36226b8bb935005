"""Determine which CPUs a file's instructions need, as far as possible, and whether a host's CPU has
them.

x86 files may say it in a note (``elf.notes``), 32-bit ARM files in attributes. Most files say
nothing, since compilers write the note only on request: the code of 64-bit files is searched for
extensions that not every CPU has (``x86_instructions``, ``arm64_flags``). A file may select
code for newer CPUs at run time, so its requirements may remain unknown.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated

import msgspec
import numpy as np

from potluck.portability.elf.file import ElfFile
from potluck.portability.elf.image import ElfImage
from potluck.portability.elf.machines import EM_AARCH64, EM_ARM
from potluck.portability.elf.notes import (
    ADVANCED_SIMD_ARCH,
    CPU_ARCH,
    DIV_USE,
    FP_ARCH,
    arm_attributes,
    x86_level,
)
from potluck.portability.elf.sections import code_ranges
from potluck.portability.elf.tables import read_table
from potluck.portability.finding import Finding, Severity
from potluck.portability.hosts.host import Host
from potluck.portability.instructions.x86_instructions import level_flags, variant_flags, x86_code
from potluck.portability.shipped_toml import read_rows

ILLEGAL_INSTRUCTION = "illegal-instruction"
"""The file loads, but the process that runs its code ends."""

_CHECKING_GLIBC = (2, 33)
"""The first glibc that compares the note with the CPU (its NEWS; ``sysdeps/x86/dl-prop.h``)."""

_ARM64_BASELINE = "armv8-a"
"""The baseline that every 64-bit ARM CPU has."""

_ARM_LEVELS = {
    6: "armv6",
    7: "armv6",
    8: "armv6",
    9: "armv6",
    10: "armv7-a",
    14: "armv8-a",
    22: "armv9-a",
}
"""Tag_CPU_arch of application processors. ``armv6`` with its variants."""

_ARM_FP_FLAGS = {1: "vfp", 2: "vfp", 3: "vfpv3", 4: "vfpv3d16", 5: "vfpv4", 6: "vfpv4"}
_ARM_IDIV_ALLOWED = 2


CODE_BLOCK_BYTES = 2**18
"""Number of words that stay in a core's cache while they are compared with every encoding."""

_Word = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class _Instruction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    flag: str
    what: str
    mask: _Word
    value: _Word


def arm64_flags(image: ElfImage) -> frozenset[str]:
    """Return the flags of ``/proc/cpuinfo`` for the extensions found; none for other machines.

    Instructions have four bytes and are aligned to four bytes, so words can be compared with
    encodings without following the code. Data within code may look like an instruction, and code
    may be selected at run time: what is found *may* be needed. Extensions in the table that are not
    found are not needed; the table has what compilers emit by themselves for ARMv8.1 to ARMv8.6 and
    SVE, and what libraries write by hand.
    """
    if image.header.machine_number != EM_AARCH64:
        return frozenset()
    not_found = dict(_instructions())
    for start, end in code_ranges(image, alignment=4):
        for position in range(start, end - 3, CODE_BLOCK_BYTES):
            num_words = min(end - position, CODE_BLOCK_BYTES) // 4
            words = read_table(image, np.dtype("<u4"), position, num_words, "code")
            for flag, rows in list(not_found.items()):
                if any(np.any(words & row.mask == row.value) for row in rows):
                    del not_found[flag]
    return frozenset(_instructions().keys() - not_found.keys())


@functools.cache
def _instructions() -> Mapping[str, tuple[_Instruction, ...]]:
    by_flag: dict[str, tuple[_Instruction, ...]] = {}
    rows = tuple[_Instruction, ...]
    for row in read_rows(__package__, "arm64_instructions.toml", "instruction", rows):
        by_flag[row.flag] = (*by_flag.get(row.flag, ()), row)
    return by_flag


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuNeeds:
    """``level`` is what the file says that it needs (``x86-64-v3``, ``armv7-a``), empty if unknown,
    and ``flags`` are the same as flags of ``/proc/cpuinfo``. ``code_flags`` are those that its code
    needs without saying so. ``used_flags`` are what anything in it uses beyond that, perhaps after
    checking the CPU. ``variant_flags`` follow from its name (``libfoo_avx2.so``): programs are
    expected to open such a file only on a CPU that has them.
    """

    level: str = ""
    flags: frozenset[str] = frozenset()
    code_flags: frozenset[str] = frozenset()
    used_flags: frozenset[str] = frozenset()
    variant_flags: frozenset[str] = frozenset()


def cpu_needs(elf: ElfFile, image: ElfImage, *, path: str = "") -> CpuNeeds:
    """Return what ``elf``, read from ``image``, needs of CPUs; ``path`` is its path in a wheel."""
    named = variant_flags(elf.machine, path or elf.soname)
    machine = image.header.machine_number
    if machine == EM_AARCH64:
        used_flags = arm64_flags(image)
        level = "" if used_flags else _ARM64_BASELINE
        return CpuNeeds(level=level, used_flags=used_flags, variant_flags=named)
    if machine == EM_ARM:
        level, flags = _arm_needs(image)
        return CpuNeeds(level=level, flags=flags, variant_flags=named)
    level = x86_level(image)
    flags = level_flags().get(level, frozenset())
    code = x86_code(image, (each.name for each in elf.undefined))
    return CpuNeeds(
        level=level,
        flags=flags,
        code_flags=code.needed,
        # Code for CPUs beyond this level is always selected at run time.
        used_flags=code.used & level_flags()["x86-64-v3"],
        variant_flags=named,
    )


def cpu_findings(needs: CpuNeeds, host: Host, *, file: str) -> tuple[Finding, ...]:
    """Return findings about what ``host``'s CPU lacks; none if its features are unknown."""
    if host.cpu_features is None:
        return ()
    if missing := needs.flags - host.cpu_features:
        is_refused = host.libc == "glibc" and host.libc_version >= _CHECKING_GLIBC
        is_x86 = needs.level in level_flags()
        is_fatal = is_x86 and is_refused
        then = (
            "the linker refuses it"
            if is_fatal
            else ("a program that executes one of these crashes")
        )
        return (
            Finding(
                code="cpu-level",
                severity=Severity.FATAL if is_fatal else Severity.LIMIT,
                message=f"it needs a CPU of {needs.level}; this one lacks "
                f"{', '.join(sorted(missing))}, and {then}",
                file=file,
                feature="" if is_fatal else PurePosixPath(file).name,
                fix="build it from source for this CPU, or use a build for the baseline",
            ),
        )
    if missing := needs.variant_flags - host.cpu_features:
        return (
            Finding(
                code="cpu-variant",
                severity=Severity.NOTE,
                message=f"its name says that it is for CPUs with {', '.join(sorted(missing))},"
                " which this one lacks: another variant must be used",
                file=file,
            ),
        )
    if missing := needs.used_flags - host.cpu_features:
        return (
            Finding(
                code="cpu-used",
                severity=Severity.NOTE,
                message=f"it contains instructions of {', '.join(sorted(missing))}, which this"
                " CPU lacks: it must avoid them at run time",
                file=file,
            ),
        )
    return ()


def code_findings(needs: CpuNeeds, host: Host, *, file: str) -> tuple[Finding, ...]:
    """Return the finding about code that needs extensions which ``host``'s CPU lacks; none if its
    features are unknown, or if the file says what it needs.

    The linker opens the file; the process ends when it runs the code. That is fatal if compilers
    use these extensions everywhere, which they do with those of the levels. Functions with others,
    such as ``aes``, are usually called only after checking the CPU, elsewhere.
    """
    if host.cpu_features is None or (needs.flags | needs.variant_flags) - host.cpu_features:
        return ()
    missing = needs.code_flags - host.cpu_features
    if not missing:
        return ()
    common = missing & level_flags()["x86-64-v3"]
    level = next(name for name, flags in level_flags().items() if common <= flags)
    named = f"{', '.join(sorted(missing))}{f' ({level})' if len(common) > 1 else ''}"
    return (
        Finding(
            code=ILLEGAL_INSTRUCTION,
            severity=Severity.FATAL if common else Severity.LIMIT,
            message=f"its code needs {named}, which this CPU lacks: a process that runs it ends"
            " with an illegal instruction",
            file=file,
            feature="" if common else PurePosixPath(file).name,
            fix="use a build for the baseline, such as an older release, or build it from source",
        ),
    )


def _arm_needs(image: ElfImage) -> tuple[str, frozenset[str]]:
    attributes = arm_attributes(image)
    level = _ARM_LEVELS.get(attributes.get(CPU_ARCH, 0), "")
    flags = set()
    if fp := _ARM_FP_FLAGS.get(attributes.get(FP_ARCH, 0)):
        flags.add(fp)
    if attributes.get(ADVANCED_SIMD_ARCH, 0):
        flags.add("neon")
    if attributes.get(DIV_USE, 0) == _ARM_IDIV_ALLOWED:
        flags.add("idiva")
    return level, frozenset(flags)
