"""What files say of CPUs, and what a host's CPU lacks of it."""

from __future__ import annotations

import struct
from dataclasses import replace
from itertools import pairwise

import pytest
from support.portability.elf_bytes import Elf, Segment, code_segments, property_note

from potluck.portability.elf import notes
from potluck.portability.elf.image import open_image
from potluck.portability.elf.notes import x86_level
from potluck.portability.elf.reader import read_elf
from potluck.portability.finding import Severity
from potluck.portability.hosts.host import Host
from potluck.portability.instructions.cpu_needs import (
    CpuNeeds,
    code_findings,
    cpu_findings,
    cpu_needs,
)
from potluck.portability.instructions.x86_instructions import level_flags

PT_NOTE, PT_GNU_PROPERTY = 4, 0x6474E553
NEEDED, USED, OTHER = 0xC0008002, 0xC0010002, 0xC0000002


def with_note(properties: dict[int, int], segment_type: int = PT_NOTE) -> Elf:
    note = property_note(properties)
    return Elf(segments=[Segment(segment_type=segment_type, content=note, align=8)])


def needs_of(elf: Elf, path: str = "") -> CpuNeeds:
    data = elf.build()
    return cpu_needs(read_elf(open_image(data)), open_image(data), path=path)


def host(cpu_features: frozenset[str] | None, *, libc_version: tuple[int, int] = (2, 36)) -> Host:
    return Host(
        name="host",
        origin="a test",
        machine="x86_64",
        libc="glibc",
        libc_version=libc_version,
        is_complete=True,
        libraries=(),
        other_libraries=frozenset(),
        cpu_features=cpu_features,
    )


@pytest.mark.parametrize(
    ("bits", "level"),
    [(1, "x86-64-v1"), (3, "x86-64-v2"), (7, "x86-64-v3"), (4, "x86-64-v3"), (15, "x86-64-v4")],
)
@pytest.mark.parametrize("segment_type", [PT_NOTE, PT_GNU_PROPERTY])
def test_the_level_that_a_note_asks_for(bits: int, level: str, segment_type: int) -> None:
    elf = with_note({OTHER: 3, NEEDED: bits, USED: 15}, segment_type)
    needs = needs_of(elf)
    assert needs.level == level
    assert needs.flags == level_flags()[level]


def test_a_file_that_does_not_say_is_not_known() -> None:
    for elf in (Elf(), with_note({OTHER: 3}), with_note({USED: 4}), Elf(machine=190)):
        assert (needs_of(elf).level, needs_of(elf).flags) == ("", frozenset())


def test_notes_in_32_bits_and_the_other_byte_order() -> None:
    note = property_note({NEEDED: 2}, is_64_bit=False)
    segments = [Segment(segment_type=PT_NOTE, content=note, align=4)]
    elf = Elf(machine=3, is_64_bit=False, segments=segments)
    assert needs_of(elf).level == "x86-64-v2"
    note = property_note({NEEDED: 2}, order=">")
    segments = [Segment(segment_type=PT_NOTE, content=note, align=8)]
    assert needs_of(Elf(byte_order=">", segments=segments)).level == "x86-64-v2"


def test_properties_mean_something_for_x86_alone() -> None:
    for machine, level in ((183, "armv8-a"), (40, ""), (190, "")):
        elf = replace(with_note({NEEDED: 4}), machine=machine)
        needs = needs_of(elf)
        assert (needs.level, needs.flags) == (level, frozenset())
        assert x86_level(open_image(elf.build())) == ""


def test_other_notes_and_broken_ones_are_passed_over() -> None:
    build_id = struct.pack("<III", 4, 20, 3) + b"GNU\0" + bytes(20) + bytes(4)
    note = property_note({NEEDED: 4})
    for content, level in (
        (build_id + note, "x86-64-v3"),
        (struct.pack("<III", 4, 2**31, 5) + b"GNU\0" + note, ""),
        (note[:-8], ""),
        (note.replace(b"GNU", b"XYZ"), ""),
        (b"\0\0\0", ""),
        (struct.pack("<III", 4, 8, 5) + b"GNU\0" + struct.pack("<II", NEEDED, 2**31), ""),
    ):
        elf = Elf(segments=[Segment(segment_type=PT_NOTE, content=content, align=8)])
        assert needs_of(elf).level == level


