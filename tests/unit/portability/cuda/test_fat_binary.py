from __future__ import annotations

import mmap
import random
import struct
from pathlib import Path

import pytest
from support.portability.gpu_libraries import LTO_IR, PTX, SASS, Entry, fat_binary, shared_object

from potluck.errors import FatBinaryError
from potluck.portability.cuda import fat_binary as module
from potluck.portability.cuda.fat_binary import (
    CodeKind,
    GpuCode,
    GpuModule,
    gpu_modules,
    read_fat_binaries,
)
from potluck.portability.elf.image import open_image


def code(kind: CodeKind, capability: tuple[int, int], version: tuple[int, int]) -> GpuCode:
    return GpuCode(kind=kind, capability=capability, version=version)


def read(data: bytes) -> tuple[GpuModule, ...]:
    return read_fat_binaries(memoryview(data))


def test_each_entry_says_its_architecture() -> None:
    data = fat_binary(
        Entry(kind=SASS, architecture=75),
        Entry(kind=SASS, architecture=121, version=(1, 8), header_bytes=112),
        Entry(kind=PTX, architecture=90, version=(8, 7), flags=0x2011),
    )
    (found,) = read(data)
    assert set(found.codes) == {
        code(CodeKind.SASS, (7, 5), (1, 7)),
        code(CodeKind.SASS, (12, 1), (1, 8)),
        code(CodeKind.PTX, (9, 0), (8, 7)),
    }
    assert found.count == 1


@pytest.mark.parametrize("flags", [0x11, 0x2011, 0x8011])
def test_code_is_read_compressed_or_not(flags: int) -> None:
    (found,) = read(fat_binary(Entry(kind=SASS, architecture=80, flags=flags)))
    assert found.codes == (code(CodeKind.SASS, (8, 0), (1, 7)),)


def test_code_that_no_driver_takes_is_of_another_kind() -> None:
    (found,) = read(fat_binary(Entry(kind=LTO_IR, architecture=80)))
    assert found.codes[0].kind is CodeKind.OTHER


def test_fat_binaries_of_one_sort_are_counted_together() -> None:
    common = fat_binary(Entry(kind=SASS, architecture=80), Entry(kind=SASS, architecture=90))
    other_order = fat_binary(Entry(kind=SASS, architecture=90), Entry(kind=SASS, architecture=80))
    rare = fat_binary(Entry(kind=PTX, architecture=80, version=(8, 0)))
    found = read(common + bytes(24) + rare + other_order + bytes(7))
    assert [each.count for each in found] == [2, 1]
    assert len(found[0].codes) == 2


def test_one_without_entries_is_none() -> None:
    assert read(fat_binary() + bytes(8)) == ()


def test_magic_within_code_begins_nothing() -> None:
    inner = fat_binary(Entry(kind=SASS, architecture=50))
    (found,) = read(fat_binary(Entry(kind=SASS, architecture=90, code=inner)))
    assert [each.capability for each in found.codes] == [(9, 0)]


def test_the_section_of_a_library() -> None:
    data = fat_binary(Entry(kind=SASS, architecture=86))
    (found,) = gpu_modules(open_image(shared_object({".rodata": b"x" * 5, ".nv_fatbin": data})))
    assert found.codes[0].capability == (8, 6)


def test_code_still_to_be_linked_counts_where_there_is_no_other() -> None:
    early = fat_binary(Entry(kind=SASS, architecture=70))
    late = fat_binary(Entry(kind=SASS, architecture=80))
    both = shared_object({"__nv_relfatbin": early, ".nv_fatbin": late})
    assert [each.codes[0].capability for each in gpu_modules(open_image(both))] == [(8, 0)]
    alone = shared_object({"__nv_relfatbin": early})
    assert [each.codes[0].capability for each in gpu_modules(open_image(alone))] == [(7, 0)]


def test_a_library_without_gpu_code_has_none() -> None:
    data = shared_object({".rodata": fat_binary(Entry(kind=SASS, architecture=80))})
    assert gpu_modules(open_image(data)) == ()


def test_a_mapped_file_can_be_closed_after(tmp_path: Path) -> None:
    for name, data in {
        "sound": fat_binary(Entry(kind=SASS, architecture=80)),
        "cut": b"P\xedU\xba",
    }.items():
        path = tmp_path / name
        path.write_bytes(shared_object({".nv_fatbin": data}))
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        ):
            try:
                gpu_modules(open_image(mapped))
            except FatBinaryError:
                assert name == "cut"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (struct.pack("<IH", 0xBA55ED50, 1), "within a header"),
        (struct.pack("<IHHQ", 0xBA55ED50, 2, 16, 0), "version 2"),
        (struct.pack("<IHHQ", 0xBA55ED50, 1, 8, 0), "8 bytes"),
        (struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 2**64 - 1), "beyond its section"),
        (struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 8) + bytes(8), "the header of an entry"),
        (fat_binary(Entry(kind=SASS, architecture=80))[:-8], "beyond its section"),
    ],
)
def test_broken_code_is_an_error(data: bytes, says: str) -> None:
    with pytest.raises(FatBinaryError, match=says):
        read(data)


@pytest.mark.parametrize(("offset", "value"), [(4, 0), (4, 63), (4, 2**32 - 1), (8, 2**32 - 1)])
def test_an_entry_that_leaves_its_fat_binary_is_an_error(offset: int, value: int) -> None:
    data = bytearray(fat_binary(Entry(kind=SASS, architecture=80)))
    struct.pack_into("<I", data, 16 + offset, value)
    with pytest.raises(FatBinaryError, match="ends beyond its GPU code"):
        read(bytes(data))


def test_entries_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENTRIES", 3)
    one = fat_binary(Entry(kind=SASS, architecture=80))
    assert read(one * 3)[0].count == 3
    with pytest.raises(FatBinaryError, match="more than 3 entries"):
        read(one * 4)


def test_garbage_gives_an_error_or_nothing() -> None:
    draws = random.Random(8)
    sound = fat_binary(
        Entry(kind=SASS, architecture=80), Entry(kind=PTX, architecture=90, version=(8, 0))
    )
    results = set()
    for _ in range(3000):
        data = bytearray(sound * 2)
        for _ in range(draws.randrange(1, 4)):
            data[draws.randrange(len(data))] = draws.randrange(256)
        try:
            results.add(len(read(bytes(data[: draws.randrange(len(data) + 1)]))))
        except FatBinaryError:
            results.add(-1)
    assert results >= {-1, 0, 1, 2}
