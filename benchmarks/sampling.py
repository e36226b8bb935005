"""Compare sampling with greedy decoding: ``METHODOLOGY.md``, "Sampling".

    python benchmarks/sampling.py [--shape Llama-3.2-1B] [--threads 1 2] [--rounds 30]
        [--output FILE]

One stage with the head and random weights takes steps of one token, greedily and with every
combination of parameters in turn. How flat its distributions are is set by the last norm's weights.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from circumstances import circumstances
from cost_model import config_of, stored
from model_shapes import SHAPES, Shape
from numpy.typing import NDArray
from peer_process import published
from random_weights import random_rows

from potluck.engines.native.engine import NativeEngine, choose_isa
from potluck.engines.native.pool import make_pool
from potluck.models.program import build_program
from potluck.models.rope import rope_tables
from potluck.types.choices import Quantization
from potluck.types.program import Program, Shard, WeightSpec
from potluck.types.quantization import target_format
from potluck.types.step import (
    KV_BLOCK_TOKENS,
    SamplingParams,
    SequenceId,
    SequenceOpening,
    SequenceSlice,
    Step,
    StepId,
)
from potluck.types.tensor import TensorFormat, TensorInfo

if TYPE_CHECKING:
    from potluck.types.engine import TokenMasks

SCHEMA = "potluck.benchmark.sampling/1"
CONTEXT_TOKENS = 512
FIRST_POSITION = 64
PIECE_ROWS = 4096
MAX_SEQUENCES = 8
DISTRIBUTIONS = {"flat": 1.0, "peaked": 8.0}
"""The weights of the last norm. With 1 logits have the standard deviation of an untrained model's,
about 0.9; with 8 the likeliest few tokens have nearly all of the probability."""
AIM = 0.02
"""The maximum fraction of greedy decoding's rate that sampling may cost."""

