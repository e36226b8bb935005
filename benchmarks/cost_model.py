"""Compare the cost model's predictions from a unit's trial with the native engine.

    python benchmarks/cost_model.py [--threads 1] [--isa amx] [--shapes 1B] [--output FILE]

``benchmarks/METHODOLOGY.md``, "Cost model". With one thread the CPU time of the process is what
counts, so that other programs disturb little; with more, the clock's.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
from circumstances import write_result
from command_line import documented_parser
from model_shapes import SHAPES, Shape
from random_weights import random_rows

from potluck.engines.native.engine import NativeEngine, choose_isa, loaded_bytes
from potluck.engines.native.pool import ThreadPool, make_pool
from potluck.engines.profiling import rate_program
from potluck.engines.profiling.measure import MeasurementSetup, measure
from potluck.host.cores import last_level_cache_bytes
from potluck.models.layers import plain_config, with_layers
from potluck.models.program import build_program, weight_specs
from potluck.models.rope import rope_tables
from potluck.models.states import slot_bytes
from potluck.placement.speed import unit_speed
from potluck.placement.times import PartTimes, UnitTimes
from potluck.placement.work import model_work
from potluck.types.choices import Quantization
from potluck.types.hardware import Figure, Figures, Origin, Rates
from potluck.types.model import (
    ExpertsConfig,
    GatedDeltaConfig,
    LayerConfig,
    ModelConfig,
    ShortConvConfig,
)
from potluck.types.profile import ModelProfile
from potluck.types.program import Program, Shard
from potluck.types.quantization import target_format
from potluck.types.step import (
    SamplingParams,
    SequenceId,
    SequenceOpening,
    SequenceSlice,
    Step,
    StepId,
)
from potluck.types.tensor import TensorFormat, TensorInfo

CONTEXT_TOKENS = 4096
VOCAB_SIZE = 32_000
"""The vocabulary of shapes that otherwise have demo's, which is too small to measure a head."""
CASES = [
    ("100M", Quantization.Q8_0),
    ("100M", Quantization.Q4_K),
    ("100M", Quantization.NONE),
    ("0.5B", Quantization.Q8_0),
    ("1B", Quantization.Q8_0),
    ("1B", Quantization.Q4_K),
    ("1B", Quantization.NONE),
    ("Qwen3-30B-A3B-4-layers", Quantization.Q4_K),
    ("LFM2-1.2B", Quantization.Q4_K),
    ("Qwen3.5-4B", Quantization.Q4_K),
]
"""NONE means BF16, the stored format."""
DECODES = [(1, 64), (2, 64), (4, 64), (8, 64), (16, 64), (1, 1024), (1, 4096), (8, 512)]
"""The number of sequences, and the context of each."""
PREFILLS = [(32, 32), (128, 128), (512, 512), (256, 2048)]
"""The number of tokens of the chunk, and the context at its end."""
NUM_STATES = 16
"""The number of states: the maximum number of sequences in a step."""
TURN_SECONDS = 0.4
LEAST_SAMPLES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """``now`` in seconds; CPU time where one thread computes."""

    name: str
    now: Callable[[], float]


