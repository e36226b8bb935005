"""How a program's ops are grouped, by a C++ program of its own (cpp/check/schedule_check.cc)."""

from __future__ import annotations

import pytest
from support.kernels import cpp_checks


@pytest.mark.parametrize(
    "check",
    ["a_model", "experts", "inputs_differ", "outputs_differ", "row_wise_ops_keep_their_order"],
)
def test_check(check: str) -> None:
    cpp_checks.run("schedule_check", check)
