"""The ops of the C++ core are those of ``potluck.types.program``."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_header_is_what_the_tool_prints() -> None:
    spec = importlib.util.spec_from_file_location("op_header", ROOT / "tools/op_header.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    header = (ROOT / "cpp/program/op.h").read_text()
    assert header == tool.op_header(), "run `python tools/op_header.py > cpp/program/op.h`"
