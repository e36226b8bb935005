"""Measure the cost of a step that verifies drafts: ``METHODOLOGY.md``, "Verification".

    python benchmarks/verify.py MODEL... [--tokens 1 2 4 8 16] [--depths 128 2048] [--threads 1 2]
        [--arithmetics exact] [--rounds 20] [--output FILE]

One sequence brings 1, 2, 4, ... tokens to a step, all but the first of them drafts; and as many
sequences bring one token each. All are timed in turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from circumstances import circumstances
from command_line import documented_parser
from peer_process import published

from potluck.local.model import Model
from potluck.types.choices import ArithmeticChoice
from potluck.types.step import (
    KV_BLOCK_TOKENS,
    SamplingParams,
    SequenceId,
    SequenceOpening,
    SequenceSlice,
    Step,
    StepId,
)

SCHEMA = "potluck.benchmark.verify/1"
_FIRST_TOKEN = 300
_GREEDY = SamplingParams(temperature=0.0)
_KINDS = ("drafts", "batch")


def main() -> None:
    """Measure every model at every depth, print ratios, and write the document."""
    parser = documented_parser(__doc__)
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    parser.add_argument("--tokens", nargs="+", type=int, default=[1, 2, 3, 4, 6, 8, 12, 16])
    parser.add_argument("--depths", nargs="+", type=int, default=[128, 2048])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--arithmetics", nargs="+", default=["exact"])
    parser.add_argument("--isa")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--ops", action="store_true", help="also say which ops take the time")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    document: dict[str, Any] = {"schema": SCHEMA, **circumstances(), "measured": []}
    document["command"] = published(document["command"])
    for path in arguments.models:
        for arithmetic in map(ArithmeticChoice, arguments.arithmetics):
            for num_threads in arguments.threads:
                document["measured"] += _measured(path, arithmetic, num_threads, arguments)
                if arguments.output is not None:
                    arguments.output.write_text(json.dumps(document, indent=1) + "\n")


def _measured(
    path: Path, arithmetic: ArithmeticChoice, num_threads: int, arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    most, deepest = max(arguments.tokens), max(arguments.depths)
    blocks_each = -(-(deepest + most) // KV_BLOCK_TOKENS)
    model = Model.open(
        str(path),
        context_tokens=blocks_each * KV_BLOCK_TOKENS,
        cache_tokens=most * blocks_each * KV_BLOCK_TOKENS,
        num_threads=num_threads,
        isa=arguments.isa,
        arithmetic=arithmetic,
        prefix_cache=False,
    )
    (stage,) = model.stages
    engine = stage.engine
    found = []
    try:
        _fill(engine, most * blocks_each)
        for depth in sorted(arguments.depths):
            seconds = _seconds(engine, depth, blocks_each, arguments)
            entry = {
                "model": path.stem,
                "arithmetic": arithmetic.value,
                "num_threads": num_threads,
                "depth": depth,
                "steps": [
                    {
                        "kind": kind,
                        "num_tokens": count,
                        "ratio": _ratio(each, seconds["drafts", 1], 0),
                        "cpu_ratio": _ratio(each, seconds["drafts", 1], 1),
                        "seconds": [one[0] for one in each],
                        "cpu_seconds": [one[1] for one in each],
                    }
                    for (kind, count), each in seconds.items()
                ],
            }
            _print(entry)
            found.append(entry)
            if arguments.ops:
                _print_ops(engine, depth, blocks_each, arguments)
    finally:
        model.close()
    return found


def _fill(engine: Any, num_blocks: int) -> None:
    """Write keys and values of all positions: halves of random bits, between 1/16 and 1/8."""
    random = np.random.default_rng(0)
    for block in range(num_blocks):
        bits = random.integers(0, 1 << 16, engine.block_format.num_bytes // 2, dtype=np.uint16)
        halves = (bits & np.uint16(0x83FF)) | np.uint16(0x2C00)
        engine.write_blocks([block], halves.view(np.uint8)[np.newaxis])


def _seconds(
    engine: Any, depth: int, blocks_each: int, arguments: argparse.Namespace
) -> Mapping[tuple[str, int], list[tuple[float, float]]]:
    """Measure the wall-clock and CPU seconds of every kind of step, one of each per round.

    Two rounds warm up.
    """
    seconds: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for number in range(arguments.rounds + 2):
        for kind in _KINDS:
            for count in arguments.tokens:
                step = _kind_of_step(kind, count, depth, blocks_each)
                started, cpu_started = time.perf_counter(), time.process_time()
                engine.step(step, None)
                elapsed = time.perf_counter() - started, time.process_time() - cpu_started
                if number >= 2:
                    seconds.setdefault((kind, count), []).append(elapsed)
    return seconds


def _kind_of_step(kind: str, count: int, depth: int, blocks_each: int) -> Step:
    tokens = tuple(_FIRST_TOKEN + i for i in range(count))
    if kind == "drafts":
        return _step([_slice(0, tokens, depth - 1, blocks_each, num_drafts=count - 1)])
    return _step([_slice(i, (token,), depth - 1, blocks_each) for i, token in enumerate(tokens)])


def _slice(
    sequence: int, tokens: tuple[int, ...], start: int, blocks_each: int, **others: Any
) -> SequenceSlice:
    first = sequence * blocks_each
    return SequenceSlice(
        sequence_id=SequenceId(sequence),
        tokens=tokens,
        start_position=start,
        block_table=tuple(range(first, first + blocks_each)),
        **{"sample": True, **others},
    )


def _step(slices: list[SequenceSlice]) -> Step:
    """Return a step of the slices, in which sampled sequences are opened and closed."""
    sampled = tuple(part.sequence_id for part in slices if part.sample)
    return Step(
        step_id=StepId(0),
        slices=tuple(slices),
        opened=tuple(
            SequenceOpening(sequence_id=each, sampling=_GREEDY, prompt_tokens=(_FIRST_TOKEN,))
            for each in sampled
        ),
        closed=sampled,
    )


def _ratio(
    ones: Sequence[tuple[float, float]], bases: Sequence[tuple[float, float]], index: int
) -> float:
    """Return how many times a step of one token takes, in the median of all rounds."""
    return statistics.median(
        one[index] / base[index] for one, base in zip(ones, bases, strict=True)
    )


def _print(entry: Mapping[str, Any]) -> None:
    name = f"{entry['model']} {entry['arithmetic']} {entry['num_threads']} threads"
    for kind in _KINDS:
        steps = [step for step in entry["steps"] if step["kind"] == kind]
        for ratio in ("ratio", "cpu_ratio"):
            ratios = "  ".join(f"{step['num_tokens']}: {step[ratio]:.2f}" for step in steps)
            print(f"{name}, depth {entry['depth']}, {kind:6} {ratio:9} {ratios}", file=sys.stderr)
    first = statistics.median(entry["steps"][0]["seconds"])
    print(f"{name}, depth {entry['depth']}: 1 token {1e3 * first:.2f} ms", file=sys.stderr)


def _print_ops(engine: Any, depth: int, blocks_each: int, arguments: argparse.Namespace) -> None:
    engine.time_ops()
    before: Mapping[str, float] = engine.op_seconds()
    by_count = {}
    for count in arguments.tokens:
        for _ in range(arguments.rounds):
            engine.step(_kind_of_step("drafts", count, depth, blocks_each), None)
        after = engine.op_seconds()
        by_count[count] = {
            label: (after[label] - before.get(label, 0.0)) / arguments.rounds for label in after
        }
        before = after
    for label in before:
        row = "  ".join(
            f"{count}: {1e3 * by_count[count][label]:7.3f}" for count in arguments.tokens
        )
        print(f"    {label:28} {row} ms", file=sys.stderr)


if __name__ == "__main__":
    main()