def main() -> None:
    """Measure, print a table of errors, write the document."""
    parser = documented_parser(__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--isa")
    parser.add_argument("--shapes", nargs="*", default=[name for name, _ in CASES])
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    pool = make_pool(arguments.threads)
    isa = arguments.isa or choose_isa(None)
    clock = (
        Clock(name="CPU time", now=time.process_time)
        if arguments.threads == 1
        else Clock(name="wall", now=time.perf_counter)
    )
    rates, figures = trial(pool, isa, clock)
    print(json.dumps({"trial": flat(rates) | flat(figures)}, indent=1))
    results = []
    for name, quantization in CASES:
        if name not in arguments.shapes:
            continue
        for row in compare(name, quantization, rates, figures, pool, isa, clock):
            results.append(row)
            error = f"{100 * (row['predicted_seconds'] / row['seconds'] - 1):+5.0f} %"
            milliseconds = f"{1e3 * row['predicted_seconds']:9.3f} {1e3 * row['seconds']:9.3f} ms"
            what = f"{name:24} {row['quantization']:5} {row['kind']:18}"
            print(f"{what} {milliseconds} {error}", flush=True)
    summary = {kind: errors(results, kind) for kind in ("decode", "prefill", "head", "whole", "")}
    print(json.dumps(summary, indent=1))
    found = {
        "num_threads": arguments.threads,
        "isa": isa,
        "clock": clock.name,
        "trial": flat(rates) | flat(figures),
        "summary": summary,
        "results": results,
    }
    write_result(arguments.output, "potluck.benchmark.cost_model/1", found)


def errors(results: list[dict[str, Any]], kind: str) -> dict[str, float]:
    """Return the median and the worst error of what begins with ``kind``, as parts of measured."""
    found = [
        abs(row["predicted_seconds"] / row["seconds"] - 1)
        for row in results
        if row["kind"].startswith(kind)
    ]
    return {"median": statistics.median(found), "worst": max(found), "count": len(found)}


def trial(pool: ThreadPool, isa: str, clock: Clock) -> tuple[Rates, Figures]:
    """Return what a node's trial measures, with this clock."""
    setup = MeasurementSetup(
        make_engine=maker(pool, isa),
        formats={
            "f32_operations_per_second": TensorFormat.F32,
            "f16_operations_per_second": TensorFormat.BF16,
            "int8_operations_per_second": TensorFormat.Q8_0,
        },
        num_tokens=128,
        cache_bytes=last_level_cache_bytes(),
        ending="",
    )
    with patch.object(rate_program, "time", SimpleNamespace(perf_counter=clock.now)):
        document = measure(setup, 1 << 30, lambda _: None)

    def figure(each: dict[str, object]) -> Figure:
        return Figure(value=float(str(each["value"])), origin=Origin.MEASURED, source="")

    return (
        Rates(**{name: figure(each) for name, each in document["rates"].items()}),
        Figures(**{name: figure(each) for name, each in document["figures"].items()}),
    )


def flat(figures: Rates | Figures) -> dict[str, float | None]:
    """Return values by name."""
    return {name: getattr(figures, name).value for name in figures.__dataclass_fields__}


def compare(
    name: str,
    quantization: Quantization,
    rates: Rates,
    figures: Figures,
    pool: ThreadPool,
    isa: str,
    clock: Clock,
) -> Iterator[dict[str, Any]]:
    """Yield what was predicted and measured of each kind of step."""
    config = config_of(SHAPES[name])
    last = config.num_layers
    times = UnitTimes(
        work=model_work(profile_of(config), quantization, loaded_bytes),
        speed=unit_speed(rates, figures, is_shared=True),
    )
    stage = Shard(
        start_layer=0, end_layer=last, num_layers=last, has_embedding=False, has_head=True
    )

    def row(
        kind: str, parts: PartTimes, start: int, end: int, samples: list[float]
    ) -> dict[str, Any]:
        return {
            "shape": name,
            "quantization": quantization.value,
            "kind": kind,
            "predicted_seconds": parts.seconds(start, end),
            "seconds": quartile(samples),
            "samples_seconds": samples,
        }

    engine = loaded_engine(config, stage, quantization, pool, isa)
    step_with = partial(step_of, has_states=slot_bytes(config) > 0)
    for count, context in DECODES:
        samples = measured(engine, step_with(count, 1, context), config.hidden_size, clock)
        yield row(f"decode {count}@{context}", times.decode(count, context), 1, last + 1, samples)
    for count, context in PREFILLS:
        samples = measured(engine, step_with(1, count, context), config.hidden_size, clock)
        yield row(f"prefill {count}@{context}", times.prefill(count, context), 1, last + 1, samples)
    # Alone, a head may stay in a cache that the layers push it out of.
    for count in (1, 8):
        without = step_with(count, 1, 64)
        samples = measured(engine, without, config.hidden_size, clock)
        layers_seconds = quartile(samples)
        step = step_with(count, 1, 64, sample=True)
        samples = measured(engine, step, config.hidden_size, clock)
        head = [max(0.0, each - layers_seconds) for each in samples]
        yield row(f"head {count}", times.decode(count, 64), last + 1, last + 2, head)
        yield row(f"whole {count}", times.decode(count, 64), 1, last + 2, samples)
    engine.close()


def config_of(shape: Shape) -> ModelConfig:
    """Return the configuration of a shape."""
    experts = shape.experts
    config = plain_config(
        family="llama",
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab_size or VOCAB_SIZE,
        max_context_tokens=CONTEXT_TOKENS,
        norm_epsilon=1e-5,
        theta=10_000.0,
        tied_head=False,
        has_head_norms=shape.has_head_norms,
        experts=None
        if experts is None
        else ExpertsConfig(
            num_experts=experts.num_experts,
            num_experts_per_token=experts.num_experts_per_token,
            width=experts.intermediate_size,
            norm_topk_prob=True,
        ),
    )
    net = shape.gated_delta

    def changed(layer: int, plain: LayerConfig) -> LayerConfig:
        if layer in shape.conv_layers:
            return replace(plain, attention=None, recurrence=ShortConvConfig(kernel=shape.kernel))
        if net is None:
            return plain
        if not shape.is_recurrent(layer):
            return replace(plain, attention=replace(plain.grouped_attention, has_output_gate=True))
        delta = GatedDeltaConfig(
            num_heads=net.num_heads,
            num_key_heads=net.num_key_heads,
            key_dim=net.head_dim,
            value_dim=net.head_dim,
            kernel=net.kernel,
        )
        return replace(plain, attention=None, recurrence=delta)

    return with_layers(config, changed)


def profile_of(config: ModelConfig) -> ModelProfile:
    """Return the profile of a model whose matrices are stored in BF16."""
    specs = weight_specs(config, Shard.whole(config.num_layers))
    tensors = {spec.name: stored(spec.name, spec.shape) for spec in specs}
    return ModelProfile(
        config=config,
        path="",
        tensors=tensors,
        file_names={},
        unusable={},
        layer_bytes=(),
        embedding_bytes=(),
        head_bytes=(),
    )


def stored(name: str, shape: tuple[int, ...]) -> TensorInfo:
    """Return a tensor as files have it."""
    fmt = TensorFormat.F32 if len(shape) == 1 else TensorFormat.BF16
    return TensorInfo(name=name, shape=shape, format=fmt)


def maker(pool: ThreadPool, isa: str) -> Callable[..., NativeEngine]:
    """Return what makes engines."""

    def make(
        program: Program, *, num_blocks: int, max_step_tokens: int, num_states: int = 0
    ) -> NativeEngine:
        return NativeEngine(
            program,
            num_blocks=num_blocks,
            max_step_tokens=max_step_tokens,
            num_states=num_states,
            pool=pool,
            isa=isa,
        )

    return make


def loaded_engine(
    config: ModelConfig, shard: Shard, quantization: Quantization, pool: ThreadPool, isa: str
) -> NativeEngine:
    """Return an engine with random weights, which repeat in a large matrix."""
    rope = rope_tables(config, CONTEXT_TOKENS)
    program = build_program(config, shard, context_tokens=CONTEXT_TOKENS, ropes=rope)
    engine = maker(pool, isa)(
        program,
        num_blocks=CONTEXT_TOKENS // 16,
        max_step_tokens=512,
        num_states=NUM_STATES if program.states else 0,
    )
    sink = engine.sink()
    rng = np.random.default_rng(0)
    pieces: dict[tuple[TensorFormat, int, int, float], memoryview] = {}
    for spec in program.weights:
        info = stored(spec.name, spec.shape)
        fmt = target_format(quantization, spec, info, config.num_layers)
        info = TensorInfo(name=spec.name, shape=spec.shape, format=fmt)
        num_rows = min(info.num_rows, 512)
        key = (fmt, info.num_columns, num_rows, _vector_value(spec.name))
        if key not in pieces:
            rows = (
                np.full(spec.shape, _vector_value(spec.name), "<f4")
                if len(spec.shape) == 1
                else random_rows(rng, fmt, num_rows, info.num_columns)
            )
            pieces[key] = memoryview(rows.tobytes())
        sink.begin(info)
        for start in range(0, info.num_rows, num_rows):
            end = min(start + num_rows, info.num_rows)
            sink.write_rows(info.name, start, end, pieces[key][: (end - start) * info.row_bytes])
        sink.finish(info.name)
    return engine


def _vector_value(name: str) -> float:
    """Return the value of every entry of a vector; states decay, so that they stay finite."""
    return -1.0 if name.endswith("rate.weight") else 1.0


def step_of(
    num_sequences: int,
    num_tokens: int,
    context: int,
    *,
    has_states: bool,
    sample: bool = False,
) -> Step:
    """Return a step with ``num_tokens`` of each sequence, at the end of its context."""
    blocks = -(-context // 16)
    slices = tuple(
        SequenceSlice(
            sequence_id=SequenceId(number),
            tokens=(0,) * num_tokens,
            start_position=context - num_tokens,
            block_table=tuple(range(number * blocks, (number + 1) * blocks)),
            sample=sample,
            state=number if has_states else None,
        )
        for number in range(num_sequences)
    )
    greedy = SamplingParams(temperature=0.0)
    ids = tuple(part.sequence_id for part in slices) if sample else ()
    opened = tuple(
        SequenceOpening(sequence_id=each, sampling=greedy, prompt_tokens=(1,)) for each in ids
    )
    return Step(step_id=StepId(0), slices=slices, opened=opened, closed=ids)


def measured(engine: NativeEngine, step: Step, width: int, clock: Clock) -> list[float]:
    """Return the seconds of steps after the first."""
    random = np.random.default_rng(0)
    hidden = random.standard_normal((step.num_tokens, width), dtype=np.float32)
    engine.step(step, hidden)
    samples: list[float] = []
    end = time.perf_counter() + TURN_SECONDS
    while time.perf_counter() < end or len(samples) < LEAST_SAMPLES:
        started = clock.now()
        engine.step(step, hidden)
        samples.append(clock.now() - started)
    return samples


def quartile(samples: list[float]) -> float:
    """Return the lower quartile: what disturbs a step only makes it longer."""
    return sorted(samples)[len(samples) // 4]


if __name__ == "__main__":
    main()
