"""The stub of the C++ core says what the core has."""

from __future__ import annotations

import ast

from tools.core_stub import STUB, core_stub


def test_the_stub_is_what_the_tool_writes() -> None:
    hint = "run `python -m tools.core_stub && ruff format src/potluck/kernels/_core.pyi`"
    written, made = ast.parse(STUB.read_text("utf-8")), ast.parse(core_stub())
    assert ast.unparse(written) == ast.unparse(made), hint
