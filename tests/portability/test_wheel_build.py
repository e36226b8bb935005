"""What ``make wheels`` makes is what we promise; and what breaks a promise would be found."""

from __future__ import annotations

import platform
import subprocess
import tarfile
from pathlib import Path

import pytest
from support.kernels.build import ROOT, built_for_this_cpu, require_tool
from support.portability.wheel_build import (
    BUILD_SECONDS,
    built_sdist,
    built_wheels,
    kernel_check_program,
)

from potluck.kernels import available_isas
from tools.wheels.check import (
    INSTRUCTION_SETS,
    LARGEST_BYTES,
    bytes_without_model,
    module_problems,
)
from tools.wheels.targets import TARGETS, Target
from tools.wheels.wheel_archive import read_wheel

pytestmark = pytest.mark.timeout(BUILD_SECONDS)


def wheel_of(target: Target) -> Path:
    ending = f"-{target.abi.python_tag}-{target.abi.abi_tag}-{'.'.join(target.platforms)}.whl"
    (path,) = (wheel for wheel in built_wheels() if wheel.name.endswith(ending))
    return path


def module_of(target: Target) -> bytes:
    return read_wheel(wheel_of(target))[f"potluck/kernels/{target.module_file}"]


def problems_of(module: bytes, target: Target) -> list[str]:
    return list(module_problems(module, target.machine, (ROOT, Path.home())))


def test_there_is_a_wheel_for_every_target() -> None:
    assert len(built_wheels()) == len({wheel_of(target) for target in TARGETS}) == len(TARGETS)
    assert all(bytes_without_model(wheel_of(target)) < LARGEST_BYTES for target in TARGETS)


def test_wheels_differ_in_their_core_alone() -> None:
    def rest(target: Target) -> dict[str, bytes]:
        files = read_wheel(wheel_of(target))
        own = (".so", "/WHEEL", "/RECORD")
        return {name: content for name, content in files.items() if not name.endswith(own)}

    first = rest(TARGETS[0])
    assert "potluck/data/demo/model.safetensors" in first
    assert all(rest(target) == first for target in TARGETS[1:])


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_module_that_breaks_a_promise_is_found(target: Target) -> None:
    module = module_of(target)
    assert problems_of(module, target) == []
    for isa in INSTRUCTION_SETS[target.machine]:
        name = b"\0" + isa.encode() + b"\0"
        without = module.replace(name, name.upper())
        assert f"lacks the kernels of {isa}" in problems_of(without, target)
    assert problems_of(module.replace(b"PyInit__core\0", b"PyInit__care\0"), target)
    assert problems_of(module.replace(b"libc.so.6\0", b"libx.so.6\0"), target)
    assert problems_of(module + str(ROOT).encode(), target) == [f"names {ROOT}"]


def test_a_module_of_this_machines_compiler_is_found() -> None:
    """That of the tests: it needs libstdc++, and the check wants ours to need nothing like it."""
    target = next(target for target in TARGETS if target.machine == platform.machine())
    module = built_for_this_cpu("_perturbed*.so")
    found = problems_of(module.read_bytes(), target)
    assert any("libstdc++.so.6" in problem for problem in found)
    assert any("exports" in problem for problem in found)


def test_the_sdist_has_all_that_a_build_needs() -> None:
    sources = {
        str(path.relative_to(ROOT))
        for folder in ("src", "cpp")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix not in (".so", ".pyc")
    }
    with tarfile.open(built_sdist()) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {*sources, "CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE", "PKG-INFO"}
    assert needed <= names
    assert not any(name.endswith((".so", ".pyc")) for name in names)


def lines_of(*command: str | Path) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def program_here() -> Path:
    return built_for_this_cpu("kernel_check")


@pytest.mark.parametrize("isa", available_isas())
def test_this_machines_compiler_and_that_of_wheels_give_the_same_bits(
    isa: str, program_here: Path
) -> None:
    """The lines of the check program carry checksums of all results."""
    program = kernel_check_program(platform.machine())
    assert lines_of(program, isa) == lines_of(program_here, isa)


@pytest.mark.parametrize("isa", INSTRUCTION_SETS["aarch64"])
def test_the_other_machine_gives_the_same_bits(isa: str, program_here: Path) -> None:
    emulator = (require_tool("qemu-aarch64-static"), "-L", "/usr/aarch64-linux-gnu")
    made = lines_of(*emulator, kernel_check_program("aarch64"), isa)
    exact = [line for line in made if not line.startswith("linear_fast.")]
    assert exact == lines_of(program_here, "scalar")
