"""How attention is divided among threads, by a C++ program of its own."""

from __future__ import annotations

from support.kernels import cpp_checks


def test_division() -> None:
    cpp_checks.run("attention_division_check")
