"""The check program: on every instruction set of this machine, and on aarch64 under emulation.

Its lines carry checksums of all results, so equal output means equal bits.
"""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest
from support.kernels.build import built_for_aarch64, built_for_this_cpu, require_tool
from support.kernels.checks import KERNEL_NAMES, LATENT, line_names
from support.kernels.instruction_sets import TESTED_ISAS

from potluck.kernels import available_isas


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def native_program() -> Path:
    return built_for_this_cpu("kernel_check")


@pytest.fixture(scope="module")
def scalar_lines(native_program: Path) -> str:
    return run(native_program, "scalar")


def test_it_covers_every_kernel(scalar_lines: str) -> None:
    names = [line.split()[0] for line in scalar_lines.splitlines()]
    assert sorted(names) == sorted((*KERNEL_NAMES, LATENT))
    assert all(line.endswith(" ok") for line in scalar_lines.splitlines())


@pytest.mark.parametrize("isa", TESTED_ISAS)
def test_all_instruction_sets_agree(isa: str, native_program: Path, scalar_lines: str) -> None:
    program = native_program
    if isa not in available_isas():
        target = "kernel_check_amx"
        program = built_for_this_cpu(target)
    lines = run(program, isa)
    names = sorted(line.split()[0] for line in lines.splitlines())
    assert names == sorted(line_names(isa))
    assert same_lines(lines) == same_lines(scalar_lines)


def same_lines(lines: str) -> list[str]:
    """The lines that must be the scalar kernels': all but the fast products."""
    return [line for line in lines.splitlines() if not line.startswith("linear_fast.")]


def test_unknown_instruction_set(native_program: Path) -> None:
    done = subprocess.run([native_program, "sse9"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "sse9" in done.stderr


@pytest.fixture(scope="module")
def aarch64_program() -> Path:
    if platform.machine() == "aarch64":
        pytest.skip("shown natively by the tests above")
    return built_for_aarch64("kernel_check")


def emulate(cpu: str, *command: str | Path) -> str:
    return run(require_tool("qemu-aarch64-static"), "-cpu", cpu, *command)


@pytest.mark.parametrize(
    ("cpu", "isas"),
    [
        ("cortex-a72", ["scalar", "neon"]),
        ("cortex-a76", ["scalar", "neon", "dotprod"]),
        ("max", ["scalar", "neon", "dotprod", "i8mm"]),
    ],
)
def test_aarch64_detects(cpu: str, isas: list[str], aarch64_program: Path) -> None:
    assert emulate(cpu, aarch64_program, "--list").split() == isas


@pytest.mark.parametrize(
    ("cpu", "isa"),
    [("cortex-a72", "scalar"), ("cortex-a72", "neon"), ("cortex-a76", "dotprod"), ("max", "i8mm")],
)
def test_aarch64_gives_the_same_bits(
    cpu: str, isa: str, aarch64_program: Path, scalar_lines: str
) -> None:
    lines = emulate(cpu, aarch64_program, isa)
    assert same_lines(lines) == scalar_lines.splitlines()
    names = sorted(line.split()[0] for line in lines.splitlines())
    assert names == sorted(line_names(isa))


@pytest.mark.parametrize(
    ("kernel", "wrong"),
    [
        # Near enough to the double precision; but the parts are no longer the whole.
        ("neon.attention", {"attention_span", "attention_merge", LATENT}),
        ("neon.linear.q6_k", {"linear.q6_k"}),  # one token and many no longer have the same bits
        ("dotprod.linear.q4_k", {"linear.q4_k"}),
        ("i8mm.linear.q8_0", {"linear.q8_0"}),
        ("neon.linear.bf16", {"linear.bf16"}),
        ("i8mm.linear.f16", {"linear.f16"}),
        ("i8mm.linear_fast.bf16", {"linear_fast.bf16"}),
    ],
)
def test_aarch64_shows_a_spoilt_kernel(
    kernel: str, wrong: set[str], aarch64_program: Path, scalar_lines: str
) -> None:
    isa, _, name = kernel.partition(".")
    command = (require_tool("qemu-aarch64-static"), "-cpu", "max", aarch64_program, isa, kernel)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    different = set(done.stdout.splitlines()) - set(scalar_lines.splitlines())
    own = {"linear_fast.bf16"} if isa == "i8mm" else set()
    if name == "attention":
        own = {"softcap"}  # whose line has capped scores as well
    assert {line.split()[0] for line in different} == wrong | {name} | own
    assert {line.split()[0] for line in different if line.endswith(" WRONG")} == wrong
    assert done.returncode == 1
