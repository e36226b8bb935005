"""AMX in software (cpp/check/amx_emulator.h) does what Intel's manual says, and refuses the rest.

Where the CPU has AMX, what the emulator computes is compared with what the CPU does, bit for bit.
"""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest
from support.kernels.build import built_for_this_cpu
from support.kernels.instruction_sets import IS_AMX_TESTED

FAULTS = {
    "palette": "there is no such palette",
    "start_row": "a start row is not emulated",
    "reserved": "a reserved byte is not 0",
    "ninth_tile": "there are eight tiles",
    "last_byte": "there are eight tiles",
    "rows": "more than 16 rows",
    "row_bytes": "more than 64 bytes",
    "no_rows": "rows or columns, and not both",
    "no_row_bytes": "rows or columns, and not both",
    "no_configuration": "there is no tile configuration",
    "load_of_no_tile": "tileloadd: the tile is not configured",
    "store_of_no_tile": "tilestored: the tile is not configured",
    "product_of_no_tile": "tdpbssd: the tile is not configured",
    "one_tile_twice": "two operands are one tile",
    "rows_differ": "not the rows of the first factor",
    "columns_differ": "not the columns of the second factor",
    "inner_differs": "tdpbf16ps: the inner dimensions differ",
    "part_of_a_word": "not whole groups of 4 bytes",
}

pytestmark = [
    pytest.mark.skipif(
        not IS_AMX_TESTED, reason="not shown: this CPU has no AVX-512 BF16, or is none of x86-64"
    ),
]


@pytest.fixture(scope="module")
def program() -> Path:
    return built_for_this_cpu("amx_emulator_check")


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_products_are_those_worked_out_by_hand_and_those_of_the_cpu(program: Path) -> None:
    done = run(program, "where")
    assert done.returncode == 0, done.stdout + done.stderr
    has_amx = " amx_tile " in Path("/proc/cpuinfo").read_text()
    assert platform.machine() == "x86_64"
    assert done.stdout == ("silicon\n" if has_amx else "emulator\n")


def test_every_fault_is_tested(program: Path) -> None:
    assert sorted(run(program, "faults").stdout.split()) == sorted(FAULTS)


@pytest.mark.parametrize("fault", FAULTS)
def test_what_the_hardware_refuses_ends_the_process(program: Path, fault: str) -> None:
    done = run(program, fault)
    assert done.returncode == -6  # SIGABRT
    assert FAULTS[fault] in done.stderr
