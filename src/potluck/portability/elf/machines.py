"""Names of ELF machine numbers."""

from __future__ import annotations

EM_386 = 3
EM_MIPS = 8
EM_S390 = 22
EM_ARM = 40
EM_X86_64 = 62
EM_AARCH64 = 183
EM_ALPHA = 0x9026

WIDE_HASH_MACHINES = (EM_S390, EM_ALPHA)
"""In their 64-bit files, DT_HASH has words of 8 bytes."""

_MACHINES = {
    # 32 bits little endian, 32 bits big endian, 64 bits little endian, 64 bits big endian
    EM_386: ("i686", "", "", ""),
    EM_MIPS: ("mips", "mips", "mips64", "mips64"),
    20: ("", "ppc", "", ""),
    21: ("", "", "ppc64le", "ppc64"),
    EM_S390: ("", "s390", "", "s390x"),
    EM_ARM: ("armv7l", "armv7b", "", ""),
    EM_X86_64: ("x32", "", "x86_64", ""),
    EM_AARCH64: ("", "", "aarch64", "aarch64_be"),
    243: ("riscv32", "", "riscv64", ""),
    258: ("", "", "loongarch64", ""),
}
"""The output of ``uname -m`` on machines that run such files; ``x32`` has no name there."""


def machine_name(number: int, *, is_64_bit: bool, byte_order: str) -> str:
    """Return the machine as ``uname -m`` names it, or ``EM_<number>``. ``byte_order`` is ``<`` or
    ``>``.
    """
    names = _MACHINES.get(number, ("",) * 4)
    return names[2 * is_64_bit + (byte_order == ">")] or f"EM_{number}"
