"""Extensions in code for x86-64, and whether a file can avoid them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from support.portability.elf_bytes import Elf, code_segments

from potluck.portability.elf.image import open_image
from potluck.portability.instructions import x86_instructions
from potluck.portability.instructions.x86_instructions import X86Code, x86_code

RET = bytes.fromhex("c3")
CPUID = bytes.fromhex("0fa2 c3")
POPCNT = bytes.fromhex("f30fb8c1 c3")
OLD_VECTOR = bytes.fromhex("0f58c1 c3")  # addps xmm0, xmm1
AVX_VECTOR = bytes.fromhex("c5f858c1 c3")  # vaddps xmm0, xmm0, xmm1
AVX2_VECTOR = bytes.fromhex("c5fdfec1 c3")  # vpaddd ymm0, ymm0, ymm1
OLD_SHIFT = bytes.fromhex("d3e0 c3")  # shl eax, cl
BMI2_SHIFT = bytes.fromhex("c4e279f7c1 c3")  # shlx eax, ecx, eax

FLAGS = {
    "pni": ["f20f7cc1 haddps", "f20f12c1 movddup", "f30f16c1 movshdup", "f20ff000 lddqu"],
    "ssse3": ["660f3800c1 pshufb", "660f3a0fc108 palignr", "0f381cc1 pabsb mm0, mm1"],
    "sse4_1": [
        "660f3a0bc109 roundsd",
        "660f3a16c001 pextrd",
        "660f3840c1 pmulld",
        "660f3830c1 pmovzxbw",
        "66440f3a22c001 pinsrd xmm8",
    ],
    "sse4_2": ["660f3837c1 pcmpgtq", "f20f38f0c1 crc32", "66f20f38f1c1 crc32 of 16 bits"],
    "popcnt": ["f30fb8c1 popcnt", "f3480fb8c1 popcnt", "66f30fb8c1 popcnt of 16 bits"],
    "abm": ["f30fbdc1 lzcnt"],
    "movbe": ["0f38f000 movbe", "660f38f100 movbe of 16 bits"],
    "aes": ["660f38dcc1 aesenc", "660f3adfc101 aeskeygenassist"],
    "pclmulqdq": ["660f3a44c111 pclmulqdq"],
    "adx": ["660f38f6c1 adcx", "f30f38f6c1 adox"],
    "sha_ni": ["0f38cbc1 sha256rnds2", "0f3accc100 sha1rnds4"],
    "avx": ["c5f858c1 vaddps", "c5fc58c1 vaddps ymm", "c5fde700 vmovntdq ymm", "c5f9fec1 vpaddd"],
    "avx2": ["c5fdfec1 vpaddd ymm", "c4e27d58c1 vpbroadcastd", "c4e3fd00c0d8 vpermq"],
    "fma": ["c4e27198c2 vfmadd132ps"],
    "f16c": ["c4e27913c1 vcvtph2ps", "c4e3791dc100 vcvtps2ph"],
    "bmi1": ["c4e278f2c1 andn", "c4e278f3c9 blsr"],
    "bmi2": ["c4e279f7c1 shlx", "c4e27bf6c1 mulx", "c4e37bf0c105 rorx", "c4e278f5c1 bzhi"],
    "avx512f": ["62f17c4858c1 vaddps zmm"],
    "avx_vnni": ["c4e27150c2 vpdpbusd"],
    "amx_tile": ["c4e27b49c0 tilezero"],
    "amx_int8": ["c4e2735ec2 tdpbssd"],
}
IMPLIED = {"avx2", "fma", "f16c", "avx_vnni", "amx_tile", "amx_int8"}
"""Their instructions have the VEX prefix on vectors, which is AVX."""

EVERY_CPU = [
    "0f58c1 addps",
    "660ffec1 paddd",
    "0fbdc1 bsr",
    "f30fbcc1 tzcnt, which is bsf on older CPUs",
    "f390 pause",
    "f3a4 rep movsb",
    "0f1f00 nop",
    "f30f1efa endbr64",
    "0f0d00 prefetchw",
    "d3e0 shl eax, cl",
    "0fc8 bswap",
]


def code_of(functions: Iterable[bytes], imports: Iterable[str] = ()) -> X86Code:
    return x86_code(open_image(Elf(segments=code_segments(*functions)).build()), imports)


@pytest.mark.parametrize("flag", FLAGS)
def test_instructions_of_an_extension_are_found(flag: str) -> None:
    implied = {"avx"} if flag in IMPLIED else set()
    for line in FLAGS[flag]:
        code = bytes.fromhex(line.split()[0])
        found = code_of([code + RET, CPUID])
        assert found == X86Code(used=frozenset({flag} | implied)), line


def test_instructions_of_every_cpu_are_none() -> None:
    functions = [bytes.fromhex(line.split()[0]) + RET for line in EVERY_CPU]
    assert code_of(functions) == X86Code()


def test_bytes_within_instructions_are_none() -> None:
    move = bytes.fromhex("48b8 f30fb8c1c3c3c3c3 c3")  # movabs with the bytes of popcnt
    assert code_of([move]) == X86Code()


def test_code_that_does_not_ask_needs_what_it_uses() -> None:
    assert code_of([OLD_VECTOR, POPCNT]) == X86Code(needed=frozenset({"popcnt"}))


@pytest.mark.parametrize("name", ["__cpu_model", "cpuinfo_has_x86_avx2", "av_get_cpu_flags"])
def test_a_file_may_ask_through_another(name: str) -> None:
    assert code_of([POPCNT], [name, "memcpy"]) == X86Code(used=frozenset({"popcnt"}))
    assert code_of([POPCNT], ["memcpy"]).needed == {"popcnt"}


def test_a_file_may_ask_in_code_without_unwind_tables() -> None:
    code, index = code_segments(POPCNT)
    (assembly,) = code_segments(CPUID)[:1]
    elf = Elf(segments=[assembly, code, index])
    assert x86_code(open_image(elf.build())).used == {"popcnt"}


def test_a_file_with_avx_in_every_function_needs_it() -> None:
    functions = [CPUID, *[AVX_VECTOR] * 60, AVX2_VECTOR]
    assert code_of(functions) == X86Code(needed=frozenset({"avx"}), used=frozenset({"avx2"}))
    assert code_of([*functions, OLD_VECTOR]).needed == {"avx"}
    assert code_of([*functions, *[OLD_VECTOR] * 5]).needed == set()


def test_a_file_with_bmi2_in_every_function_needs_level_3() -> None:
    functions = [CPUID, *[AVX2_VECTOR] * 30, *[BMI2_SHIFT] * 30]
    assert code_of(functions).needed == {"avx", "avx2", "bmi2"}
    assert code_of([*functions, *[OLD_SHIFT] * 5]).needed == {"avx"}


def test_few_functions_do_not_tell() -> None:
    assert code_of([CPUID, *[AVX_VECTOR] * 10]) == X86Code(used=frozenset({"avx"}))


def test_other_machines_have_nothing_of_it() -> None:
    elf = Elf(machine=183, segments=code_segments(POPCNT))
    assert x86_code(open_image(elf.build())) == X86Code()


def test_a_part_of_a_large_file_is_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is assumed to ask, since that may be in another part."""
    monkeypatch.setattr(x86_instructions, "_BLOCK_BYTES", 64)
    monkeypatch.setattr(x86_instructions, "_MAX_BLOCKS", 4)
    assert code_of([POPCNT] * 100) == X86Code(used=frozenset({"popcnt"}))
    functions = [AVX_VECTOR] * 200
    assert code_of(functions).needed == {"avx"}
