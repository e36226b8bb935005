"""What the assembler makes of an extension is seen in code, and nothing else is."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.kernels.build import require_tool
from support.portability.elf_bytes import Elf, Segment

from potluck.portability.elf.image import open_image
from potluck.portability.instructions.cpu_needs import arm64_flags

INSTRUCTIONS = {
    "atomics": [
        "ldadd w0, w1, [x2]",
        "ldaddal x0, x1, [x2]",
        "ldclrb w0, w1, [x2]",
        "stset x0, [x2]",
        "ldumaxlh w0, w1, [sp]",
        "swpa x0, x1, [x2]",
        "casal w0, w1, [x2]",
        "casb w0, w1, [x2]",
        "caspal x0, x1, x2, x3, [x4]",
    ],
    "lrcpc": ["ldapr x0, [x1]", "ldaprb w0, [x1]"],
    "crc32": ["crc32b w0, w1, w2", "crc32cx w0, w1, x2"],
    "aes": ["aese v0.16b, v1.16b", "aesmc v0.16b, v1.16b", "aesimc v31.16b, v30.16b"],
    "pmull": ["pmull v0.1q, v1.1d, v2.1d", "pmull2 v0.1q, v1.2d, v2.2d"],
    "sha1": ["sha1c q0, s1, v2.4s", "sha1su0 v0.4s, v1.4s, v2.4s"],
    "sha2": ["sha256h q0, q1, v2.4s", "sha256su1 v0.4s, v1.4s, v2.4s"],
    "asimdrdm": ["sqrdmlah v0.8h, v1.8h, v2.8h", "sqrdmlsh v0.2s, v1.2s, v2.2s"],
    "asimddp": [
        "sdot v0.4s, v1.16b, v2.16b",
        "udot v0.2s, v1.8b, v2.8b",
        "sdot v0.4s, v1.16b, v31.4b[3]",
        "udot v0.2s, v1.8b, v2.4b[0]",
    ],
    "fphp": [
        "fadd h0, h1, h2",
        "fmul h0, h1, h2",
        "fmaxnm h0, h1, h2",
        "fmadd h0, h1, h2, h3",
        "scvtf h0, w1",
        "fcvtzs x0, h1",
        "fmov h0, w1",
        "fabs h0, h1",
        "fsqrt h0, h1",
        "frintz h0, h1",
        "fcmp h0, h1",
        "fcmp h0, #0.0",
        "fcsel h0, h1, h2, eq",
        "fmov h0, #1.0",
    ],
    "fcma": [
        "fcmla v0.4s, v1.4s, v2.4s, #90",
        "fcadd v0.4h, v1.4h, v2.4h, #270",
        "fcmla v0.4s, v1.4s, v2.s[1], #180",
    ],
    "jscvt": ["fjcvtzs w0, d1"],
    "frint": ["frint32x s0, s1", "frint64z d0, d1"],
    "flagm": ["cfinv", "rmif x0, #3, #5", "setf8 w0", "setf16 w1"],
    "ilrcpc": ["ldapur x0, [x1, #8]", "stlurb w0, [x1]", "ldapursw x0, [x1]"],
    "sha512": [
        "sha512h q0, q1, v2.2d",
        "sha512h2 q0, q1, v2.2d",
        "sha512su0 v0.2d, v1.2d",
        "sha512su1 v0.2d, v1.2d, v2.2d",
    ],
    "sha3": [
        "eor3 v0.16b, v1.16b, v2.16b, v3.16b",
        "bcax v0.16b, v1.16b, v2.16b, v3.16b",
        "xar v0.2d, v1.2d, v2.2d, #7",
        "rax1 v0.2d, v1.2d, v2.2d",
    ],
    "asimdfhm": [
        "fmlal v0.4s, v1.4h, v2.4h",
        "fmlsl2 v0.4s, v1.4h, v2.4h",
        "fmlsl v0.4s, v1.4h, v2.h[3]",
        "fmlal2 v0.4s, v1.4h, v2.h[7]",
    ],
    "asimdhp": [
        "fadd v0.8h, v1.8h, v2.8h",
        "fmla v0.4h, v1.4h, v2.4h",
        "fcmgt v0.8h, v1.8h, v2.8h",
        "fneg v0.8h, v1.8h",
        "fcvtzs v0.4h, v1.4h",
        "fmla v0.8h, v1.8h, v2.h[3]",
        "fmulx v0.8h, v1.8h, v2.h[3]",
    ],
    "i8mm": [
        "smmla v0.4s, v1.16b, v2.16b",
        "ummla v0.4s, v1.16b, v2.16b",
        "usmmla v0.4s, v1.16b, v2.16b",
        "usdot v0.4s, v1.16b, v2.16b",
        "usdot v0.4s, v1.16b, v2.4b[1]",
        "sudot v0.2s, v1.8b, v2.4b[3]",
    ],
    "bf16": [
        "bfdot v0.4s, v1.8h, v2.8h",
        "bfmmla v0.4s, v1.8h, v2.8h",
        "bfmlalb v0.4s, v1.8h, v2.8h",
        "bfmlalt v0.4s, v1.8h, v2.8h",
        "bfdot v0.4s, v1.8h, v2.2h[1]",
        "bfmlalt v0.4s, v1.8h, v2.h[7]",
        "bfcvt h0, s1",
        "bfcvtn v0.4h, v1.4s",
        "bfcvtn2 v0.8h, v1.4s",
    ],
    "paca": ["retaa", "retab"],
    "sve": [
        "ptrue p0.b",
        "ptrues p15.d, vl8",
        "whilelo p0.s, x0, x1",
        "whilelt p3.b, w0, w1",
        "cntb x0",
        "cntd x0, all, mul #3",
        "incb x0",
        "decw x3",
        "rdvl x0, #1",
    ],
    "sme": ["smstart", "smstop", "smstart sm", "smstop za"],
}
EVERY_CPU = """
    add x0, x1, x2
    ldxr x0, [x1]
    stlxr w2, x0, [x1]
    ldar x0, [x1]
    prfm pldl1keep, [x0, #64]
    ldr x0, [x1, x2, lsl #3]
    ldr q0, [x1], #16
    ldursw x0, [x1, #-4]
    fcvt s0, h1
    fcvt d0, h1
    fcvt h0, s1
    fcmp d0, d1
    frintx s0, s1
    frinta d0, d1
    scvtf s0, w1
    fcsel s0, s1, s2, ne
    fmov s0, #1.0
    fmulx v0.4s, v1.4s, v2.s[1]
    mul v0.8h, v1.8h, v2.h[5]
    mls v0.4s, v1.4s, v2.s[2]
    smlsl2 v0.4s, v1.8h, v2.h[3]
    umull v0.2d, v1.2s, v2.s[0]
    sqdmlal v0.4s, v1.4h, v2.h[1]
    sqrdmulh h0, h1, h2
    ccmn x0, x1, #0, eq
    adcs x0, x1, x2
    stlr w0, [x1]
    fcvt h0, d1
    fcvtl v0.4s, v1.4h
    fadd v0.4s, v1.4s, v2.4s
    fmla v0.2d, v1.2d, v2.d[1]
    fmul s0, s1, v2.s[3]
    fmadd d0, d1, d2, d3
    sqdmulh v0.8h, v1.8h, v2.8h
    sqrdmulh v0.4s, v1.4s, v2.s[1]
    pmull v0.8h, v1.8b, v2.8b
    mla v0.16b, v1.16b, v2.16b
    umlal v0.4s, v1.4h, v2.h[7]
    dup h0, v1.h[3]
    ins v0.h[1], w1
    umov w0, v1.h[2]
    tbl v0.16b, {v1.16b, v2.16b}, v3.16b
    ext v0.16b, v1.16b, v2.16b, #3
    paciasp
    autiasp
    bti c
    ret
    udiv x0, x1, x2
    lslv w0, w1, w2
    rbit x0, x1
    madd x0, x1, x2, x3
    msr tpidr_el0, x0
    svc #0
    hlt #1
    brk #1
"""


def code(tmp_path: Path, *lines: str) -> bytes:
    source, assembled, binary = (tmp_path / name for name in ("code.s", "code.o", "code.bin"))
    source.write_text("\n".join(lines) + "\n")
    assembler = require_tool("aarch64-linux-gnu-as")
    march = "-march=armv8.6-a+sve2+sme+crypto+sha3+fp16fml"
    subprocess.run([assembler, march, "-o", assembled, source], check=True)
    copier = require_tool("aarch64-linux-gnu-objcopy")
    subprocess.run([copier, "-O", "binary", "-j", ".text", assembled, binary], check=True)
    return binary.read_bytes()


def flags_of(content: bytes) -> frozenset[str]:
    segments = [Segment(segment_type=1, flags=5, content=content)]
    return arm64_flags(open_image(Elf(machine=183, segments=segments).build()))


@pytest.mark.parametrize("flag", INSTRUCTIONS)
def test_each_instruction_alone(flag: str, tmp_path: Path) -> None:
    words = code(tmp_path, *INSTRUCTIONS[flag])
    assert len(words) == 4 * len(INSTRUCTIONS[flag])
    for number, text in enumerate(INSTRUCTIONS[flag]):
        found = flags_of(words[4 * number : 4 * number + 4])
        assert found == {flag}, text


def test_what_every_cpu_has_is_not_seen(tmp_path: Path) -> None:
    assert flags_of(code(tmp_path, EVERY_CPU)) == frozenset()
