"""What was read of a wheel, and is kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.portability.elf_bytes import Elf, Need, Segment, Symbol
from support.portability.wheel_bytes import write_wheel

from potluck.errors import WheelFileError
from potluck.portability.checks import needs as needs_cache
from potluck.portability.checks.needs import cached_needs, default_needs_folder, read_needs

EXTENSION = Elf(
    needed=["libc.so.6"],
    symbols=[
        Symbol(name="malloc", version=2),
        Symbol(name="PyInit_a", is_defined=True),
    ],
    needs=[Need(library="libc.so.6", versions=[("GLIBC_2.2.5", 2, 0)])],
).build()


def a_wheel(folder: Path) -> Path:
    members = {"a.so": EXTENSION, "b.so": EXTENSION[:100], "c.o": Elf(file_type=1).build()}
    return write_wheel(folder, members)


def test_everything_that_a_check_asks_is_read(tmp_path: Path) -> None:
    needs = read_needs(a_wheel(tmp_path))
    (found,) = needs.objects
    assert found.path == "a.so"
    assert [each.version for each in found.elf.version_needs] == ["GLIBC_2.2.5"]
    assert [each.name for each in found.elf.undefined] == ["malloc"]
    assert [each.path for each in needs.broken] == ["b.so"]
    assert needs.broken[0].problem
    assert needs.distribution is not None


@pytest.mark.parametrize("data", [EXTENSION[:100], b"\x7fELF"])
def test_a_single_broken_file_is_an_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.so").write_bytes(data)
    with pytest.raises(WheelFileError, match=r"a\.so: "):
        read_needs(tmp_path / "a.so")


def test_a_folder_with_nothing_to_load_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.o").write_bytes(Elf(file_type=1).build())
    with pytest.raises(WheelFileError, match="contains no file"):
        read_needs(tmp_path)


def test_what_is_kept_is_what_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel, folder = a_wheel(tmp_path), tmp_path / "cache"
    first = cached_needs(wheel, folder)
    assert first == read_needs(wheel)
    monkeypatch.setattr(needs_cache, "read_needs", lambda path: pytest.fail("it is read again"))
    assert cached_needs(wheel, folder) == first


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    wheel, folder = a_wheel(tmp_path), tmp_path / "cache"
    cached_needs(wheel, folder)
    write_wheel(tmp_path, {"other.so": EXTENSION})
    os.utime(wheel, (1, 1))
    assert [each.path for each in cached_needs(wheel, folder).objects] == ["other.so"]


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_a_damaged_cache_is_passed_over(tmp_path: Path, damage: bytes | None) -> None:
    wheel, folder = a_wheel(tmp_path), tmp_path / "cache"
    expected = cached_needs(wheel, folder)
    (entry,) = folder.iterdir()
    entry.write_bytes(entry.read_bytes()[:-20] if damage is None else damage)
    assert cached_needs(wheel, folder) == expected


def test_where_nothing_can_be_kept(tmp_path: Path) -> None:
    wheel = a_wheel(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    for folder in (tmp_path / "file", None):
        assert cached_needs(wheel, folder) == read_needs(wheel)


def test_a_file_whose_name_is_not_utf8_is_read_each_time(tmp_path: Path) -> None:
    file = tmp_path / os.fsdecode(b"lib\xff.so")
    file.write_bytes(EXTENSION)
    assert cached_needs(file, tmp_path / "cache") == read_needs(file)


def test_thread_local_storage_larger_than_any_is_kept(tmp_path: Path) -> None:
    tls = [Segment(segment_type=7, memory_bytes=2**64 - 1)] * 2
    (tmp_path / "a.so").write_bytes(Elf(segments=tls, entries={30: 0x10}).build())
    needs = cached_needs(tmp_path / "a.so", tmp_path / "cache")
    assert cached_needs(tmp_path / "a.so", tmp_path / "cache") == needs


def test_the_oldest_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs_cache, "_MAX_FILES", 2)
    folder = tmp_path / "cache"
    for version in ("1", "2", "3"):
        cached_needs(write_wheel(tmp_path, {"a.so": EXTENSION}, version=version), folder)
    assert len(list(folder.iterdir())) == 2


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_needs_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/potluck/wheel-needs")
    monkeypatch.setenv("HOME", "/home/u")
    assert default_needs_folder({"XDG_CACHE_HOME": "relative"}) == Path(
        "/home/u/.cache/potluck/wheel-needs"
    )
