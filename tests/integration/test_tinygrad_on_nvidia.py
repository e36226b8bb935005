"""The tinygrad engine on an NVIDIA GPU, where there is one, against the reference engine."""

from __future__ import annotations

import pytest
from support.tinygrad.child import NVIDIA_BACKENDS, outcomes
from support.tinygrad.needs import what_is_missing

MODULES = ("name_checks", "op_checks", "program_checks")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("backend", NVIDIA_BACKENDS)
def test_all_checks(backend: str) -> None:
    """Takes a minute, in which the driver compiles all kernels."""
    if missing := what_is_missing("CUDA"):
        pytest.skip(f"not shown: {missing}")  # CI has none either
    for check, error in outcomes((backend,), MODULES)[backend].items():
        assert not error, f"{check}: {error}"
