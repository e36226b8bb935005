"""What the linker sees of the files that are compiled for one instruction set."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest
from support.kernel_build import build, require_tool


@pytest.fixture(scope="module")
def objects() -> list[Path]:
    folder = build("dev", "potluck_kernels", f"-DPython_EXECUTABLE={sys.executable}")
    isas = ("scalar", "avx2", "avx512") if platform.machine() == "x86_64" else ("scalar",)
    found = [path for isa in isas for path in folder.glob(f"cpp/kernels/**/{isa}.cc.o")]
    assert len(found) == 8 * len(isas)
    # Of one op only, where the compiler knows the instructions.
    return [*found, *folder.glob("cpp/kernels/**/avx512_bf16.cc.o")]


def test_no_code_is_shared_between_instruction_sets(objects: list[Path]) -> None:
    """No weak symbols (inline functions), of which the linker would keep one for all files."""
    nm = require_tool("nm")
    for path in objects:
        listing = subprocess.run([nm, path], capture_output=True, text=True, check=True).stdout
        kinds = {line[17] for line in listing.splitlines()}
        assert "T" in kinds
        assert kinds.isdisjoint("uVvWw"), f"{path}: {listing}"
