"""Run ``potluck bench`` in a separate process to measure our side."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from comparison import Limits, Rates, Setting, median_of
from peer_process import Outcome, Run, RunFailedError, measured


def run_potluck(model: Path, setting: Setting, *, num_repeats: int, timeout_seconds: float) -> Run:
    """Measure one setting; a failure is in its rates."""
    command = [
        *(sys.executable, "-m", "potluck", "bench", str(model), "--json"),
        *("--prompt", str(max(1, setting.num_prompt_tokens))),
        *("--decode", str(setting.num_decode_tokens), "--depth", str(setting.depth_tokens)),
        *("--sequences", str(setting.num_sequences), "--threads", str(setting.num_threads)),
        *("--repeats", str(num_repeats)),
        *(("--arithmetic", "fast") if setting.is_fast else ()),
    ]
    environment = dict(os.environ)
    if setting.isa is not None:
        environment["POTLUCK_ISA"] = setting.isa
    parse = partial(parse_bench, is_fast=setting.is_fast, is_sampled=setting.is_sampled)
    return measured(command, parse, timeout_seconds, environment)


def parse_bench(printed: str, *, is_fast: bool, is_sampled: bool = False) -> Outcome:
    """Parse ``potluck bench --json``: rates, and the medians of the machine's limits.

    Raises ``RunFailedError`` if fast arithmetic was requested but is unavailable.
    """
    document = json.loads(printed)
    if is_fast and document["arithmetic"] == "exact":
        raise RunFailedError(f"{document['isa']} has no fast arithmetic")
    decode = document["decode"]
    limits = document["limits"] or {"read_bytes_per_second": [], "peaks": []}
    peaks = {each["operands"]: each["operations_per_second"] for each in limits["peaks"]}
    return Outcome(
        rates=Rates(
            prefill=tuple(document["prefill_tokens_per_second"]),
            decode=tuple(document[f"{'sampled' if is_sampled else 'decode'}_tokens_per_second"]),
            outside=() if decode is None else (outside_products(decode),),
            of_bandwidth=()
            if decode is None or is_sampled
            else tuple(decode["fraction_of_bound"] or ()),
        ),
        limits=Limits(
            read_bytes_per_second=median_of(limits["read_bytes_per_second"]),
            int8_operations_per_second=median_of(peaks.get("int8", [])),
        ),
    )


def outside_products(phase: Mapping[str, Any]) -> float:
    """Return the fraction of a phase in ops that are not products with weights. Products with
    weights are named after their matrices: ``attn.q+k+v``, ``head``, ``experts``.
    """
    shares: list[float] = [
        each["share"]
        for each in phase["ops"]
        if "." not in each["op"] and not {"head", "experts"} & set(each["op"].split("+"))
    ]
    return sum(shares)
