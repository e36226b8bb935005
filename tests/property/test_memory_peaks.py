"""A stage that was planned takes what its plan says, whatever it is made of and how it is run."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.cluster.content_files import ContentFolder
from support.models.sparse_models import SparseModel
from support.processes.held_memory import held_bytes, peak_until_output

MIB = 2**20
MARGIN_BYTES = 12 * MIB
"""What the peak may be above the plan here, of the 48 MiB that are allowed: what no plan counts are
the stacks of threads, and 6 MiB while a long rope table is made."""

KINDS = ("whole", "first", "middle", "last", "embedding", "head")


def random_case(seed: int) -> dict[str, Any]:
    """A model of some tens or hundreds of MiB, a stage of it, and how it is loaded."""
    draw = random.Random(seed)
    num_kv_heads = draw.choice((1, 2, 4))
    model = SparseModel(
        hidden_size=256 * draw.randint(2, 6),
        intermediate_size=256 * draw.randint(1, 12),
        num_layers=draw.randint(1, 6),
        # K types have rows of whole blocks of 256 only, the output's matrix too.
        num_heads=num_kv_heads * draw.choice((8, 16) if num_kv_heads == 1 else (4, 8)),
        num_kv_heads=num_kv_heads,
        head_dim=draw.choice((32, 64, 128)),
        vocab_size=draw.randint(2_000, 40_000),
        max_context_tokens=32_768,
        has_tied_head=draw.choice((False, True)),
        stored=draw.choice(("F32", "BF16", "F16", "Q8_0", "Q4_K")),
    )
    last = model.num_layers
    kind = KINDS[seed % len(KINDS)]
    start, end = sorted(draw.sample(range(last + 1), 2))
    first_layer = {"whole": 0, "first": 0, "embedding": 0, "head": last}
    end_layer = {"whole": last, "last": last, "embedding": 0, "head": last}
    context = draw.choice((64, 500, 1500, 32_768))
    # Of the longest context only a part is filled: attention over all of it takes minutes.
    cache_tokens = min(context, 1500) * draw.randint(1, 2)
    return {
        "model": model,
        "shard": {
            "start_layer": first_layer.get(kind, start),
            "end_layer": end_layer.get(kind, end),
            "num_layers": last,
            "has_embedding": kind in ("whole", "first", "embedding"),
            "has_head": kind in ("whole", "last", "head"),
        },
        "size": {
            "context_tokens": context,
            "num_blocks": -(-cache_tokens // 16),
            "max_step_tokens": min(512, context),
            "num_threads": draw.randint(1, 4),
            "quantization": draw.choice(("none", "none", "q8_0", "q6_k", "q4_k", "q4_0")),
        },
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3 * len(KINDS)))
def test_the_peak_is_what_was_planned(
    seed: int, child: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    case = random_case(seed)
    model: SparseModel = case["model"]
    result, peak = load_in(child, {**case, "model": str(model.write(tmp_path))}, tmp_path)
    detail = f"peak {peak / MIB:.1f} MiB, plan {result['plan_bytes'] / MIB:.1f} MiB: {case, result}"
    assert peak <= result["plan_bytes"] + MARGIN_BYTES, detail
    assert result["plan_bytes"] <= 1.15 * peak + 64 * MIB, detail
    assert result["read_bytes"] == own_bytes(model, case["shard"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(len(KINDS)))
def test_nor_is_it_more_where_the_bytes_come_from_elsewhere(
    seed: int, child: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """Files that are known by their content are read through the same buffers."""
    case = random_case(seed)
    model: SparseModel = case["model"]
    folder = ContentFolder()
    manifest = folder.add_model(str(model.write(tmp_path)))
    served = {
        "model": "m",
        "manifest": msgspec.to_builtins(manifest),
        "paths": {sha256: str(path) for sha256, path in folder.paths.items()},
    }
    result, peak = load_in(child, {**case, **served}, tmp_path / "cache")
    detail = f"peak {peak / MIB:.1f} MiB, plan {result['plan_bytes'] / MIB:.1f} MiB: {case, result}"
    assert peak <= result["plan_bytes"] + MARGIN_BYTES, detail
    # What was read with the header is not read again.
    own = own_bytes(model, case["shard"])
    assert own - 2**18 <= result["read_bytes"] <= own, detail


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


@pytest.fixture(scope="module")
def child() -> Iterator[subprocess.Popen[bytes]]:
    """What forks a process for each case: imports cost more than most of the cases."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "support.engines.loading_child"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, bufsize=0
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
    assert process.returncode == 0


def load_in(
    child: subprocess.Popen[bytes], case: dict[str, Any], cache: Path
) -> tuple[dict[str, Any], int]:
    """What a process for the case says, and its largest RssAnon + RssShmem above that before it
    began.
    """
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(json.dumps({**case, "cache": str(cache)}).encode() + b"\n")
    word, pid = child.stdout.readline().split()
    assert word == b"ready"
    status = os.open(f"/proc/{int(pid)}/status", os.O_RDONLY)
    try:
        baseline = held_bytes(status)
        child.stdin.write(b"\n")
        peak = peak_until_output(status, child.stdout)
    finally:
        os.close(status)
    result: dict[str, Any] = json.loads(child.stdout.readline())
    child.stdin.write(b"\n")
    assert child.stdout.readline() == b"ended 0\n"
    return result, peak - baseline
