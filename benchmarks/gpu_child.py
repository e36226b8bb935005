"""One unit with one model in a process of its own, for ``gpu.py``: ``python -m gpu_child CASE``.

CASE is JSON of ``Case``. Prints one JSON object: what it measured, or ``{"refused": "why"}``.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import model_shapes
import msgspec
import numpy as np
from random_weights import SEED, random_tensor

from potluck.engines.backends import open_engine
from potluck.errors import PotluckError
from potluck.models.layers import plain_config
from potluck.models.program import build_program
from potluck.models.rope import rope_tables
from potluck.types.engine import LoadableEngine
from potluck.types.program import Embed, Program, Shard
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
from potluck.types.unit import UnitAddress

THIN = "thin"
"""The shape with almost no arithmetic, whose time is that of the host."""

SHAPES = {
    **{name: each for name, each in model_shapes.SHAPES.items() if each.experts is None},
    "tiny": model_shapes.Shape(
        hidden_size=256,
        intermediate_size=512,
        num_layers=2,
        num_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        vocab_size=512,
    ),
    THIN: model_shapes.Shape(
        hidden_size=256,
        intermediate_size=256,
        num_layers=12,
        num_heads=4,
        num_key_value_heads=1,
        head_dim=64,
        vocab_size=256,
    ),
}
THIN_FEWER_LAYERS = 2
DEMO_VOCABULARY = 4096
"""The vocabulary of shapes without their own, as in the files that ``shapes.py`` writes."""

_PIECE_ELEMENTS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measurement: ``num_repeats`` counted rounds of a prompt and tokens after it."""

    unit: UnitAddress
    shape: str
    format: str
    num_threads: int
    num_prompt_tokens: int
    num_decode_tokens: int
    max_step_tokens: int
    num_repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """An engine with weights, and the seconds that opening, loading and compiling took."""

    engine: LoadableEngine
    open_seconds: float
    load_seconds: float
    compile_seconds: float


def make_program(case: Case, num_layers: int | None = None) -> Program:
    """Return the whole model of a shape, or ``num_layers`` of it, with the context of the case."""
    shape = SHAPES[case.shape]
    layers = num_layers or shape.num_layers
    context_tokens = case.num_prompt_tokens + case.num_decode_tokens + 1
    config = plain_config(
        family="llama",
        num_layers=layers,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab_size or DEMO_VOCABULARY,
        max_context_tokens=context_tokens,
        norm_epsilon=1e-5,
        theta=500_000.0,
        tied_head=shape.has_tied_head,
        has_head_norms=shape.has_head_norms,
    )
    rope = rope_tables(config, context_tokens)
    return build_program(config, Shard.whole(layers), context_tokens=context_tokens, ropes=rope)


def weight_infos(program: Program, fmt: TensorFormat) -> Iterator[TensorInfo]:
    """Yield the weights: matrices in ``fmt``, norms in F32."""
    for spec in program.weights:
        stored = TensorFormat.F32 if len(spec.shape) == 1 else fmt
        yield TensorInfo(name=spec.name, shape=spec.shape, format=stored)


def bytes_per_token(program: Program, fmt: TensorFormat) -> int:
    """Return the size of the stored weights that decoding one token reads. An embedding that is not
    also the head is left out, because only one row of it is read.
    """
    used = {getattr(op, "weight", None) for op in program.ops if not isinstance(op, Embed)}
    return sum(info.num_bytes for info in weight_infos(program, fmt) if info.name in used)


