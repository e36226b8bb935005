"""The reader and pyelftools get the same out of this machine's libraries.

pyelftools reads sections, the reader what the dynamic linker loads: they share nothing.
"""

from __future__ import annotations

import functools
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection

from potluck.portability.elf.image import open_image
from potluck.portability.elf.reader import read_elf
from potluck.portability.elf.sections import section

MOST_BYTES = 2**22
MOST_FILES = 60
"""pyelftools takes a tenth of a second for each."""

VISIBLE = ("STV_DEFAULT", "STV_PROTECTED")
FOUND_BINDINGS = ("STB_GLOBAL", "STB_WEAK", "STB_LOOS")
FOUND_TYPES = ("STT_NOTYPE", "STT_OBJECT", "STT_FUNC", "STT_COMMON", "STT_TLS", "STT_LOOS")
ALLOC = 2
HIDDEN, INDEX = 0x8000, 0x7FFF
WEAK, BASE = 2, 1

Row = tuple[str, str, str, bool]


@functools.cache
def libraries() -> list[Path]:
    """An even choice of those of the interpreter, of packages and of the system."""
    roots = [Path(sysconfig.get_paths()[name]) for name in ("stdlib", "platlib")]
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    roots += [Path("/usr/lib") / multiarch, Path("/usr/lib64")]
    found = {
        path.resolve()
        for root in roots
        for path in root.rglob("*.so*")
        if path.is_file() and path.stat().st_size < MOST_BYTES
    }
    paths = sorted(path for path in found if first_bytes(path) == b"\x7fELF")
    return paths[:: max(1, len(paths) // MOST_FILES)]


def first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4)


@pytest.mark.parametrize("path", libraries(), ids=lambda path: path.name)
def test_symbols_and_versions(path: Path) -> None:
    data = path.read_bytes()
    elf = read_elf(open_image(data))
    with path.open("rb") as file:
        oracle = Oracle(ELFFile(file))
        assert [
            (need.library, need.version, need.is_weak) for need in elf.version_needs
        ] == oracle.needs
        assert list(elf.version_definitions) == oracle.definitions
        assert sorted(
            (each.name, each.version, each.library, each.is_weak) for each in elf.undefined
        ) == sorted(oracle.undefined)
        assert sorted((each.name, each.version, each.is_default) for each in elf.defined) == sorted(
            oracle.defined
        )
        assert [f"DT_NEEDED {name}" for name in elf.needed] + [
            f"DT_SONAME {name}" for name in (elf.soname,) if name
        ] == oracle.names("DT_NEEDED") + oracle.names("DT_SONAME")
        rodata = oracle.elf.get_section_by_name(".rodata")
        found = section(open_image(data), ".rodata")
        assert (None if found is None else bytes(found)) == (rodata and rodata.data())


def test_there_is_something_to_compare() -> None:
    assert len(libraries()) >= 20


class Oracle:
    def __init__(self, elf: Any) -> None:
        self.elf = elf
        self.by_index: dict[int, tuple[str, str]] = {}
        self.definitions: list[str] = []
        self.needs: list[tuple[str, str, bool]] = []
        self.undefined: list[Row] = []
        self.defined: list[tuple[str, str, bool]] = []
        self.read_versions()
        self.read_symbols()

    def names(self, tag: str) -> list[str]:
        dynamic = self.elf.get_section_by_name(".dynamic")
        return [
            f"{tag} {getattr(each, tag.removeprefix('DT_').lower())}"
            for each in dynamic.iter_tags(tag)
        ]

    def read_versions(self) -> None:
        if defined := self.elf.get_section_by_name(".gnu.version_d"):
            for definition, names in defined.iter_versions():
                if not definition["vd_flags"] & BASE:
                    self.definitions.append(next(iter(names)).name)
                    self.by_index[definition["vd_ndx"]] = (self.definitions[-1], "")
        if needed := self.elf.get_section_by_name(".gnu.version_r"):
            for library, versions in needed.iter_versions():
                for version in versions:
                    is_weak = bool(version["vna_flags"] & WEAK)
                    self.needs.append((library.name, version.name, is_weak))
                    self.by_index[version["vna_other"] & INDEX] = (version.name, library.name)

    def read_symbols(self) -> None:
        referenced = {
            relocation["r_info_sym"]
            for each in self.elf.iter_sections()
            if isinstance(each, RelocationSection) and each["sh_flags"] & ALLOC
            for relocation in each.iter_relocations()
        }
        indexes = self.elf.get_section_by_name(".gnu.version")
        for number, symbol in enumerate(self.elf.get_section_by_name(".dynsym").iter_symbols()):
            raw = indexes.get_symbol(number)["ndx"] if indexes else 1
            index = raw if isinstance(raw, int) else 1
            version, library = self.by_index.get(index & INDEX, ("", ""))
            info, place = symbol["st_info"], symbol["st_shndx"]
            if symbol["st_other"]["visibility"] not in VISIBLE:
                continue
            if place == "SHN_UNDEF":
                if number in referenced and info["bind"] in ("STB_GLOBAL", "STB_WEAK"):
                    is_weak = info["bind"] == "STB_WEAK"
                    self.undefined.append((symbol.name, version, library, is_weak))
            elif (
                info["bind"] in FOUND_BINDINGS
                and info["type"] in FOUND_TYPES
                and (symbol["st_value"] or place == "SHN_ABS" or info["type"] == "STT_TLS")
            ):
                self.defined.append((symbol.name, version, not index & HIDDEN))
