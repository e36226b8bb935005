"""Loads stages and fills their caches, for a parent that watches how much memory that takes.

``python -m support.engines.loading_child``: a line with a case comes in, ``ready PID`` goes out of
a process that is forked for it, an empty line comes in, a line with the plan and the bytes that
were read goes out, and with a further empty line it ends; ``ended STATUS`` goes out of the first
process, which waits for the next case or the end of its input. So every case begins in a process
that has imported everything and done nothing.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import numpy as np
from support.cluster.content_files import ContentService
from support.engines.pools import pool_of

from potluck.catalog import (
    ManifestView,
    describe_model,
    describe_view,
    open_weights,
    read_profile,
)
from potluck.cluster.transfer.client import TransferClient
from potluck.engines.backends import native_unit
from potluck.engines.loading import plan_stage
from potluck.engines.loading.load import load_stage
from potluck.types.choices import Quantization
from potluck.types.content import Manifest
from potluck.types.engine import LoadableEngine
from potluck.types.program import Shard
from potluck.types.stage import StageSize
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
    while line := sys.stdin.readline():
        pid = os.fork()
        if pid == 0:
            run_and_exit(json.loads(line))
        _, status = os.waitpid(pid, 0)
        print("ended", os.waitstatus_to_exitcode(status), flush=True)


def run_and_exit(case: dict[str, Any]) -> NoReturn:
    """Run the case in this process, and end it."""
    status = 1
    try:
        load(case)
        status = 0
    except BaseException:  # noqa: BLE001 - the child never goes back to the loop
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def load(case: dict[str, Any]) -> None:
    """Load the case's stage and fill its cache, in turn with the parent."""
    os.environ["XDG_CACHE_HOME"] = case["cache"]
    served = None if case.get("manifest") is None else serve(case)
    print("ready", os.getpid(), flush=True)
    sys.stdin.readline()
    size = StageSize(**{**case["size"], "quantization": Quantization(case["size"]["quantization"])})
    shard = Shard(**case["shard"])
    description = describe_model(case["model"]) if served is None else describe_view(served)
    plan = plan_stage(read_profile(description, [shard]), shard, size)
    with closing(open_weights(description, [shard])) as tensors:
        headers = tensors.num_bytes_read
        loaded = load_stage(
            description, tensors, plan, unit=native_unit(), pool=pool_of(size.num_threads)
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


def serve(case: dict[str, Any]) -> ManifestView:
    """The files of the case's manifest, over a socket as a worker has it."""
    manifest = msgspec.convert(case["manifest"], Manifest)
    service = ContentService({sha256: Path(path) for sha256, path in case["paths"].items()})
    return ManifestView(manifest, TransferClient(service.worker_socket()), name="m")


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
