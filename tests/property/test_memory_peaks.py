"""A stage that was planned takes what its plan says, whatever it is made of and how it is run."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.sparse_models import SparseModel

MIB = 2**20
MARGIN_BYTES = 48 * MIB
"""What the peak may be above the plan."""

_SAMPLE_SECONDS = 0.01


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """A model of some tens or hundreds of MiB, a stage of it, and how it is loaded."""
    stored = draw(st.sampled_from(("F32", "BF16", "F16", "Q8_0", "Q4_K")))
    head_dim = draw(st.sampled_from((32, 64, 128)))
    num_kv_heads = draw(st.sampled_from((1, 2, 4)))
    model = SparseModel(
        hidden_size=256 * draw(st.integers(1, 6)),
        intermediate_size=256 * draw(st.integers(1, 12)),
        num_layers=draw(st.integers(1, 6)),
        # K types have rows of whole blocks of 256 only, the output's matrix too.
        num_heads=num_kv_heads * draw(st.sampled_from((8, 16) if num_kv_heads == 1 else (4, 8))),
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=draw(st.integers(100, 40_000)),
        max_context_tokens=32_768,
        has_tied_head=draw(st.booleans()),
        stored=stored,
    )
    last = model.num_layers
    start = draw(st.integers(0, last))
    end = draw(st.integers(start, last))
    kind = draw(st.sampled_from(("whole", "first", "last", "embedding", "head", "middle")))
    start, end = {
        "whole": (0, last),
        "first": (0, end),
        "last": (start, last),
        "embedding": (0, 0),
        "head": (last, last),
        "middle": (min(start, last - 1), max(end, min(start, last - 1) + 1)),
    }[kind]
    context = draw(st.sampled_from((64, 500, 2048)))
    return {
        "model": model,
        "shard": {
            "start_layer": start,
            "end_layer": end,
            "num_layers": last,
            "has_embedding": kind in ("whole", "first", "embedding"),
            "has_head": kind in ("whole", "last", "head"),
        },
        "size": {
            "context_tokens": context,
            "num_blocks": -(-context // 16) * draw(st.integers(1, 2)),
            "max_step_tokens": min(512, context),
            "num_threads": draw(st.integers(1, 4)),
            "quantization": draw(st.sampled_from(("none", "none", "q8_0", "q6_k", "q4_k", "q4_0"))),
        },
    }


@settings(
    max_examples=16,
    deadline=None,
    # A failing case is printed as it is: smaller ones take processes, and a peak is no exact thing.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
)
@given(case=cases())
def test_the_peak_is_what_was_planned(case: dict[str, Any]) -> None:
    model: SparseModel = case["model"]
    with tempfile.TemporaryDirectory() as directory:
        name = model.write(Path(directory))
        result, peak = load_in_child({**case, "model": str(name)})
    detail = f"peak {peak / MIB:.1f} MiB, plan {result['plan_bytes'] / MIB:.1f} MiB: {result}"
    assert peak <= result["plan_bytes"] + MARGIN_BYTES, detail
    assert result["plan_bytes"] <= 1.15 * peak + 64 * MIB, detail
    assert result["read_bytes"] == own_bytes(model, case["shard"])


def own_bytes(model: SparseModel, shard: dict[str, Any]) -> int:
    """Of the tensors that the stage is made of, each once."""
    tensors: dict[str, tuple[int, ...]] = {}
    if shard["has_embedding"]:
        tensors |= model.embedding()
    for layer in range(shard["start_layer"], shard["end_layer"]):
        tensors |= model.layer(layer)
    if shard["has_head"]:
        tensors |= model.head()
        if model.has_tied_head:
            tensors |= model.embedding()
    return model.stored_bytes(tensors)


def load_in_child(case: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """What the child says, and its largest RssAnon + RssShmem above that before it began."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "support.loading_child"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, bufsize=0
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps(case).encode() + b"\n")
        assert child.stdout.readline() == b"ready\n"
        status = os.open(f"/proc/{child.pid}/status", os.O_RDONLY)
        try:
            baseline = peak = held_bytes(status)
            child.stdin.write(b"\n")
            while not select.select([child.stdout], [], [], _SAMPLE_SECONDS)[0]:
                peak = max(peak, held_bytes(status))
        finally:
            os.close(status)
        line = child.stdout.readline()
    assert child.returncode == 0
    result: dict[str, Any] = json.loads(line)
    return result, peak - baseline


def held_bytes(status: int) -> int:
    """RssAnon + RssShmem, from an open ``/proc/PID/status``."""
    total = 0
    for line in os.pread(status, 8192, 0).decode("ascii", errors="replace").splitlines():
        if line.startswith(("RssAnon:", "RssShmem:")):
            total += int(line.split()[1]) * 1024
    return total
