"""What the linker sees of the files that are compiled for one instruction set."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest
from support.kernels.build import built_for_this_cpu, installed_build, not_shown, require_tool


@pytest.fixture(scope="module")
def objects() -> list[Path]:
    folder = installed_build() or built_for_this_cpu("cpp/measure/libpotluck_measure.a").parents[2]
    isas = ("scalar", "avx2", "avx512") if platform.machine() == "x86_64" else ("scalar", "neon")
    found = [path for isa in isas for path in folder.glob(f"cpp/kernels/**/{isa}.cc.o")]
    assert len(found) == 11 * len(isas)
    # Of one op only, where the compiler knows the instructions.
    for single in ("avx512_bf16", "amx_*", "dotprod", "i8mm"):
        found += folder.glob(f"cpp/kernels/**/{single}.cc.o")
    loops = [*folder.glob("cpp/measure/**/peak/*.cc.o")]
    assert len(loops) >= 3
    return [*found, *loops]


def test_no_code_is_shared_between_instruction_sets(objects: list[Path]) -> None:
    """No weak symbols (inline functions), of which the linker would keep one for all files."""
    nm = require_tool("nm")
    for path in objects:
        listing = subprocess.run([nm, path], capture_output=True, text=True, check=True).stdout
        kinds = {line[17] for line in listing.splitlines()}
        assert "T" in kinds
        assert kinds.isdisjoint("uVvWw"), f"{path}: {listing}"


def test_what_a_cpu_does_at_best_is_measured_in_registers(objects: list[Path]) -> None:
    """Of x86-64, whose instructions may read the stack beside what they compute."""
    if platform.machine() != "x86_64":
        not_shown("this CPU's instructions for memory are others")
    objdump = require_tool("objdump")
    loops = [path for path in objects if path.parent.name == "peak" and path.stem != "amx.cc"]
    for path in loops:
        listing = subprocess.run([objdump, "-d", path], capture_output=True, text=True, check=True)
        vectors = [line for line in listing.stdout.splitlines() if "mm" in line]
        assert len(vectors) > 12, path
        assert not [line for line in vectors if "(%r" in line], path
