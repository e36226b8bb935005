"""The ops of the C++ core are those of ``potluck.types.program``."""

from __future__ import annotations

from pathlib import Path

from tools.op_header import op_header

HEADER = Path(__file__).resolve().parents[3] / "cpp/program/op.h"


def test_the_header_is_what_the_tool_prints() -> None:
    hint = "run `python tools/op_header.py > cpp/program/op.h`"
    assert HEADER.read_text() == op_header(), hint