def test_notes_are_read_up_to_a_limit_of_all_segments_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = property_note({NEEDED: 1}), property_note({NEEDED: 4})
    monkeypatch.setattr(notes, "_MAX_NOTE_BYTES", len(first))
    segments = [
        Segment(segment_type=PT_NOTE, content=each, align=8) for each in (first, second, second)
    ]
    assert needs_of(Elf(segments=segments)).level == "x86-64-v1"


def test_levels_go_up() -> None:
    levels = list(level_flags().values())
    assert [len(flags) for flags in levels] == [8, 15, 24, 29]
    assert all(lower < higher for lower, higher in pairwise(levels))


def test_what_a_cpu_lacks() -> None:
    needs = needs_of(with_note({NEEDED: 4}))
    old = level_flags()["x86-64-v2"]
    (finding,) = cpu_findings(needs, host(old), file="a.so")
    assert (finding.code, finding.severity, finding.file) == ("cpu-level", Severity.FATAL, "a.so")
    assert "avx2" in finding.message
    assert "sse2" not in finding.message
    (finding,) = cpu_findings(needs, host(old, libc_version=(2, 31)), file="a.so")
    assert (finding.severity, finding.feature) == (Severity.LIMIT, "a.so")
    assert cpu_findings(needs, host(level_flags()["x86-64-v4"]), file="a.so") == ()
    assert cpu_findings(needs, host(None), file="a.so") == ()
    assert cpu_findings(CpuNeeds(), host(frozenset()), file="a.so") == ()


@pytest.mark.parametrize(
    ("path", "flags"),
    [
        ("pkg/libfoo_avx2.so", {"avx2"}),
        ("pkg/libggml-cpu-haswell.so", {"avx2", "fma", "bmi2"}),
        ("pkg/libmkl_avx512.so.2", {"avx512f"}),
        ("pkg.avx2/libfoo.so", set()),
        ("pkg/libavx2foo.so", set()),
    ],
)
def test_variants_by_their_names(path: str, flags: set[str]) -> None:
    needs = needs_of(Elf(), path)
    assert needs.variant_flags == flags
    findings = cpu_findings(needs, host(level_flags()["x86-64-v1"]), file=path)
    assert [each.severity for each in findings] == [Severity.NOTE] * bool(flags)


def test_variants_are_those_of_the_machine() -> None:
    assert needs_of(Elf(machine=183), "libfoo_sve.so").variant_flags == {"sve"}
    assert needs_of(Elf(machine=183), "libfoo_avx2.so").variant_flags == frozenset()


def test_code_of_64_bit_arm_that_has_nothing_more_runs_on_all_of_it() -> None:
    add, sdot = b"\x00\x00\x01\x8b", b"\x00\x94\x82\x4e"
    code = [Segment(segment_type=1, flags=5, content=add)]
    elf = Elf(machine=183, segments=code)
    assert (needs_of(elf).level, needs_of(elf).used_flags) == ("armv8-a", frozenset())
    elf = replace(elf, segments=[Segment(segment_type=1, flags=5, content=add + sdot)])
    needs = needs_of(elf)
    assert (needs.level, needs.used_flags) == ("", frozenset({"asimddp"}))
    (finding,) = cpu_findings(needs, host(frozenset({"asimd"})), file="a.so")
    assert (finding.code, finding.severity) == ("cpu-used", Severity.NOTE)
    assert "asimddp" in finding.message
    assert cpu_findings(needs, host(frozenset({"asimddp"})), file="a.so") == ()


def attributes(*pairs: bytes, vendor: bytes = b"aeabi\0") -> bytes:
    content = b"".join(pairs)
    scope = b"\1" + struct.pack("<I", 5 + len(content)) + content
    return b"A" + struct.pack("<I", 4 + len(vendor) + len(scope)) + vendor + scope


ARM = Elf(machine=40, is_64_bit=False)