def make_ready(case: Case, program: Program) -> Ready:
    """Open the unit, give it random weights, and have it compile. The engine is the caller's."""
    started = time.perf_counter()
    num_blocks = -(-program.context_tokens // KV_BLOCK_TOKENS)
    engine = open_engine(
        case.unit,
        program,
        num_blocks=num_blocks,
        max_step_tokens=case.max_step_tokens,
        num_threads=case.num_threads,
    )
    opened = time.perf_counter()
    _load(engine, program, TensorFormat[case.format.upper()])
    loaded = time.perf_counter()
    engine.warm_up()
    return Ready(
        engine=engine,
        open_seconds=opened - started,
        load_seconds=loaded - opened,
        compile_seconds=time.perf_counter() - loaded,
    )


def _load(engine: LoadableEngine, program: Program, fmt: TensorFormat) -> None:
    """Load random rows, repeatedly the same ones, because their values do not matter."""
    rng = np.random.default_rng(SEED)
    sink = engine.sink()
    for info in weight_infos(program, fmt):
        num_rows, num_columns = info.num_rows, info.num_columns
        at_once = min(num_rows, max(1, _PIECE_ELEMENTS // num_columns))
        dimensions = (at_once, num_columns) if len(info.shape) > 1 else info.shape
        (rows,) = random_tensor(rng, info.format, dimensions)
        piece = rows.reshape(-1).data
        sink.begin(info)
        for start in range(0, num_rows, at_once):
            end = min(start + at_once, num_rows)
            sink.write_rows(info.name, start, end, piece[: (end - start) * info.row_bytes])
        sink.finish(info.name)


class Runner:
    """One sequence after another through an engine."""

    def __init__(self, case: Case, engine: LoadableEngine, vocab_size: int) -> None:
        self._case = case
        self._engine = engine
        self._vocab_size = vocab_size
        self._num_steps = 0
        self._num_sequences = 0

    def round(self) -> tuple[float, list[float]]:
        """Return the seconds of a prompt up to its first token, and of each following step."""
        case = self._case
        sequence_id = SequenceId(self._num_sequences)
        self._num_sequences += 1
        rng = np.random.default_rng(SEED)
        prompt = tuple(rng.integers(0, self._vocab_size, case.num_prompt_tokens).tolist())
        opening = SequenceOpening(
            sequence_id=sequence_id,
            sampling=SamplingParams(temperature=0.0),
            prompt_tokens=prompt,
        )
        started = time.perf_counter()
        token = 0
        for start in range(0, len(prompt), case.max_step_tokens):
            chunk = prompt[start : start + case.max_step_tokens]
            is_last = start + len(chunk) == len(prompt)
            token = self._step(
                sequence_id, chunk, start, sample=is_last, opened=(opening,) if start == 0 else ()
            )
        prefill_seconds = time.perf_counter() - started
        decode_seconds = []
        for number in range(case.num_decode_tokens):
            closed = (sequence_id,) if number + 1 == case.num_decode_tokens else ()
            started = time.perf_counter()
            token = self._step(
                sequence_id, (token,), len(prompt) + number, sample=True, closed=closed
            )
            decode_seconds.append(time.perf_counter() - started)
        return prefill_seconds, decode_seconds

    def _step(
        self,
        sequence_id: SequenceId,
        tokens: tuple[int, ...],
        start: int,
        *,
        sample: bool,
        opened: tuple[SequenceOpening, ...] = (),
        closed: tuple[SequenceId, ...] = (),
    ) -> int:
        """Run a step, and return the sampled token, or 0 if none was sampled."""
        num_blocks = -(-(start + len(tokens)) // KV_BLOCK_TOKENS)
        part = SequenceSlice(
            sequence_id=sequence_id,
            tokens=tokens,
            start_position=start,
            block_table=tuple(range(num_blocks)),
            sample=sample,
        )
        self._num_steps += 1
        step = Step(step_id=StepId(self._num_steps), slices=(part,), opened=opened, closed=closed)
        result = self._engine.step(step, None)
        return result.sampled[0].token if result.sampled else 0


def measure(case: Case) -> dict[str, object]:
    """Measure the seconds to get ready and those of the counted rounds, after a warm-up round."""
    program = make_program(case)
    ready = make_ready(case, program)
    try:
        runner = Runner(case, ready.engine, program.vocab_size)
        runner.round()
        rounds = [runner.round() for _ in range(case.num_repeats)]
        weights_bytes = ready.engine.weights_bytes
    finally:
        ready.engine.close()
    prefill = [seconds for seconds, _ in rounds]
    decode = [seconds for _, seconds in rounds]
    decode_rate = statistics.median(case.num_decode_tokens / sum(seconds) for seconds in decode)
    fmt = TensorFormat[case.format.upper()]
    return {
        "open_seconds": ready.open_seconds,
        "load_seconds": ready.load_seconds,
        "compile_seconds": ready.compile_seconds,
        "weights_bytes": weights_bytes,
        "stored_bytes_per_token": bytes_per_token(program, fmt),
        "prefill_tokens_per_second": case.num_prompt_tokens / statistics.median(prefill),
        "decode_tokens_per_second": decode_rate,
        "prefill_seconds": prefill,
        "decode_step_seconds": decode,
    }


def measure_host(case: Case) -> dict[str, object]:
    """Measure by difference: steps of the thin shape with all of its layers and with a few."""
    counts = (THIN_FEWER_LAYERS, SHAPES[THIN].num_layers)
    samples: dict[int, list[float]] = {}
    for num_layers in counts:
        program = make_program(case, num_layers)
        ready = make_ready(case, program)
        try:
            runner = Runner(case, ready.engine, program.vocab_size)
            runner.round()
            rounds = [runner.round()[1] for _ in range(case.num_repeats)]
        finally:
            ready.engine.close()
        samples[num_layers] = [seconds for steps in rounds for seconds in steps]
    fewer, more = counts
    difference = statistics.median(samples[more]) - statistics.median(samples[fewer])
    return {
        "host_seconds_per_layer": difference / (more - fewer),
        "decode_step_seconds_by_layers": {str(count): samples[count] for count in counts},
    }


def main() -> None:
    """Measure the case that was given."""
    case = msgspec.json.decode(sys.argv[1], type=Case)
    try:
        document = measure_host(case) if case.shape == THIN else measure(case)
    except PotluckError as error:
        document = {"refused": error.message}
    print(json.dumps(document))


if __name__ == "__main__":
    main()
