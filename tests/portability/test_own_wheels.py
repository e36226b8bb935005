"""Our wheels on systems older than any that they were built on, and on other CPUs."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.kernels.checks import line_names
from support.portability.own_wheels import own_wheel
from support.portability.roots import RootPython, require_packages, require_root, root_python
from support.portability.wheel_build import BUILD_SECONDS, kernel_check_program

from potluck.kernels import available_isas
from potluck.probe.cases.self_test import deviation
from tools.roots.enter import EVERY_FEATURE

pytestmark = pytest.mark.timeout(BUILD_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A root, the Python whose wheel is tried there, and which instruction sets that must find."""

    root: str
    machine: str
    python: str
    isas: tuple[str, ...]
    cpu: str = EVERY_FEATURE

    def __str__(self) -> str:
        cpu = f"-{self.cpu.partition(',')[0]}" if self.machine == "aarch64" else ""
        return f"{self.root}-{self.python}{cpu}"


ISAS_OF_CPU = {
    "cortex-a72": ("scalar", "neon"),
    "cortex-a76": ("scalar", "neon", "dotprod"),
    EVERY_FEATURE: ("scalar", "neon", "dotprod", "i8mm"),
}
PLACES = (
    *(
        Place(root=root, machine="x86_64", python=python, isas=tuple(available_isas()))
        for root, python in (
            ("xenial-amd64", "3.11"),
            ("bionic-amd64", "3.11"),
            ("bullseye-amd64", "3.11"),
            ("trixie-amd64", "3.13"),
        )
    ),
    *(
        Place(root=root, machine="aarch64", python=python, isas=isas, cpu=cpu)
        for root, python in (("bullseye-arm64", "3.11"), ("trixie-arm64", "3.13"))
        for cpu, isas in ISAS_OF_CPU.items()
    ),
)


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_every_instruction_set_passes_its_self_test(place: Place, tmp_path: Path) -> None:
    python = python_with_core(place, tmp_path)
    done = python.run("-m", "potluck.engines.native.trial", "self-test", "cpu", "-")
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    assert tuple(results) == place.isas
    assert {isa: deviation(each) for isa, each in results.items()} == dict.fromkeys(results, "")


def python_with_core(place: Place, folder: Path) -> RootPython:
    """A Python that finds our wheel, NumPy for glibc 2.17, and nothing else."""
    core = own_wheel(place.machine, place.python, folder)
    numpy = require_packages(place.machine, 17, place.python, "numpy")
    return root_python(require_root(place.root, cpu=place.cpu), place.python, core=core, np=numpy)


@pytest.fixture(scope="module")
def scalar_lines() -> list[str]:
    return check_kernels(PLACES[0], "scalar")


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_every_kernel_has_the_bits_of_scalar(place: Place, scalar_lines: list[str]) -> None:
    """Compiled as it is in the wheels; of the CPU's best instruction set."""
    isa = place.isas[-1]
    lines = check_kernels(place, isa)
    assert sorted(line.split()[0] for line in lines) == sorted(line_names(isa))
    assert all(line.endswith(" ok") for line in lines)
    exact = [line for line in lines if not line.startswith("linear_fast.")]
    assert exact == [line for line in scalar_lines if not line.startswith("linear_fast.")]


def check_kernels(place: Place, isa: str) -> list[str]:
    """The lines of the check program, one for each kernel."""
    program = kernel_check_program(place.machine)
    root = require_root(place.root, cpu=place.cpu)
    entered = dataclasses.replace(root, shared={"kernel_check": program})
    done = entered.run("/mnt/kernel_check", isa)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()
