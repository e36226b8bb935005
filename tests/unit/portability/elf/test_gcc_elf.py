"""Files that the machine's own compiler and linker make, and what its dynamic linker does."""

from __future__ import annotations

import ctypes
import platform
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.kernels.build import require_tool

from potluck.portability.elf.defined_symbols import DefinedSymbol
from potluck.portability.elf.file import ElfFile
from potluck.portability.elf.image import open_image
from potluck.portability.elf.reader import read_elf
from potluck.portability.instructions.cpu_needs import cpu_needs
from potluck.portability.linking.opened_libraries import opened_libraries

Build = Callable[..., Path]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    def compile_library(source: str, *flags: str, script: str = "") -> Path:
        source_file, library = tmp_path / "source.c", tmp_path / "library.so"
        source_file.write_text(source)
        options = ["-shared", "-fPIC", "-O1", *flags]
        if script:
            (tmp_path / "versions.map").write_text(script)
            options.append(f"-Wl,--version-script={tmp_path / 'versions.map'}")
        subprocess.run([require_tool("cc"), "-o", library, source_file, *options], check=True)
        return library

    return compile_library


def read(path: Path) -> ElfFile:
    return read_elf(open_image(path.read_bytes()))


VERSIONED = """
    __asm__(".symver old_answer, answer@V_1");
    __asm__(".symver new_answer, answer@@V_2");
    int old_answer(void) { return 1; }
    int new_answer(void) { return 2; }
"""
SCRIPT = "V_1 { global: answer; }; V_2 { global: answer; local: *; } V_1;"


@pytest.mark.parametrize("hash_style", ["gnu", "sysv", "both"])
def test_versions_that_a_script_defines(build: Build, hash_style: str) -> None:
    path = build(
        VERSIONED,
        f"-Wl,--hash-style={hash_style},-soname,libv.so.1",
        script=SCRIPT,
    )
    elf = read(path)
    assert elf.soname == "libv.so.1"
    assert elf.version_definitions == ("V_1", "V_2")
    assert {each for each in elf.defined if each.name == "answer"} == {
        DefinedSymbol(name="answer", version="V_1", is_default=False),
        DefinedSymbol(name="answer", version="V_2", is_default=True),
    }


@pytest.mark.parametrize("hash_style", ["gnu", "sysv"])
def test_needs_of_a_file_that_defines_nothing(build: Build, hash_style: str) -> None:
    """The hash table of such a file does not tell how many symbols there are."""
    source = """
        #include <stdio.h>
        extern int absent(void) __attribute__((weak));
        __attribute__((constructor, visibility("hidden")))
        void start(void) { if (absent) absent(); else puts("x"); }
    """
    elf = read(build(source, f"-Wl,--hash-style={hash_style}", script="{ local: *; };"))
    assert tuple(elf.defined) == ()
    symbols = {symbol.name: symbol for symbol in elf.undefined}
    assert symbols["absent"].is_weak
    assert symbols["puts"].library == "libc.so.6"
    assert {need.library for need in elf.version_needs} == {"libc.so.6"}


def test_section_headers_are_not_needed(build: Build) -> None:
    path = build(VERSIONED, script=SCRIPT)
    data = bytearray(path.read_bytes())
    with_sections = read_elf(open_image(data))
    struct.pack_into("<Q", data, 40, 0)
    struct.pack_into("<HHH", data, 58, 0, 0, 0)
    assert read_elf(open_image(data)) == with_sections
    path.write_bytes(data)
    assert ctypes.CDLL(str(path)).answer() == 2


def test_an_undefined_symbol_counts_if_a_relocation_names_it(build: Build) -> None:
    """Both files list ``absent_function``; the linker looks for it in one of them."""
    source = "int absent_function(void); int f(void) { return absent_function(); }"
    path = build(source)
    assert [each.name for each in read(path).undefined if not each.is_weak] == ["absent_function"]
    with pytest.raises(OSError, match="undefined symbol: absent_function"):
        ctypes.CDLL(str(path))

    data = path.read_bytes()
    elf = read_elf(open_image(without_calls(data)))
    assert "absent_function" in data.decode("latin-1")
    assert not any(each.name == "absent_function" for each in elf.undefined)
    path.write_bytes(without_calls(data))
    ctypes.CDLL(str(path))


def without_calls(data: bytes) -> bytes:
    """The file with an empty table of relocations for calls, and otherwise the same."""
    pltrelsz = struct.pack("<QQ", 2, 24)
    assert data.count(pltrelsz) == 1
    return data.replace(pltrelsz, struct.pack("<QQ", 2, 0))


def test_flags_of_the_linker(build: Build) -> None:
    plain = read(build("int f;"))
    assert not plain.needs_executable_stack
    assert (plain.static_tls_bytes, plain.is_rpath) == (0, False)
    source = '__thread int x __attribute__((tls_model("initial-exec"))); int f(void) { return x; }'
    path = build(
        source,
        "-Wl,-z,execstack,-z,max-page-size=65536",
        "-Wl,--disable-new-dtags,-rpath,$ORIGIN/lib",
    )
    elf = read(path)
    assert elf.needs_executable_stack
    assert (elf.max_page_bytes, elf.mappable_page_bytes) == (65536, 65536)
    assert elf.static_tls_bytes == 4
    assert (elf.search_path, elf.is_rpath) == (("$ORIGIN/lib",), True)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="a note of x86")
def test_a_level_that_the_linker_notes(build: Build) -> None:
    path = build("int f;", "-Wl,-z,x86-64-v3")
    assert cpu_needs(read(path), open_image(path.read_bytes())).level == "x86-64-v3"
    plain = build("int f;")
    assert cpu_needs(read(plain), open_image(plain.read_bytes())).level == ""


def test_libraries_that_are_opened(build: Build) -> None:
    source = """
        #include <dlfcn.h>
        void *f(void) {
            void *driver = dlopen("libcuda.so.1", RTLD_NOW);
            return driver ? driver : dlopen("/opt/lib/libOpenCL.so.1", RTLD_NOW);
        }
    """
    path = build(source)
    opened = opened_libraries(read(path), open_image(path.read_bytes()))
    assert opened == ("libcuda.so.1", "libOpenCL.so.1")
