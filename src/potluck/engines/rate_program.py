"""The small program whose tokens per second say which of a node's backends is the fastest.

It is the same for every backend: two decoder layers of the shape of a model of a billion parameters
(``models.trial_model``), with random weights in Q8_0. A whole model has ten times
the layers: its rate is a fraction of this one, and about the same fraction on every backend.

Layers of that size, rather than many small ones, because what a backend spends besides the weights
(starting kernels, copying the hidden state) is spent by the layer: small ones would tell of little
else. Their 94 MB are more than the caches of boards and desktops.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from potluck.engines.synthetic_weights import load_random
from potluck.engines.timing import Stopwatch, best_seconds
from potluck.models.program import build_program
from potluck.models.rope import rope_tables
from potluck.models.trial_model import (
    TRIAL_FORMAT,
    TRIAL_LAYERS,
    TRIAL_PREFILL_TOKENS,
    trial_config,
)
from potluck.quantities import format_bytes
from potluck.types.engine import MakeEngine
from potluck.types.program import Program, Shard
from potluck.types.step import KV_BLOCK_TOKENS, SequenceId, SequenceSlice, Step, StepId
from potluck.types.tensor import TensorFormat, TensorInfo

NUM_LAYERS = TRIAL_LAYERS
MAX_STEP_TOKENS = TRIAL_PREFILL_TOKENS
NUM_BLOCKS = 3
"""For the prefill and what is decoded after it."""

_FORMAT = TRIAL_FORMAT
_ROUND_SECONDS = 0.08
_NUM_ROUNDS = 3
"""Decode and prefill take turns, so that what disturbs one turn spoils neither. In all 0.5 s, and
one step of each where steps are slower than that."""


def rate_program(max_weights_bytes: int) -> Program:
    """The layers without embedding and head; one of them where memory for two is lacking.

    One layer is always there: 47 MB.
    """
    num_layers = max(1, min(NUM_LAYERS, max_weights_bytes // _layer_bytes()))
    return _program(num_layers)


def measure_rates(
    make_engine: MakeEngine,
    max_weights_bytes: int,
    ending: str,
    on_progress: Callable[[float], None],
    stopwatch: Stopwatch,
) -> dict[str, dict[str, object]]:
    """Value and source by the name of a field of ``potluck.types.hardware.Rates``.

    The engine is made, loaded, warmed up and closed here. ``ending`` of the source says what it
    computes with. Of the rounds the best counts. Raises what the engine raises.
    """
    program = rate_program(max_weights_bytes)
    engine = make_engine(program, num_blocks=NUM_BLOCKS, max_step_tokens=MAX_STEP_TOKENS)
    try:
        for number, spec in enumerate(program.weights, 1):
            fmt = TensorFormat.F32 if len(spec.shape) == 1 else _FORMAT
            load_random(engine.sink(), TensorInfo(name=spec.name, shape=spec.shape, format=fmt))
            on_progress(0.4 * number / len(program.weights))
        num_bytes = engine.weights_bytes
        engine.warm_up()
        on_progress(0.6)
        steps = {
            "decode_tokens_per_second": _step(1, after=MAX_STEP_TOKENS),
            "prefill_tokens_per_second": _step(MAX_STEP_TOKENS, after=0),
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
    layers = f"{NUM_LAYERS} layers of 2048 in {_FORMAT.name}"
    if num_layers < NUM_LAYERS:
        layers += f", counted from {num_layers} for lack of memory"
    whole = num_layers / NUM_LAYERS
    return {
        name: {
            "value": whole * step.num_tokens / best[name],
            "source": f"{layers} ({format_bytes(num_bytes)}), {_tokens(step)}, {ending}",
        }
        for name, step in steps.items()
    }


def _program(num_layers: int) -> Program:
    config = trial_config(num_layers, NUM_BLOCKS * KV_BLOCK_TOKENS)
    shard = Shard(
        start_layer=0,
        end_layer=num_layers,
        num_layers=num_layers,
        has_embedding=False,
        has_head=False,
    )
    context_tokens = config.max_context_tokens
    ropes = rope_tables(config, context_tokens)
    return build_program(config, shard, context_tokens=context_tokens, ropes=ropes)


def _layer_bytes() -> int:
    return sum(
        TensorInfo(name=spec.name, shape=spec.shape, format=_FORMAT).num_bytes
        for spec in _program(1).weights
    )


def _step(num_tokens: int, *, after: int) -> Step:
    part = SequenceSlice(
        sequence_id=SequenceId(0),
        tokens=(0,) * num_tokens,
        start_position=after,
        block_table=tuple(range(NUM_BLOCKS)),
        sample=False,
    )
    return Step(step_id=StepId(0), slices=(part,))


def _tokens(step: Step) -> str:
    num_tokens = step.num_tokens
    return f"{num_tokens} {'token' if num_tokens == 1 else 'tokens'} at a time"
