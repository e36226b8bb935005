"""How a program's ops are grouped, by a C++ program of its own (schedule_check.cc)."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.kernels import cpp_checks

SOURCE = Path(__file__).with_name("schedule_check.cc")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cpp_checks.build(tmp_path_factory.mktemp("schedule"), SOURCE, "schedule")


@pytest.mark.slow
@pytest.mark.parametrize(
    "check",
    ["a_model", "experts", "inputs_differ", "outputs_differ", "row_wise_ops_keep_their_order"],
)
def test_check(program: Path, check: str) -> None:
    cpp_checks.run(program, check)
