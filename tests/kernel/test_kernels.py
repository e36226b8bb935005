"""Every kernel of every instruction set that this CPU has."""

from __future__ import annotations

import pytest
from support.kernel_checks import KERNEL_NAMES, check_kernel

from potluck.kernels import available_isas, kernels_for


@pytest.mark.parametrize("name", KERNEL_NAMES)
@pytest.mark.parametrize("isa", available_isas())
def test_kernel(isa: str, name: str) -> None:
    check_kernel(name, kernels_for(isa), kernels_for("scalar"))
