"""Every kernel of every instruction set that this CPU has, and of AMX by emulation."""

from __future__ import annotations

import pytest
from support.kernels.checks import check_kernel, kernel_names
from support.kernels.instruction_sets import TESTED_ISAS, kernels_to_test

from potluck.kernels import kernels_for


@pytest.mark.parametrize(
    ("isa", "name"), [(isa, name) for isa in TESTED_ISAS for name in kernel_names(isa)]
)
def test_kernel(isa: str, name: str) -> None:
    check_kernel(name, kernels_to_test(isa), kernels_for("scalar"))
