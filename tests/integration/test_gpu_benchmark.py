"""``benchmarks/gpu.py`` from beginning to end, with a model that takes no time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

Row = dict[str, Any]


def run(out: Path, *options: str) -> tuple[dict[str, Any], str]:
    """Its document and what it printed."""
    completed = subprocess.run(
        [
            sys.executable,
            ROOT / "benchmarks/gpu.py",
            out,
            "--tiny",
            "--backend",
            "native",
            *options,
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    return json.loads(out.read_text()), completed.stdout


def test_a_unit_and_a_model(tmp_path: Path) -> None:
    document, printed = run(tmp_path / "out.json", "--format", "q8_0")
    assert document["command"][:3] == ["python", "benchmarks/gpu.py", "--tiny"]
    (unit,) = document["units"]
    read = unit["figures"]["read_bytes_per_second"]["value"]
    host, row = document["rows"]
    assert (host["unit"], host["shape"]) == ("cpu/native", "thin")
    assert (row["unit"], row["shape"], row["format"]) == ("cpu/native", "tiny", "q8_0")
    # By hand: 2 layers of 256 × (256 + 2 × 128 + 256 + 3 × 512), a head of 512 × 256, 34 bytes for
    # 32 of them; 5 norms of 256 in F32.
    matrices = 2 * 256 * (256 + 2 * 128 + 256 + 3 * 512) + 512 * 256
    assert row["stored_bytes_per_token"] == matrices * 34 // 32 + 5 * 256 * 4
    (steps,) = row["decode_step_seconds"]
    assert len(steps) == 3
    rate = row["decode_tokens_per_second"]
    assert rate == pytest.approx(3 / sum(steps))
    assert row["prefill_tokens_per_second"] == pytest.approx(40 / row["prefill_seconds"][0])
    expected = row["stored_bytes_per_token"] * rate / read
    assert row["fraction_of_bandwidth"] == pytest.approx(expected)
    shares = row["host_fraction_of_decode"] / host["host_seconds_per_layer"]
    assert shares == pytest.approx(2 * rate)
    assert [line.split()[1] for line in printed.splitlines()] == ["thin", "tiny"]


def test_what_cannot_be_measured_is_a_row() -> None:
    script = """
import argparse, gpu
from potluck.types.hardware import Trial
trial = Trial(device_id="cpu", backend="native", works=True, variants=("scalar",))
arguments = argparse.Namespace(
    threads=1, prompt_tokens=1, decode_tokens=1, repeats=1, row_seconds=0.01
)
print(gpu.line(gpu.measured(trial, "1B", "bf16", arguments)))
"""
    path = [str(ROOT / "benchmarks"), *sys.path]
    printed = subprocess.check_output(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        text=True,
        timeout=60,
    )
    assert printed.split(None, 3)[3] == "failed: did not respond within 0.01 s\n"
