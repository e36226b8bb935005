"""Measure what a changing CPU quota costs a model that is already loaded.

    python benchmarks/changed_quota.py MODEL OUT.json [--rounds 5]

The process enters a control group of version 1, which needs root. Three copies of the model take
turns: one that follows the usable cores, one whose threads stay as many as there were without a
quota (as if the quota were read once), and one with a single thread. In every round the quota is
none, one core, half a core, and none again.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

from circumstances import circumstances
from command_line import documented_parser

from potluck.engines.native import pool
from potluck.host.cores import WATCH_SECONDS, CoreWatch, own_usable_cores
from potluck.local import Model

SCHEMA = "potluck.benchmark.changed_quota/1"
CPU_GROUPS = Path("/sys/fs/cgroup/cpu")
PERIOD = 100_000
QUOTAS = {"none": -1, "one core": PERIOD, "half a core": PERIOD // 2, "none again": -1}
PROMPT = "The history of computing begins long before"


@contextmanager
def own_group() -> Iterator[Path]:
    """Enter a control group for the length of a block."""
    group = CPU_GROUPS / f"potluck-changed-quota-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield group
    finally:
        (CPU_GROUPS / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def open_models(model: str, opened: ExitStack) -> dict[str, Model]:
    """Open the three copies; the quota is none."""
    cores = own_usable_cores()
    with patch.object(pool, "CoreWatch", lambda: CoreWatch(lambda: cores)):
        fixed = opened.enter_context(Model.open(model, draft="off", prefix_cache=False))
    single = opened.enter_context(Model.open(model, num_threads=1, draft="off", prefix_cache=False))
    following = opened.enter_context(Model.open(model, draft="off", prefix_cache=False))
    return {"following": following, "read once": fixed, "one thread": single}


def decode_rate(model: Model, num_tokens: int, temperature: float) -> float:
    """Return the tokens per second after the first."""
    generation = model.generate(
        PROMPT, max_tokens=num_tokens, ignore_eos=True, temperature=temperature, seed=1
    )
    timings = generation.result().timings
    return (timings.num_new_tokens - 1) / timings.decode_seconds


def main() -> None:
    """Measure alternately, print the medians, and write the file."""
    parser = documented_parser(__doc__)
    parser.add_argument("model", help="a directory, a .gguf file, or demo")
    parser.add_argument("out", type=Path, help="where the JSON goes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--decode", type=int, default=96)
    arguments = parser.parse_args()
    record = {"schema": SCHEMA, **circumstances()}
    kinds = {"greedy": 0.0, "sampled": 0.8}
    rates: dict[str, dict[str, dict[str, list[float]]]] = {
        quota: {kind: {} for kind in kinds} for quota in QUOTAS
    }
    with own_group() as group, ExitStack() as opened:
        models = open_models(arguments.model, opened)
        for model in models.values():
            decode_rate(model, arguments.decode, 0.0)
        for _ in range(arguments.rounds):
            for quota, microseconds in QUOTAS.items():
                (group / "cpu.cfs_quota_us").write_text(str(microseconds))
                time.sleep(WATCH_SECONDS)
                for kind, temperature in kinds.items():
                    for name, model in models.items():
                        rate = decode_rate(model, arguments.decode, temperature)
                        rates[quota][kind].setdefault(name, []).append(rate)
        (group / "cpu.cfs_quota_us").write_text("-1")
    for quota, of_kinds in rates.items():
        for kind, of_models in of_kinds.items():
            shown = ", ".join(
                f"{name} {statistics.median(each):6.1f}" for name, each in of_models.items()
            )
            gain = statistics.median(
                a / b for a, b in zip(of_models["following"], of_models["read once"], strict=True)
            )
            print(f"{quota:12} {kind:8} tokens/s: {shown}; following / read once {gain:.2f}")
    document = {
        **record,
        "model": Path(arguments.model).name,
        "decode_tokens": arguments.decode,
        "tokens_per_second": rates,
    }
    arguments.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