NEUTRAL = SamplingParams(seed=7)
GREEDY = SamplingParams(temperature=0.0)
COMBINATIONS = {
    "temperature 1": NEUTRAL,
    "temperature 0.8": SamplingParams(temperature=0.8, seed=7),
    "temperature 0.8, top-p 0.95": SamplingParams(temperature=0.8, top_p=0.95, seed=7),
    "top-p 0.95": SamplingParams(top_p=0.95, seed=7),
    "top-p 0.5": SamplingParams(top_p=0.5, seed=7),
    "temperature 2, top-p 0.99": SamplingParams(temperature=2.0, top_p=0.99, seed=7),
    "top-k 40": SamplingParams(top_k=40, seed=7),
    "top-k 20, top-p 0.8, temperature 0.7": SamplingParams(
        temperature=0.7, top_k=20, top_p=0.8, seed=7
    ),
    "top-k 5000": SamplingParams(top_k=5000, seed=7),
    "min-p 0.05": SamplingParams(min_p=0.05, seed=7),
    "all three": SamplingParams(top_k=40, top_p=0.95, min_p=0.05, seed=7),
    "penalties": SamplingParams(
        repetition_penalty=1.1, frequency_penalty=0.2, presence_penalty=0.1, seed=7
    ),
    "five log-probabilities": SamplingParams(logprobs=True, top_logprobs=5, seed=7),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A row of the table; times are of whole steps, and of sampling within them."""

    distribution: str
    num_threads: int
    num_sequences: int
    combination: str
    is_masked: bool
    greedy_seconds: list[float]
    seconds: list[float]
    greedy_sampling_seconds: list[float]
    sampling_seconds: list[float]

    @property
    def lost(self) -> float:
        """The lost fraction of greedy decoding's rate, as the median over rounds."""
        pairs = zip(self.greedy_seconds, self.seconds, strict=True)
        return 1 - statistics.median(greedy / own for greedy, own in pairs)

    @property
    def drawing_seconds(self) -> float:
        """The additional time of sampling in a step, compared with greedy decoding."""
        own = statistics.median(self.sampling_seconds)
        return own - statistics.median(self.greedy_sampling_seconds)

    @property
    def share(self) -> float:
        """``drawing_seconds`` as a share of a greedy step: steadier than ``lost`` on a shared
        machine.
        """
        return self.drawing_seconds / statistics.median(self.greedy_seconds)


def loaded_engine(shape: Shape, flatness: float, num_threads: int) -> NativeEngine:
    """Return a stage with the head; every matrix has random rows of its own."""
    config = config_of(shape)
    shard = Shard(
        start_layer=0,
        end_layer=config.num_layers,
        num_layers=config.num_layers,
        has_embedding=False,
        has_head=True,
    )
    rope = rope_tables(config, CONTEXT_TOKENS)
    program = build_program(config, shard, context_tokens=CONTEXT_TOKENS, ropes=rope)
    engine = NativeEngine(
        program,
        num_blocks=MAX_SEQUENCES * CONTEXT_TOKENS // KV_BLOCK_TOKENS,
        max_step_tokens=MAX_SEQUENCES,
        pool=make_pool(num_threads),
        isa=choose_isa(None),
    )
    last_norm = [spec for spec in program.weights if len(spec.shape) == 1][-1]
    for spec in program.weights:
        _write(engine, program, spec, flatness if spec is last_norm else 1.0)
    engine.time_ops()
    return engine


def _write(engine: NativeEngine, program: Program, spec: WeightSpec, scale: float) -> None:
    info = stored(spec.name, spec.shape)
    fmt = target_format(Quantization.Q4_0, spec, info, program.shard.num_layers)
    info = TensorInfo(name=spec.name, shape=spec.shape, format=fmt)
    sink = engine.sink()
    sink.begin(info)
    if len(spec.shape) == 1:
        assert fmt is TensorFormat.F32
        sink.write_rows(info.name, 0, 1, memoryview(np.full(spec.shape, scale, "<f4").tobytes()))
    else:
        rng = np.random.default_rng(len(spec.name))
        # The layers may repeat themselves, the head's rows may not: their logits would be equal.
        for start in range(0, info.num_rows, PIECE_ROWS):
            end = min(start + PIECE_ROWS, info.num_rows)
            rows = random_rows(rng, fmt, end - start, info.num_columns)
            sink.write_rows(info.name, start, end, memoryview(rows.tobytes()))
    sink.finish(info.name)


class Turns:
    """Steps of the same sequences, each combination with sequences of its own."""

    def __init__(self, engine: NativeEngine, shape: Shape, num_sequences: int) -> None:
        self._engine = engine
        self._num_sequences = num_sequences
        self._next_id = 0
        rng = np.random.default_rng(1)
        size = (num_sequences, shape.hidden_size)
        self._hidden: NDArray[np.float32] = rng.standard_normal(size, dtype=np.float32)

    def open(self, params: SamplingParams) -> list[SequenceId]:
        """Open as many sequences, with a thousand tokens of prompt."""
        ids = [SequenceId(self._next_id + index) for index in range(self._num_sequences)]
        self._next_id += self._num_sequences
        opened = tuple(
            SequenceOpening(sequence_id=each, sampling=params, prompt_tokens=tuple(range(1000)))
            for each in ids
        )
        no_rows = self._hidden[:0]
        self._engine.step(Step(step_id=StepId(0), slices=(), opened=opened), no_rows)
        return ids

    def step(self, ids: list[SequenceId], number: int, masks: TokenMasks) -> tuple[float, float]:
        """Take one step; return its seconds, and those of sampling."""
        blocks = CONTEXT_TOKENS // KV_BLOCK_TOKENS
        slices = tuple(
            SequenceSlice(
                sequence_id=each,
                tokens=(0,),
                start_position=FIRST_POSITION + number % (CONTEXT_TOKENS - FIRST_POSITION),
                block_table=tuple(range(index * blocks, (index + 1) * blocks)),
                sample=True,
            )
            for index, each in enumerate(ids)
        )
        step = Step(step_id=StepId(0), slices=slices)
        before = self._engine.op_seconds()["sampling"]
        started = time.perf_counter()
        self._engine.step(step, self._hidden, masks)
        seconds = time.perf_counter() - started
        return seconds, self._engine.op_seconds()["sampling"] - before


def compared(
    engine: NativeEngine, shape: Shape, num_sequences: int, num_rounds: int
) -> Iterator[tuple[str, bool, list[tuple[float, float]], list[tuple[float, float]]]]:
    """Yield the combinations with samples of greedy steps and of theirs, taken in turn."""
    turns = Turns(engine, shape, num_sequences)
    greedy = turns.open(GREEDY)
    rng = np.random.default_rng(2)
    vocab_size = shape.vocab_size or 0
    mask = rng.integers(0, 2**32, -(-vocab_size // 32), dtype=np.uint32)
    cases = [(name, params, False) for name, params in COMBINATIONS.items()]
    cases += [
        ("temperature 0.8, top-p 0.95", COMBINATIONS["temperature 0.8, top-p 0.95"], True),
    ]
    opened = [turns.open(params) for _, params, _ in cases]
    for (name, _, is_masked), ids in zip(cases, opened, strict=True):
        masks = dict.fromkeys(ids, mask[np.newaxis]) if is_masked else {}
        samples: tuple[list[tuple[float, float]], ...] = ([], [])
        for number in range(-2, num_rounds):
            now = turns.step(greedy, number + 2, {}), turns.step(ids, number + 2, masks)
            if number >= 0:
                samples[0].append(now[0])
                samples[1].append(now[1])
        yield name, is_masked, samples[0], samples[1]


def measured(shape: Shape, num_threads: int, num_rounds: int, distribution: str) -> Iterator[Case]:
    """Yield the rows of one engine."""
    engine = loaded_engine(shape, DISTRIBUTIONS[distribution], num_threads)
    for num_sequences in (1, MAX_SEQUENCES):
        for name, is_masked, greedy, own in compared(engine, shape, num_sequences, num_rounds):
            yield Case(
                distribution=distribution,
                num_threads=num_threads,
                num_sequences=num_sequences,
                combination=name,
                is_masked=is_masked,
                greedy_seconds=[each for each, _ in greedy],
                seconds=[each for each, _ in own],
                greedy_sampling_seconds=[each for _, each in greedy],
                sampling_seconds=[each for _, each in own],
            )
        engine.reset()
    engine.close()


def document_of(case: Case) -> Mapping[str, Any]:
    """Return a row with what follows from it."""
    return {
        **asdict(case),
        "lost": case.lost,
        "drawing_seconds": case.drawing_seconds,
        "share": case.share,
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="Llama-3.2-1B")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--distribution", nargs="+", choices=DISTRIBUTIONS, default=DISTRIBUTIONS)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    document: dict[str, Any] = {
        "schema": SCHEMA,
        **circumstances(),
        "command": published(["python", *sys.argv]),
        "isa": choose_isa(None),
        "shape": arguments.shape,
        "aim": AIM,
        "cases": [],
    }
    shape = SHAPES[arguments.shape]
    print(f"{'':45} threads sequences   tokens/s     lost    draw  of a step")
    for num_threads in arguments.threads:
        for distribution in arguments.distribution:
            for case in measured(shape, num_threads, arguments.rounds, distribution):
                document["cases"].append(document_of(case))
                name = f"{distribution}: {case.combination}{', masked' * case.is_masked}"
                rate = case.num_sequences / statistics.median(case.greedy_seconds)
                print(
                    f"{name:45} {num_threads:7} {case.num_sequences:9} {rate:10.1f} "
                    f"{100 * case.lost:6.1f} % {1e6 * case.drawing_seconds:5.0f} us "
                    f"{100 * case.share:6.1f} %",
                    flush=True,
                )
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
