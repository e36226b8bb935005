"""The small program whose tokens per second determine a node's fastest backend.

It is the same for every backend: two decoder layers of the shape of a billion-parameter model
(``_program``), with random weights in Q8_0. A whole model has ten times the layers, so
its rate is a fraction of this one, and about the same fraction on every backend.

Layers of that size are used, rather than many small ones, because the overhead of a backend
(launching kernels, copying the hidden state) is per layer: with small ones it would dominate the
result. Their 94 MB exceed the caches of boards and desktops.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from potluck.models.layers import plain_config
from potluck.models.program import build_program
from potluck.models.rope import rope_tables
from potluck.types.engine import MakeEngine
from potluck.types.hardware import TRIAL_FORMAT, TRIAL_LAYERS, TRIAL_PREFILL_TOKENS
from potluck.types.program import Program, Shard
from potluck.types.quantities import format_bytes, format_count
from potluck.types.step import KV_BLOCK_TOKENS, SequenceId, SequenceSlice, Step, StepId
from potluck.types.tensor import TensorFormat, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from potluck.types.engine import Engine
    from potluck.types.tensor import TensorSink


_NUM_BLOCKS = 3
"""Context for the prefill and the decoding after it."""

_ROUND_SECONDS = 0.08
_NUM_ROUNDS = 3
"""Decoding and prefill alternate, so that a disturbance affects neither alone. 0.5 s in total, or
one step of each if steps are slower than that."""

_PIECE_BYTES = 4 << 20
"""Rows are generated up to this size and then repeated: 4 MiB take 10 ms, and a layer has 50."""


class Stopwatch:
    """Measures the time of work without throttling: time added by a control group's quota is
    excluded if ``num_threads`` of this process compute, and not another device.

    Otherwise, the rest of a quota's period, for which a group is paused when it has used its quota,
    would be included in rounds that are longer than the quota allows at a time, and only in these.
    ``num_throttled`` counts how often this process's groups were paused (``Throttling.count``).
    """

    def __init__(
        self, num_threads: int | None = None, num_throttled: Callable[[], int] = int
    ) -> None:
        self._num_threads = num_threads
        self._num_throttled = num_throttled

    def seconds(self, work: Callable[[], None]) -> float:
        """Run ``work``, and return how long it took."""
        if self._num_threads is None:
            return _seconds(work)
        before = self._num_throttled()
        computed = time.process_time()
        seconds = _seconds(work)
        computed = time.process_time() - computed
        if self._num_throttled() == before:
            return seconds
        return min(seconds, computed / self._num_threads)


def _seconds(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def best_seconds(
    engines: Sequence[Engine],
    step: Step,
    width: int,
    turn_seconds: float,
    stopwatch: Stopwatch,
) -> float:
    """Return the fastest of the rounds that fit in a turn; there is at least one.

    A round runs ``step`` in each of ``engines``, with random hidden states ``[tokens, width]``.
    """
    random = np.random.default_rng(0)
    hidden = random.standard_normal((step.num_tokens, width), dtype=np.float32)

    def compute() -> None:
        for engine in engines:
            engine.step(step, hidden)

    best = math.inf
    end = time.perf_counter() + turn_seconds
    while True:
        best = min(best, stopwatch.seconds(compute))
        if time.perf_counter() >= end:
            return best


def rate_program(max_weights_bytes: int) -> Program:
    """Return the layers without embedding and head; only one of them if memory for two is lacking.

    There is always at least one layer: 47 MB.
    """
    num_layers = max(1, min(TRIAL_LAYERS, max_weights_bytes // _layer_bytes()))
    return _program(num_layers)


def measure_rates(
    make_engine: MakeEngine,
    max_weights_bytes: int,
    ending: str,
    on_progress: Callable[[float], None],
    stopwatch: Stopwatch,
) -> dict[str, dict[str, object]]:
    """Return values and sources by field of ``potluck.types.hardware.Rates``.

    The engine is created, loaded, warmed up and closed here. ``ending`` is appended to the source
    and describes the unit. The best of the rounds is used. Raises the engine's errors.
    """
    program = rate_program(max_weights_bytes)
    engine = make_engine(program, num_blocks=_NUM_BLOCKS, max_step_tokens=TRIAL_PREFILL_TOKENS)
    try:
        for number, spec in enumerate(program.weights, 1):
            fmt = TensorFormat.F32 if len(spec.shape) == 1 else TRIAL_FORMAT
            load_random(engine.sink(), TensorInfo(name=spec.name, shape=spec.shape, format=fmt))
            on_progress(0.4 * number / len(program.weights))
        num_bytes = engine.weights_bytes
        engine.warm_up()
        on_progress(0.6)
        steps = {
            "decode_tokens_per_second": lone_step(
                1, after=TRIAL_PREFILL_TOKENS, num_blocks=_NUM_BLOCKS
            ),
            "prefill_tokens_per_second": lone_step(TRIAL_PREFILL_TOKENS, num_blocks=_NUM_BLOCKS),
        }
        best = dict.fromkeys(steps, math.inf)
        end = time.perf_counter() + _NUM_ROUNDS * len(steps) * _ROUND_SECONDS
        for number in range(_NUM_ROUNDS):
            if number and time.perf_counter() >= end:
                break
            for name, step in steps.items():
                seconds = best_seconds(
                    [engine], step, program.hidden_size, _ROUND_SECONDS, stopwatch
                )
                best[name] = min(best[name], seconds)
            on_progress(0.6 + 0.4 * (number + 1) / _NUM_ROUNDS)
    finally:
        engine.close()
    num_layers = program.shard.num_layers
    layers = f"{TRIAL_LAYERS} layers of 2048 in {TRIAL_FORMAT.name}"
    if num_layers < TRIAL_LAYERS:
        layers += f", extrapolated from {num_layers} for lack of memory"
    whole = num_layers / TRIAL_LAYERS
    return {
        name: {
            "value": whole * step.num_tokens / best[name],
            "source": f"{layers} ({format_bytes(num_bytes)}), {_tokens(step)}, {ending}",
        }
        for name, step in steps.items()
    }


def _program(num_layers: int) -> Program:
    """Return the program of these layers; all tokens are 0, and nothing reads them.

    Its layers have the shape of a billion-parameter model (TinyLlama 1.1B: hidden size 2048,
    intermediate size 5632, 32 heads of 64 and 4 key-value heads), with weights in Q8_0
    (``types.hardware``). ``placement.speed`` estimates the speed of other models from its rates.
    """
    context_tokens = _NUM_BLOCKS * KV_BLOCK_TOKENS
    config = plain_config(
        family="llama",
        num_layers=num_layers,
        hidden_size=2048,
        intermediate_size=5632,
        num_heads=32,
        num_kv_heads=4,
        head_dim=64,
        vocab_size=1,  # no embedding and no head
        max_context_tokens=context_tokens,
        norm_epsilon=1e-5,
        theta=10000.0,
    )
    shard = Shard(
        start_layer=0,
        end_layer=num_layers,
        num_layers=num_layers,
        has_embedding=False,
        has_head=False,
    )
    ropes = rope_tables(config, context_tokens)
    return build_program(config, shard, context_tokens=context_tokens, ropes=ropes)


def _layer_bytes() -> int:
    return sum(
        TensorInfo(name=spec.name, shape=spec.shape, format=TRIAL_FORMAT).num_bytes
        for spec in _program(1).weights
    )


def lone_step(num_tokens: int, *, after: int = 0, num_blocks: int = 0) -> Step:
    """Return a step of one sequence: ``num_tokens`` tokens from position ``after`` on, in cache
    blocks ``[0, num_blocks)``.
    """
    part = SequenceSlice(
        sequence_id=SequenceId(0),
        tokens=(0,) * num_tokens,
        start_position=after,
        block_table=tuple(range(num_blocks)),
        sample=False,
    )
    return Step(step_id=StepId(0), slices=(part,))


def _tokens(step: Step) -> str:
    return f"{format_count(step.num_tokens, 'token')} at a time"


def random_rows(fmt: TensorFormat, num_rows: int, num_columns: int) -> bytes:
    """Return a stored ``[num_rows, num_columns]`` matrix with the deviation of a linear layer.

    That is ``num_columns ** -0.5``. Supports F32, F16, BF16 and Q8_0.
    """
    random = np.random.default_rng(0)
    deviation = num_columns**-0.5
    if fmt is TensorFormat.Q8_0:
        # An f16 scale and 32 uniform int8, with deviation 74 (ggml-common.h).
        blocks = random.integers(0, 256, (num_rows, num_columns // 32, 34), dtype=np.uint8)
        blocks[:, :, :2] = np.array([deviation / 74], dtype="<f2").view(np.uint8)
        return blocks.tobytes()
    values = random.standard_normal((num_rows, num_columns), dtype=np.float32)
    values *= np.float32(deviation)
    if fmt is TensorFormat.BF16:  # the upper halves of float32
        return (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    if fmt is TensorFormat.F16:
        return values.astype("<f2").tobytes()
    if fmt is TensorFormat.F32:
        return values.astype("<f4").tobytes()
    raise ValueError(f"no random rows of {fmt.name}")


def load_weight(sink: TensorSink, info: TensorInfo, stored: bytes) -> None:
    """Fill a weight with all of its rows."""
    sink.begin(info)
    sink.write_rows(info.name, 0, info.num_rows, memoryview(stored))
    sink.finish(info.name)


def load_random(sink: TensorSink, info: TensorInfo) -> None:
    """Fill a weight: ones in a vector; in a matrix, random rows that repeat if it is large."""
    if len(info.shape) == 1:
        load_weight(sink, info, np.ones(info.num_columns, "<f4").tobytes())
        return
    sink.begin(info)
    at_once = min(info.num_rows, max(1, _PIECE_BYTES // info.row_bytes))
    piece = memoryview(random_rows(info.format, at_once, info.num_columns))
    for start in range(0, info.num_rows, at_once):
        end = min(start + at_once, info.num_rows)
        sink.write_rows(info.name, start, end, piece[: (end - start) * info.row_bytes])
    sink.finish(info.name)
