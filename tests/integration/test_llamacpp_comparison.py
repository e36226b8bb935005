"""``benchmarks/vs_llamacpp.py`` from beginning to end, with a llama.cpp that is not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FAKE = """#!{python}
import json, sys
if "-o" not in sys.argv:
    sys.exit("not this time")
rate = 200.0 if sys.argv[sys.argv.index("-fa") + 1] == "1" else 100.0
print(json.dumps([
    {{"n_prompt": 16, "n_gen": 0, "samples_ts": [rate]}},
    {{"n_prompt": 0, "n_gen": 4, "samples_ts": [rate / 4]}},
]))
"""


def test_a_quick_comparison(tmp_path: Path) -> None:
    fake, out = tmp_path / "llama-bench", tmp_path / "out.json"
    fake.write_text(FAKE.format(python=sys.executable))
    fake.chmod(0o755)
    completed = subprocess.run(
        [
            *(sys.executable, ROOT / "benchmarks/vs_llamacpp.py", out, "--quick"),
            *("--llama-bench", fake, "--directory", tmp_path / "models"),
            *("--claim", "decode", "prefill", "--type", "Q4_0", "--threads", "1"),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    text = out.read_text()
    assert str(tmp_path) not in text
    (document,) = json.loads(text)["shapes"]
    assert document["builds"]["best"] == {"failed": "ended with 1: not this time"}
    assert document["flash_attention"] == {"best": True}
    decode, prefill = document["rows"]
    assert (decode["phase"], prefill["phase"]) == ("decode", "prefill")
    assert (decode["theirs"], prefill["theirs"]) == (50.0, 200.0)
    assert decode["ours"] > 0
    assert decode["ratio"] == pytest.approx(decode["ours"] / 50)
    ours = next(run for run in document["runs"] if run["side"] == "ours")
    assert [decode["fraction"]] == ours["decode_of_bandwidth"]
    operations = document["work_per_token"]["Q4_0"]["operations"] * prefill["ours"]
    expected = operations / document["limits"]["int8_operations_per_second"]
    assert prefill["fraction"] == pytest.approx(expected)
    # Two tried attentions that do not count, ours, theirs.
    assert [run["is_counted"] for run in document["runs"]] == [True, False, False, True]
    assert "decode " in completed.stdout
