"""Loads one stage and fills its cache, for a parent that watches how much memory that takes.

``python -m support.loading_child``: a line with the case comes in, ``ready`` goes out, an empty
line comes in, a line with the plan and the bytes that were read goes out, and it ends with its
input.
"""

from __future__ import annotations

import json
import sys
from contextlib import closing
from typing import Any

import numpy as np

from potluck.catalog import describe_model, open_weights, read_profile
from potluck.engines.backends import native_unit
from potluck.engines.native import make_pool
from potluck.loading import StageSize, plan_stage
from potluck.loading.load import load_stage
from potluck.types.engine import LoadableEngine
from potluck.types.program import Shard
from potluck.types.quantization import Quantization
from potluck.types.step import (
    KV_BLOCK_TOKENS,
    SamplingParams,
    SequenceId,
    SequenceOpening,
    SequenceSlice,
    Step,
    StepId,
)


def main() -> None:
    case: dict[str, Any] = json.loads(sys.stdin.readline())
    print("ready", flush=True)
    sys.stdin.readline()
    size = StageSize(**{**case["size"], "quantization": Quantization(case["size"]["quantization"])})
    shard = Shard(**case["shard"])
    description = describe_model(case["model"])
    plan = plan_stage(read_profile(description, [shard]), shard, size)
    with closing(open_weights(description, [shard])) as tensors:
        headers = tensors.num_bytes_read
        loaded = load_stage(
            description, tensors, plan, unit=native_unit(), pool=make_pool(size.num_threads)
        )
        read_bytes = tensors.num_bytes_read - headers
    fill_cache(loaded.engine, shard, size, description.config.hidden_size)
    result = {
        "plan_bytes": plan.memory.total_bytes,
        "parts": plan.memory.parts(),
        "read_bytes": read_bytes,
    }
    print(json.dumps(result), flush=True)
    sys.stdin.readline()  # until it was looked at a last time


def fill_cache(engine: LoadableEngine, shard: Shard, size: StageSize, hidden_size: int) -> None:
    """Sequences of whole contexts until every block is taken: prompts, and a token at the end."""
    free = list(range(size.num_blocks))
    sequence = 0
    while free:
        num_blocks = min(len(free), -(-size.context_tokens // KV_BLOCK_TOKENS))
        table = tuple(free.pop() for _ in range(num_blocks))
        num_tokens = min(size.context_tokens, num_blocks * KV_BLOCK_TOKENS)
        opening = SequenceOpening(
            sequence_id=SequenceId(sequence), sampling=SamplingParams(), prompt_tokens=(0,)
        )
        start = 0
        while start < num_tokens:
            # All but the last token as prompts are; then one alone, as when decoding.
            count = min(size.max_step_tokens, max(1, num_tokens - 1 - start))
            part = SequenceSlice(
                sequence_id=SequenceId(sequence),
                tokens=(0,) * count,
                start_position=start,
                block_table=table,
                sample=True,
            )
            opened = (opening,) if start == 0 else ()
            hidden = None
            if not shard.has_embedding:
                hidden = np.zeros((count, hidden_size), np.float32)
            engine.step(Step(step_id=StepId(start), slices=(part,), opened=opened), hidden)
            start += count
        sequence += 1


if __name__ == "__main__":
    main()
