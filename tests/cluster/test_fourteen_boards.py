"""Fourteen boards that are too small for any part of the model but their own, and hold it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster.agents import Document
from support.kernels.build import not_shown

_ROOT = Path(__file__).resolve().parents[2]
_SCRIPT = _ROOT / "benchmarks" / "fourteen_boards.py"
_NOT_SHOWN = 3
_SECONDS = 240
_MIB = 2**20


@pytest.fixture(scope="module")
def work() -> Iterator[Path]:
    """A folder for the model, which is too large to leave behind."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


def drill(work: Path, *options: str) -> Document:
    """Run it; its document."""
    output = work / "result.json"
    completed = subprocess.run(
        [
            *(sys.executable, str(_SCRIPT), "--small", *options),
            *("--work", str(work), "--output", str(output)),
        ],
        env={**os.environ, "PYTHONPATH": str(_ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if completed.returncode == _NOT_SHOWN:
        not_shown(completed.stderr.strip())
    assert completed.returncode == 0, completed.stdout + completed.stderr
    document: Document = json.loads(output.read_text(encoding="utf-8"))
    return document


def test_every_board_holds_its_part_and_nothing_is_killed(work: Path) -> None:
    document = drill(work)
    assert document["num_kills"] == 0
    assert document["num_tokens"] == 8
    boards = document["boards"]
    ranges = sorted(tuple(board["layers"]) for board in boards)
    assert len(ranges) == 14
    assert ranges[0] == (0, 0)
    assert ranges[-1] == (32, 32)
    assert [start for start, _ in ranges[1:]] == [end for _, end in ranges[:-1]]
    assert sum(board["read_bytes"] for board in boards) < document["model_bytes"] + 14 * _MIB
    for board in boards:
        assert 0 < board["worker_peak_bytes"] <= board["plan_bytes"] + 48 * _MIB
        assert board["plan_bytes"] < board["cap_bytes"]
        assert board["max_usage_bytes"] <= board["cap_bytes"]
