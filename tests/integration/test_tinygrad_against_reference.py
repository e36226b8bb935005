"""The tinygrad engine computes what the reference engine says, op by op and whole.

The checks themselves are in ``support``; each backend runs all of them in one child process, where
every kernel is compiled once.
"""

from __future__ import annotations

import pytest
from support.tinygrad.child import BACKENDS, check_names, outcomes

pytestmark = pytest.mark.timeout(900)  # the first test waits until all kernels are compiled

MODULES = ("op_checks", "program_checks")


@pytest.mark.parametrize(
    ("backend", "check"),
    [
        (backend, name)
        for module in MODULES
        for backend in BACKENDS
        for name in check_names(module, backend)
    ],
)
def test_check(backend: str, check: str) -> None:
    """The first test takes minutes, in which both backends compile all kernels."""
    error = outcomes(BACKENDS, MODULES)[backend][check]
    assert not error, error
