"""A check of a wheel with a very large library has little of it in memory at a time."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import numpy as np
from support.portability.elf_bytes import BASE, Elf
from support.portability.wheel_bytes import write_wheel
from support.processes.command import run_command

_ROOT = Path(__file__).parents[2]
_LAUNCHER = _ROOT / "benchmarks" / "measured_command.py"

_NUM_SYMBOLS = 500_000
"""As many as TensorFlow's library has."""
_NAME_BYTES = 128
_MAX_PEAK_BYTES = 128 << 20
"""The library has 76 MB of symbols and names; Python, NumPy and what is imported take 60."""

_START = 176
"""Offset of the constants of an ``Elf``: after the header, of 64 bytes, and two segments, of 56."""
_SYMBOL = np.dtype(
    {
        "names": ["name", "info", "other", "shndx", "value", "size"],
        "formats": ["<u4", "u1", "u1", "<u2", "<u8", "<u8"],
    }
)


def a_large_library() -> bytes:
    """An ELF file that defines functions with names as long as those of C++.

    It is so large that it is mapped, and its names are in another order than its symbols.
    """
    numbers = np.arange(_NUM_SYMBOLS)
    names = np.full((_NUM_SYMBOLS, _NAME_BYTES), ord("n"), np.uint8)
    names[:, -1] = 0
    for place in range(6):
        names[:, place] = ord("0") + numbers // 10**place % 10
    symbols = np.zeros(_NUM_SYMBOLS + 1, _SYMBOL)
    symbols["name"][1:] = 1 + np.random.default_rng(1).permutation(numbers) * _NAME_BYTES
    symbols["info"][1:] = 1 << 4 | 2  # STB_GLOBAL, STT_FUNC
    symbols["shndx"][1:] = 1
    symbols["value"][1:] = 0x100
    hashes = np.array([1, len(symbols)], "<u4").tobytes()
    texts = b"\0" + names.tobytes()
    symbols_at = BASE + _START + len(hashes)
    texts_at = symbols_at + symbols.nbytes
    entries = {4: BASE + _START, 6: symbols_at, 11: 24, 5: texts_at, 10: len(texts)}
    return Elf(constants=hashes + symbols.tobytes() + texts, entries=entries).build()


def test_the_peak_of_memory(tmp_path: Path) -> None:
    members = {"pack/libpack.so": a_large_library()}
    wheel = write_wheel(tmp_path, members, compression=zipfile.ZIP_STORED)
    completed = run_command(
        "wheel",
        "check",
        str(wheel),
        "--host",
        "debian-12-x86_64",
        prefix=(sys.executable, str(_LAUNCHER)),
    )
    assert completed.returncode == 0, completed.stderr
    taken = json.loads(completed.stdout)
    assert taken["exit_code"] == 0, completed.stderr
    assert taken["peak_bytes"] <= _MAX_PEAK_BYTES
