from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest
from support.kernels.build import require_tool
from support.portability.gpu_libraries import AARCH64, FIRST_FUNCTION, X86_64, shared_object

from potluck.portability.elf.image import open_image
from potluck.portability.instructions.constant_functions import constant_results

# As gcc and clang write them: objdump -d of functions that return these numbers.
X86_64_CODE = {
    "b8 01 00 00 00 c3": 1,
    "31 c0 c3": 0,
    "33 c0 c3": 0,
    "f3 0f 1e fa b8 f0 32 00 00 c3": 13040,
    "f3 0f 1e fa 55 48 89 e5 b8 08 2f 00 00 5d c3": 12040,
    "f3 0f 1e fa 31 c0 f3 c3": 0,
    "b8 ff ff ff ff c3": -1,
}
X86_64_OTHER = [
    "8b 05 10 00 00 00 c3",  # mov 0x10(%rip),%eax
    "b8 01 00 00 00 eb 05",  # mov $1,%eax; jmp
    "31 c0 48 8d 3d 00 00 00 00 e9",  # xor %eax,%eax; lea; jmp to another function
    "31 c9 c3",  # xor %ecx,%ecx
    "b8 01 00",
    "",
]
AARCH64_CODE = {
    "20 00 80 52 c0 03 5f d6": 1,  # mov w0, #1; ret
    "00 00 80 52 c0 03 5f d6": 0,
    "e0 03 1f 2a c0 03 5f d6": 0,  # mov w0, wzr
    "5f 24 03 d5 00 5e 86 52 c0 03 5f d6": 13040,  # bti c; mov w0, #13040
    "00 00 80 12 c0 03 5f d6": -1,  # mov w0, #-1
    "e0 ac 8c 52 20 00 a0 72 c0 03 5f d6": 0x16567,  # mov w0, #0x6567; movk w0, #1, lsl #16
}
AARCH64_OTHER = [
    "20 00 80 d2 c0 03 5f d6",  # mov x0, #1
    "21 00 80 52 c0 03 5f d6",  # mov w1, #1
    "20 00 80 52 00 00 00 14",  # mov w0, #1; b
    "00 00 40 b9 c0 03 5f d6",  # ldr w0, [x0]
    "c0 03 5f d6",
    "20 00 80 52",
]


def results(code: str, machine: int) -> dict[str, int]:
    data = shared_object({}, {"f": bytes.fromhex(code)}, machine=machine)
    return constant_results(open_image(data), ["f"])


@pytest.mark.parametrize(("code", "number"), X86_64_CODE.items())
def test_x86_64(code: str, number: int) -> None:
    assert results(code, X86_64) == {"f": number}


@pytest.mark.parametrize(("code", "number"), AARCH64_CODE.items())
def test_aarch64(code: str, number: int) -> None:
    assert results(code, AARCH64) == {"f": number}


@pytest.mark.parametrize("code", X86_64_OTHER)
def test_what_does_more_on_x86_64_is_left_out(code: str) -> None:
    assert results(code, X86_64) == {}


@pytest.mark.parametrize("code", AARCH64_OTHER)
def test_what_does_more_on_aarch64_is_left_out(code: str) -> None:
    assert results(code, AARCH64) == {}


def test_other_machines_say_nothing() -> None:
    assert results("b8 01 00 00 00 c3", 243) == {}


def test_a_name_that_ends_another_is_told_apart() -> None:
    one, zero = bytes.fromhex("b8 01 00 00 00 c3"), bytes.fromhex("31 c0 c3")
    data = shared_object({}, {"wp_is_cuda_enabled": one, "is_cuda_enabled": zero})
    names = ["is_cuda_enabled", "wp_is_cuda_enabled", "cuda_enabled", "absent"]
    assert constant_results(open_image(data), names) == {
        "is_cuda_enabled": 0,
        "wp_is_cuda_enabled": 1,
    }


def test_an_address_outside_the_file_says_nothing() -> None:
    sound = shared_object({}, {"f": b"\x31\xc0\xc3"})
    assert constant_results(open_image(sound), ["f"]) == {"f": 0}
    record = struct.pack("<BBHQQ", 0x12, 0, 1, FIRST_FUNCTION, 3)
    moved = struct.pack("<BBHQQ", 0x12, 0, 1, 0x7000000, 3)
    assert sound.count(record) == 1
    assert constant_results(open_image(sound.replace(record, moved)), ["f"]) == {}


SOURCE = """
int one(void) { return 1; }
int zero(void) { return 0; }
int toolkit(void) { return 13040; }
int large(void) { return 0x12345678; }
int negative(void) { return -2; }
extern int variable; int variable = 3;
int varying(void) { return variable; }
int adding(int x) { return x + 1; }
"""
RETURNED = {"one": 1, "zero": 0, "toolkit": 13040, "large": 0x12345678, "negative": -2}


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["gcc", "aarch64-linux-gnu-gcc"])
@pytest.mark.parametrize("level", ["-O0", "-O2"])
def test_what_a_compiler_makes(compiler: str, level: str, tmp_path: Path) -> None:
    source, library = tmp_path / "numbers.c", tmp_path / "numbers.so"
    source.write_text(SOURCE, encoding="utf-8")
    options = [level, "-shared", "-fPIC", "-nostdlib", "-o", str(library)]
    command = [require_tool(compiler), *options, str(source)]
    subprocess.run(command, check=True)
    assert (
        constant_results(open_image(library.read_bytes()), [*RETURNED, "varying", "adding"])
        == RETURNED
    )
