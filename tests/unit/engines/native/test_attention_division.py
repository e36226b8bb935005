"""How attention is divided among threads, by a C++ program of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.kernels import cpp_checks

SOURCE = Path(__file__).with_name("attention_division_check.cc")


@pytest.mark.slow
def test_division(tmp_path: Path) -> None:
    parts = ("attention_division", "../kernels/kernels")
    cpp_checks.run(cpp_checks.build(tmp_path, SOURCE, *parts))
