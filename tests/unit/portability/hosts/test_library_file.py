"""What describes a library in plain Python is what the reader of wheels finds."""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from potluck.errors import ElfError
from potluck.portability.elf.image import open_image
from potluck.portability.elf.reader import read_elf
from potluck.portability.hosts.installed import describe_host
from potluck.portability.hosts.library_file import read_library_file

FIELDS = ("machine", "soname", "interpreter", "needed", "search_path", "is_rpath")


def host_files() -> list[Path]:
    return [Path(sys.executable), *(Path(each.path) for each in describe_host().libraries)]


@pytest.mark.parametrize("path", host_files(), ids=lambda path: path.name)
def test_both_readers_agree(path: Path) -> None:
    data = path.read_bytes()
    expected, found = read_elf(open_image(data)), read_library_file(data)
    for field in FIELDS:  # read by functions that both readers call
        assert getattr(found, field) == getattr(expected, field)
    assert found.version_definitions == expected.version_definitions
    assert Counter(found.defined) == Counter(expected.defined)  # in other orders


@pytest.mark.slow
def test_broken_files_raise_nothing_else() -> None:
    (path,) = (Path(each.path) for each in describe_host().libraries if each.soname == "libm.so.6")
    data = path.read_bytes()
    rng = random.Random(5)
    num_refused = 0
    for _ in range(400):
        broken = bytearray(data[: rng.choice((len(data), rng.randrange(len(data))))])
        for _ in range(rng.randrange(1, 20)):
            # Headers and tables are in the first pages; a byte of code changes nothing.
            broken[rng.randrange(min(len(broken), 1 << rng.randrange(6, 17)))] = rng.randrange(256)
        try:
            read_library_file(bytes(broken))
        except ElfError:
            num_refused += 1
    assert num_refused > 50


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"#!/bin/sh\n", b"\x7fELF" + bytes(60)])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(ElfError):
        read_library_file(data)
