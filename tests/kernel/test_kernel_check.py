"""The check program: on every instruction set of this machine, and on aarch64 under emulation.

Its lines carry checksums of all results, so equal output means equal bits.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest
from support.kernel_build import build, require_tool
from support.kernel_checks import KERNEL_NAMES

from potluck.kernels import available_isas, kernels_for


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def native_program() -> Path:
    folder = build("dev", "kernel_check", f"-DPython_EXECUTABLE={sys.executable}")
    return folder / "kernel_check"


@pytest.fixture(scope="module")
def scalar_lines(native_program: Path) -> str:
    return run(native_program, "scalar")


def test_it_covers_every_kernel(scalar_lines: str) -> None:
    names = [line.split()[0] for line in scalar_lines.splitlines()]
    assert sorted(names) == sorted(KERNEL_NAMES)
    assert all(line.endswith(" ok") for line in scalar_lines.splitlines())


@pytest.mark.parametrize("isa", available_isas())
def test_all_instruction_sets_agree(isa: str, native_program: Path, scalar_lines: str) -> None:
    assert same_lines(run(native_program, isa), isa) == same_lines(scalar_lines, isa)


def same_lines(lines: str, isa: str) -> list[str]:
    """The lines that must be the scalar kernels': all but products of bf16."""
    own = "linear.bf16 " if kernels_for(isa).bf16_activations else None
    return [line for line in lines.splitlines() if own is None or not line.startswith(own)]


def test_unknown_instruction_set(native_program: Path) -> None:
    done = subprocess.run([native_program, "sse9"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "sse9" in done.stderr


@pytest.mark.skipif(platform.machine() == "aarch64", reason="shown natively by the tests above")
@pytest.mark.parametrize("cpu", ["cortex-a53", "max"])
def test_aarch64_gives_the_same_bits(cpu: str, scalar_lines: str) -> None:
    compiler = require_tool("aarch64-linux-gnu-g++")
    emulator = require_tool("qemu-aarch64-static")
    folder = build(
        "aarch64",
        "kernel_check",
        "-DPOTLUCK_PYTHON=OFF",
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        f"-DCMAKE_CXX_COMPILER={compiler}",
        "-DCMAKE_EXE_LINKER_FLAGS=-static",
    )
    assert run(emulator, "-cpu", cpu, folder / "kernel_check") == scalar_lines
