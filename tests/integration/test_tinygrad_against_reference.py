"""The tinygrad engine computes what the reference engine says, op by op and whole.

The checks themselves are in ``support``; each backend runs all of them in one child process, where
every kernel is compiled once.
"""

from __future__ import annotations

import pytest
from support.tinygrad_child import BACKENDS, check_names, outcomes

MODULES = ("tinygrad_op_checks", "tinygrad_program_checks")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("check", [name for module in MODULES for name in check_names(module)])
def test_check(backend: str, check: str) -> None:
    error = outcomes(BACKENDS, MODULES)[backend][check]
    assert not error, error