@pytest.mark.parametrize(
    ("content", "level", "flags"),
    [
        (attributes(b"\x06\x0a", b"\x0a\x04", b"\x0c\x01"), "armv7-a", {"vfpv3d16", "neon"}),
        (attributes(b"\x05Cortex-A7\0", b"\x06\x0a", b"\x2c\x02"), "armv7-a", {"idiva"}),
        (attributes(b"\x432.9\0", b"\x06\x06", b"\x0a\x02"), "armv6", {"vfp"}),
        (attributes(b"\x20\x01gnu\0", b"\x06\x0e"), "armv8-a", set()),
        (attributes(b"\x06\x0a", vendor=b"other\0"), "", set()),
        (attributes(b"\x06\x0a")[:-1], "", set()),
        (b"B" + attributes(b"\x06\x0a")[1:], "", set()),
        (b"A\xff\xff\xff\xffaeabi\0\x01\0\0\0\0", "", set()),
        (b"A", "", set()),
        (b"", "", set()),
    ],
)
def test_attributes_of_32_bit_arm(content: bytes, level: str, flags: set[str]) -> None:
    needs = needs_of(replace(ARM, sections={".ARM.attributes": content}))
    assert (needs.level, needs.flags) == (level, frozenset(flags))


def test_a_32_bit_arm_cpu_may_lack_vectors() -> None:
    needs = needs_of(replace(ARM, sections={".ARM.attributes": attributes(b"\x06\x0a\x0c\x01")}))
    (finding,) = cpu_findings(needs, host(frozenset({"vfpv3"})), file="a.so")
    assert (finding.severity, finding.feature) == (Severity.LIMIT, "a.so")
    assert "neon" in finding.message


POPCNT = bytes.fromhex("f30fb8c1 c3")
CPUID = bytes.fromhex("0fa2 c3")
AVX512 = bytes.fromhex("62f17c4858c1 c3")
AESENC = bytes.fromhex("660f38dcc1 c3")


def test_code_that_does_not_ask_ends_a_process_on_an_older_cpu() -> None:
    needs = needs_of(Elf(segments=code_segments(POPCNT)))
    assert needs.code_flags == {"popcnt"}
    old, newer = level_flags()["x86-64-v1"], level_flags()["x86-64-v2"]
    (finding,) = code_findings(needs, host(old), file="a/b.so")
    assert (finding.code, finding.severity) == ("illegal-instruction", Severity.FATAL)
    assert "needs popcnt, which this CPU lacks" in finding.message
    assert code_findings(needs, host(newer), file="a/b.so") == ()
    assert code_findings(needs, host(None), file="a/b.so") == ()
    assert cpu_findings(needs, host(old), file="a/b.so") == ()


def test_the_level_is_named_for_several_extensions() -> None:
    needs = CpuNeeds(code_flags=frozenset({"avx2", "bmi2", "popcnt"}))
    (finding,) = code_findings(needs, host(level_flags()["x86-64-v2"]), file="a.so")
    assert "avx2, bmi2 (x86-64-v3)" in finding.message
    (finding,) = code_findings(
        CpuNeeds(code_flags=frozenset({"popcnt", "sse4_2"})),
        host(level_flags()["x86-64-v1"]),
        file="a.so",
    )
    assert "popcnt, sse4_2 (x86-64-v2)" in finding.message


def test_rare_extensions_are_a_limit_since_callers_usually_ask() -> None:
    needs = needs_of(Elf(segments=code_segments(AESENC)))
    (finding,) = code_findings(needs, host(level_flags()["x86-64-v3"]), file="a/b.so")
    assert (finding.severity, finding.feature) == (Severity.LIMIT, "b.so")


def test_code_that_asks_is_a_note() -> None:
    needs = needs_of(Elf(segments=code_segments(POPCNT, AVX512, CPUID)))
    assert not needs.code_flags
    assert needs.used_flags == {"popcnt"}
    old = host(level_flags()["x86-64-v1"])
    assert code_findings(needs, old, file="a.so") == ()
    (finding,) = cpu_findings(needs, old, file="a.so")
    assert (finding.code, finding.severity) == ("cpu-used", Severity.NOTE)


def test_a_file_that_says_what_it_needs_is_told_once() -> None:
    needs = replace(needs_of(with_note({NEEDED: 2})), code_flags=frozenset({"popcnt"}))
    old = host(level_flags()["x86-64-v1"])
    assert code_findings(needs, old, file="a.so") == ()
    assert [each.code for each in cpu_findings(needs, old, file="a.so")] == ["cpu-level"]
    named = CpuNeeds(variant_flags=frozenset({"avx2"}), code_flags=frozenset({"avx2"}))
    assert code_findings(named, old, file="x_avx2.so") == ()
    assert [each.code for each in cpu_findings(named, old, file="x_avx2.so")] == ["cpu-variant"]
