"""The lengths of x86-64 instructions, by the manual and as a disassembler sees them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.kernels.build import require_tool

from potluck.kernels import _core
from potluck.portability.elf.frames import read_functions
from potluck.portability.elf.image import PT_LOAD, open_image
from potluck.portability.instructions.x86_lengths import instruction_lengths, instruction_starts

INSTRUCTIONS = """
c3 ret
55 push rbp
41 57 push r15
48 89 e5 mov rbp, rsp
8b 04 24 mov eax, [rsp]
8b 04 25 00 10 00 00 mov eax, [0x1000]
8b 05 00 00 00 00 mov eax, [rip]
48 8b 44 24 08 mov rax, [rsp + 8]
48 8b 84 24 00 01 00 00 mov rax, [rsp + 0x100]
8b 04 cd 00 00 00 00 mov eax, [rcx * 8]
83 c0 01 add eax, 1
81 c0 00 01 00 00 add eax, 0x100
66 81 c0 00 01 add ax, 0x100
66 05 00 01 add ax, 0x100
48 05 00 01 00 00 add rax, 0x100
b8 00 00 00 00 mov eax, 0
66 b8 00 00 mov ax, 0
48 b8 00 00 00 00 00 00 00 00 movabs rax, 0
48 a1 00 00 00 00 00 00 00 00 movabs rax, [0]
f6 c0 01 test al, 1
f6 d8 neg al
f7 c0 00 00 00 01 test eax, 0x1000000
66 f7 c0 00 01 test ax, 0x100
48 f7 d8 neg rax
e8 00 00 00 00 call
66 66 48 e8 00 00 00 00 call, padded as for thread-local storage
0f 84 00 00 00 00 je
eb 00 jmp
c2 08 00 ret 8
c8 10 00 00 enter 16, 0
0f a2 cpuid
0f 1f 84 00 00 00 00 00 nop
66 66 2e 0f 1f 84 00 00 00 00 00 nop
f3 0f 1e fa endbr64
f3 48 0f b8 c1 popcnt rax, rcx
66 0f 6f 05 00 00 00 00 movdqa xmm0, [rip]
66 0f 70 c0 e4 pshufd xmm0, xmm0, 0xe4
66 0f 38 00 c1 pshufb xmm0, xmm1
66 0f 3a 0f c1 08 palignr xmm0, xmm1, 8
f2 48 0f 38 f1 c1 crc32 rax, rcx
c5 f8 77 vzeroupper
c5 f8 58 c1 vaddps xmm0, xmm0, xmm1
c5 f9 70 c0 e4 vpshufd xmm0, xmm0, 0xe4
c4 e2 7d 58 44 24 08 vpbroadcastd ymm0, [rsp + 8]
c4 e3 fd 00 c0 d8 vpermq ymm0, ymm0, 0xd8
c4 e2 f9 f7 c1 shlx rax, rcx, rax
62 f1 7c 48 58 c1 vaddps zmm0, zmm0, zmm1
62 f3 f5 48 23 c2 55 vshuff64x2 zmm0, zmm1, zmm2, 0x55
62 f1 7c 48 10 44 24 01 vmovups zmm0, [rsp + 0x40]
"""


def lengths_of(code: bytes) -> list[int]:
    return list(map(int, instruction_lengths(np.frombuffer(code, dtype=np.uint8))))


@pytest.mark.parametrize("line", INSTRUCTIONS.strip().splitlines())
def test_lengths(line: str) -> None:
    match = re.match(r"((?:[0-9a-f]{2} )+)", line)
    assert match is not None
    code = bytes.fromhex(match[1])
    assert lengths_of(code + b"\x90" * 16)[0] == len(code)


@pytest.mark.parametrize("code", ["06", "0f 04", "48 48 90", "66 " * 15 + "90", "c4 e0 00 00"])
def test_anything_else_has_no_length(code: str) -> None:
    assert lengths_of(bytes.fromhex(code) + b"\x90" * 16)[0] == 0


def test_code_may_end_within_an_instruction() -> None:
    for code in (b"\x48", b"\x0f", b"\x66", b"\xc4\xe2", b"\x62\xf1", b"\xf7", b""):
        assert len(lengths_of(code)) == len(code)


def test_functions_are_followed_up_to_what_is_not_an_instruction() -> None:
    code = np.frombuffer(b"\x55\x48\x89\xe5\x06\x90\xc3\x90\x31\xc0\xc3", dtype=np.uint8)
    assert instruction_starts(code, [(0, 7), (8, 11)]).tolist() == [0, 1, 8, 10]


def test_a_disassembler_sees_the_same_instructions() -> None:
    """In all functions of the kernels, which use every extension."""
    data = Path(_core.__file__).read_bytes()
    image = open_image(data)
    if image.header.machine != "x86_64":
        pytest.skip("not shown: this is another machine")
    disassembler = require_tool("objdump")
    output = subprocess.run(
        [disassembler, "-d", "--no-show-raw-insn", "-w", _core.__file__],
        capture_output=True,
        check=True,
    ).stdout
    addresses = [int(each, 16) for each in re.findall(rb"^ +([0-9a-f]+):\t", output, re.MULTILINE)]
    (code,) = (each for each in image.of_type(PT_LOAD) if each.flags & 1)
    seen = np.array(addresses) - code.vaddr + code.offset
    starts, ends = read_functions(image)
    index = np.searchsorted(starts, seen, "right") - 1
    seen = seen[(index >= 0) & (seen < ends[index])]
    functions = zip(starts.tolist(), ends.tolist(), strict=True)
    found = instruction_starts(np.frombuffer(data, dtype=np.uint8), functions)
    assert len(starts) > 1000
    assert found.tolist() == sorted(set(seen.tolist()))
