"""Names of libraries among constants, and what is made of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.portability.elf_bytes import Elf, Segment, Symbol

from potluck.portability.elf import sections as elf_strings
from potluck.portability.elf.image import open_image
from potluck.portability.elf.reader import read_elf
from potluck.portability.elf.sections import library_names
from potluck.portability.finding import Severity
from potluck.portability.linking.opened_libraries import (
    kind_of,
    library_kinds,
    opened_libraries,
    opened_library_findings,
)

OPENER = Elf(symbols=[Symbol(name="dlopen", is_called=True)], needed=["libdl.so.2"])


def with_constants(*strings: bytes) -> Elf:
    return replace(OPENER, sections={".rodata": b"\0".join((b"", *strings, b""))})


@pytest.mark.parametrize(
    ("string", "name"),
    [
        (b"libcuda.so.1", "libcuda.so.1"),
        (b"libOpenCL.so", "libOpenCL.so"),
        (b"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "libnvidia-ml.so.1"),
        (b"$ORIGIN/../lib/libstdc++-v3.so.6.0.30", "libstdc++-v3.so.6.0.30"),
        (b"libnvrtc.so.%d.%d", "libnvrtc.so"),
        (b"libnvrtc.so.12.%d", "libnvrtc.so.12"),
        (b"libglib-2.0.so.0", "libglib-2.0.so.0"),
    ],
)
def test_names_of_libraries(string: bytes, name: str) -> None:
    assert library_names(open_image(with_constants(b"x", string, b"y").build())) == (name,)


@pytest.mark.parametrize(
    "string",
    [
        b"cannot open libcuda.so.1",
        b"libcuda.so.1: no such file",
        b"lib%s.so",
        b"mylibcuda.so",
        b"libcuda.sox",
        b"libcuda.so.1a",
        b"lib.so",
        b"libx.so." + b"1" * 300,
        b"/" * 300 + b"libx.so",
    ],
)
def test_what_is_no_name(string: bytes) -> None:
    assert library_names(open_image(with_constants(string).build())) == ()


def test_names_come_once_and_in_order() -> None:
    data = with_constants(b"libb.so", b"liba.so.1", b"/opt/libb.so").build()
    assert library_names(open_image(data)) == ("libb.so", "liba.so.1")


def test_strings_at_every_place_around_the_border_of_a_window() -> None:
    for before in range(2**20 - 20, 2**20 + 3):
        data = with_constants(b"x" * before, b"libcuda.so.1", b"x").build()
        assert library_names(open_image(data)) == ("libcuda.so.1",)


def test_a_long_string_is_not_cut_to_a_name_at_a_border() -> None:
    tail = b"libx.so"
    for cut in range(250, 264):
        prefix = b"/" * (2**20 - 256 + cut - len(tail) - 1)
        assert library_names(open_image(with_constants(prefix + tail).build())) == ()


def test_only_constants_are_looked_through() -> None:
    sections = {
        ".rodata.str1.1": b"\0liba.so\0",
        ".data": b"\0libb.so\0",
        ".nv_fatbin": b"\0libc.so\0",
    }
    assert library_names(open_image(replace(OPENER, sections=sections).build())) == ("liba.so",)


def test_without_sections_constants_are_in_segments_that_are_read_alone() -> None:
    elf = replace(OPENER, constants=b"\0libcuda.so.1\0", soname="libx.so")
    assert library_names(open_image(elf.build())) == ("libcuda.so.1", "libdl.so.2", "libx.so")


def test_old_linkers_put_constants_beside_code() -> None:
    data = bytearray(replace(OPENER, constants=b"\0libcuda.so.1\0").build())
    data[64 + 4] = 5  # the flags of the first segment: read and execute
    assert "libcuda.so.1" in library_names(open_image(data))
    data[64 + 4] = 6  # read and write
    assert library_names(open_image(data)) == ()


def test_no_more_strings_are_looked_at_than_any_file_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elf_strings, "_MAX_MARKS", 2)
    data = with_constants(b"liba.so", b"libb.so", b"libc.so").build()
    assert library_names(open_image(data)) == ("liba.so", "libb.so")


def test_what_is_opened() -> None:
    elf = with_constants(b"libcuda.so.1", b"libdl.so.2", b"libfoo.so")
    data = elf.build()
    assert opened_libraries(read_elf(open_image(data)), open_image(data)) == (
        "libcuda.so.1",
        "libfoo.so",
    )


def test_who_opens_nothing_has_no_libraries() -> None:
    data = replace(with_constants(b"libcuda.so.1"), symbols=[Symbol(name="puts")]).build()
    assert opened_libraries(read_elf(open_image(data)), open_image(data)) == ()


@pytest.mark.parametrize("opener", ["dlopen", "dlmopen", "__libc_dlopen_mode", "uv_dlopen"])
def test_ways_to_open(opener: str) -> None:
    data = replace(with_constants(b"libcuda.so.1"), symbols=[Symbol(name=opener)]).build()
    assert opened_libraries(read_elf(open_image(data)), open_image(data))


@pytest.mark.parametrize(
    ("soname", "kind"),
    [
        ("libcuda.so.1", "cuda-driver"),
        ("libcudart.so.12", "cuda-runtime"),
        ("libcudnn_ops_infer.so.8", "cudnn"),
        ("libnvrtc-builtins.so.12.4", "nvrtc"),
        ("libnvinfer_plugin.so.10", "tensorrt"),
        ("libOpenCL.so.1", "opencl"),
        ("libvulkan.so.1", "vulkan"),
        ("libamdhip64.so.6", "rocm"),
        ("libmathdx.so.0", "mathdx"),
        ("libGLX_nvidia.so.0", "opengl"),
        ("libcudagadget.so", "other"),
    ],
)
def test_kinds(soname: str, kind: str) -> None:
    found = kind_of(soname)
    assert (found.name if found else "other") == kind


def test_every_row_of_the_table_is_of_use() -> None:
    stems = [stem for kind in library_kinds() for stem in kind.stems]
    assert len(stems) == len(set(stems))
    for kind in library_kinds():
        for stem in kind.stems:
            assert kind_of(stem.replace("*", "x") + ".so.1") == kind


def test_findings_for_what_is_not_there() -> None:
    opened = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libfoo.so.2")
    found = opened_library_findings(opened, lambda name: name == "libcuda.so", file="a.so")
    assert [(each.library, each.severity, each.file) for each in found] == [
        ("libnvidia-ml.so.1", Severity.LIKELY, "a.so"),
        ("libfoo.so.2", Severity.NOTE, "a.so"),
    ]
    assert "management" in found[0].message
    assert "driver" in found[0].fix
    (both,) = opened_library_findings(opened[:2], lambda _: False, file="a.so")
    assert "libcuda.so.1 or libcuda.so" in both.message


def test_segments_that_overlap_are_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elf_strings, "_MAX_MARKS", 3)
    names = b"\0liba.so\0libb.so\0"
    segments = [Segment(segment_type=1, content=names)]  # within the segment of the whole file
    data = Elf(soname="libz.so", segments=segments).build()
    assert library_names(open_image(data)) == ("liba.so", "libb.so", "libz.so")
