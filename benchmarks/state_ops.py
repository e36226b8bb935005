"""Measure the share of ops with a state in a step, and the speed of their kernels.

    python benchmarks/state_ops.py OUT.json [--shape Qwen3.5-4B …] [--threads 1 2] [--isa avx512 …]

- *Shares*: a whole model but its embedding, with random weights (matrices in Q4_K), decodes tokens
  and reads prompts; the parts of each step are timed (``OpTimer``). A share is what convolutions
  and recurrences take, with what is made of their inputs, of all that is timed.
- *Kernels*: microseconds of a token in one layer, on one thread: in a prompt of 256 tokens, and
  decoded, where the states of 24 layers take turns. Beside decoding, a pass that multiplies as many
  numbers in place (``scale``).

Figures of shares are sums over the steps of a turn, whose parts the same disturbances slow down;
those of kernels are of the fastest turn by CPU time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from circumstances import write_result
from cost_model import config_of, loaded_engine, step_of
from model_shapes import SHAPES, Shape

from potluck.engines.native.engine import NativeEngine, available_isas, choose_isa
from potluck.engines.native.pool import make_pool
from potluck.kernels import Kernels, kernels_for
from potluck.models.layers import with_layers
from potluck.types.choices import Quantization
from potluck.types.model import MambaConfig, ModelConfig
from potluck.types.program import CausalConv, GatedDelta, Shard, StateScan

SCHEMA = "potluck.benchmark.state_ops/1"
CASES = {"decode 1": (1, 1, 64), "decode 8": (8, 1, 64), "prefill 512": (1, 512, 512)}
"""The number of sequences, the tokens of each, and the context at their end."""
TURN_SECONDS = 2.0
STATE_OPS = (CausalConv, GatedDelta, StateScan)

GRANITE = "Granite-4-H-micro"
"""IBM Granite 4.0 H Micro: 36 layers of Mamba-2 and 4 of attention."""
GRANITE_SHAPE = Shape(
    family="granitemoehybrid",
    hidden_size=2048,
    intermediate_size=8192,
    num_layers=40,
    num_heads=32,
    num_key_value_heads=8,
    head_dim=64,
    vocab_size=100352,
)
GRANITE_MIXER = MambaConfig(num_heads=64, head_dim=64, num_groups=1, state_dim=128, kernel=4)
GRANITE_ATTENTION = (5, 15, 25, 35)

PROMPT_TOKENS = 256
LAYERS = 24
HEADS, KEY_HEADS, HEAD_DIM = 32, 16, 128


def config_named(name: str) -> ModelConfig:
    """Return the configuration of a shape."""
    if name != GRANITE:
        return config_of(SHAPES[name])
    return with_layers(
        config_of(GRANITE_SHAPE),
        lambda index, layer: (
            layer
            if index in GRANITE_ATTENTION
            else replace(layer, attention=None, recurrence=GRANITE_MIXER)
        ),
    )


class Parts:
    """The times of a stage, by kind of op."""

    def __init__(self, engine: NativeEngine) -> None:
        self._stage = engine._stage
        self._ops = engine._program.ops
        self._before = self._read()

    def _read(self) -> dict[str, float]:
        parts, sampling = self._stage.times()
        seconds = {"other": sampling}
        for part in parts:
            # A part without ops is what is made of registers for the op that follows.
            ops = self._ops[part.first_op : max(part.end_op, part.first_op + 1)]
            found = [type(op).__name__ for op in ops if isinstance(op, STATE_OPS)]
            name = found[0] if found else "other"
            seconds[name] = seconds.get(name, 0.0) + part.seconds
        return seconds

    def seconds(self) -> dict[str, float]:
        """Return what was counted since the last call."""
        now, before = self._read(), self._before
        self._before = now
        return {name: now[name] - before[name] for name in now}


def measure_shares(name: str, num_threads: int, isa: str) -> dict[str, Any]:
    """Return how the steps of a shape divide."""
    config = config_named(name)
    last = config.num_layers
    shard = Shard(
        start_layer=0, end_layer=last, num_layers=last, has_embedding=False, has_head=True
    )
    engine = loaded_engine(config, shard, Quantization.Q4_K, make_pool(num_threads), isa)
    engine.time_ops()
    cases = {}
    for case, (num_sequences, num_tokens, context) in CASES.items():
        step = step_of(num_sequences, num_tokens, context, has_states=True, sample=True)
        hidden = np.random.default_rng(0).standard_normal(
            (step.num_tokens, config.hidden_size), dtype=np.float32
        )
        engine.step(step, hidden)
        parts, num_steps = Parts(engine), 0
        started = time.perf_counter()
        while num_steps < 2 or time.perf_counter() - started < TURN_SECONDS:
            engine.step(step, hidden)
            num_steps += 1
        wall = time.perf_counter() - started
        seconds = parts.seconds()
        total = sum(seconds.values())
        shares = {kind: each / total for kind, each in seconds.items() if kind != "other"}
        cases[case] = {
            "num_steps": num_steps,
            "seconds_per_step": wall / num_steps,
            "seconds": seconds,
            "shares": shares,
            "share": sum(shares.values()),
        }
    state_bytes = engine.block_format.state_bytes
    engine.close()
    return {
        "shape": name,
        "isa": isa,
        "num_threads": num_threads,
        "state_bytes": state_bytes,
        "cases": cases,
    }


def fastest(run: Callable[[], None], repeats: int = 9) -> float:
    """Return CPU seconds of the fastest run after the first."""
    run()
    times = []
    for _ in range(repeats):
        started = time.thread_time()
        run()
        times.append(time.thread_time() - started)
    return min(times)


def measure_kernels(isa: str) -> dict[str, float]:
    """Return microseconds of a token in one layer, of shapes of Qwen3.5-4B and of Mamba-2."""
    kernels: Kernels = kernels_for(isa)
    rng = np.random.default_rng(0)
    tokens, columns, keys_width = PROMPT_TOKENS, HEADS * HEAD_DIM, 2 * KEY_HEADS * HEAD_DIM

    def normal(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        return rng.standard_normal(shape).astype(np.float32)

    x = normal(tokens, keys_width + columns)
    rate, bias = -np.ones(HEADS, np.float32), np.zeros(HEADS, np.float32)
    decay, beta = normal(tokens, HEADS) - 2, normal(tokens, HEADS)
    keys = np.empty((tokens, KEY_HEADS, 2, HEAD_DIM), np.float32)
    products = np.empty((tokens, KEY_HEADS), np.float32)
    decays, betas = np.empty((2, tokens, HEADS), np.float32)

    def make_inputs() -> None:
        for t in range(tokens):
            kernels.delta_inputs(
                x[t], decay[t], beta[t], rate, bias, 1e-6, keys[t], products[t], decays[t], betas[t]
            )

    inputs = fastest(make_inputs, 3) / tokens
    by_head = np.ascontiguousarray(keys.transpose(1, 0, 2, 3))
    values = normal(tokens, HEADS, HEAD_DIM)
    out = np.empty_like(values)
    strips = HEAD_DIM // 16
    states = np.zeros((LAYERS, HEADS, strips, HEAD_DIM, 16), np.float32)
    weight, window = normal(x.shape[1], 4), np.zeros((3, x.shape[1]), np.float32)
    convolved = np.empty_like(x)
    scanned = normal(tokens, columns + 2 * HEAD_DIM)

    def delta(count: int, state: np.ndarray[Any, np.dtype[np.float32]], *, is_fresh: bool) -> None:
        kernels.gated_delta(
            np.ascontiguousarray(by_head[:, :count]) if count < tokens else by_head,
            products[:count],
            decays[:count],
            betas[:count],
            values[:count],
            state,
            False,
            is_fresh,
            out[:count],
            0,
            HEADS * strips,
        )

    def scan(count: int, state: np.ndarray[Any, np.dtype[np.float32]], *, is_fresh: bool) -> None:
        kernels.state_scan(
            scanned[:count],
            betas[:count],
            decays[:count],
            bias,
            1,
            state,
            is_fresh,
            out[:count],
            0,
            HEADS * strips,
        )

    def conv(count: int) -> None:
        kernels.causal_conv(
            x[:count], weight, None, window, False, True, convolved[:count], 0, x.shape[1]
        )

    def decode(run: Callable[..., None]) -> Callable[[], None]:
        def run_all() -> None:
            for state in states:
                run(1, state, is_fresh=False)

        return run_all

    def pass_over() -> None:
        for each in flat:
            kernels.scale(each, 0.999)

    flat = states.reshape(LAYERS, -1)
    repeats = 9 if isa != "scalar" else 2
    seconds = {
        "delta_inputs": inputs,
        "gated_delta, prompt": fastest(lambda: delta(tokens, states[0], is_fresh=True), repeats)
        / tokens,
        "gated_delta, decode": fastest(decode(delta), repeats) / LAYERS,
        "state_scan, prompt": fastest(lambda: scan(tokens, states[0], is_fresh=True), repeats)
        / tokens,
        "state_scan, decode": fastest(decode(scan), repeats) / LAYERS,
        "causal_conv, prompt": fastest(lambda: conv(tokens), repeats) / tokens,
        "causal_conv, decode": fastest(lambda: conv(1), repeats),
        "a pass over the state": fastest(pass_over, repeats) / LAYERS,
    }
    return {name: round(1e6 * each, 2) for name, each in seconds.items()}


def main() -> None:
    """Measure, print a line for each, write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="where the JSON goes")
    parser.add_argument("--shape", nargs="*", default=["Qwen3.5-4B", "LFM2-1.2B", GRANITE])
    parser.add_argument("--threads", nargs="+", type=int, default=[2])
    parser.add_argument("--isa", nargs="*", default=[choose_isa(None), "avx2"])
    parser.add_argument("--kernels", nargs="*", default=available_isas()[:3])
    arguments = parser.parse_args()
    kernels = {}
    for isa in arguments.kernels:
        kernels[isa] = measure_kernels(isa)
        print(isa, json.dumps(kernels[isa]), flush=True)
    shares = []
    for name in arguments.shape:
        for isa in arguments.isa:
            for num_threads in arguments.threads:
                row = measure_shares(name, num_threads, isa)
                shares.append(row)
                text = ", ".join(
                    f"{case} {100 * each['share']:.1f} % of {1e3 * each['seconds_per_step']:.1f} ms"
                    for case, each in row["cases"].items()
                )
                print(f"{name} {isa} {num_threads} threads: {text}", flush=True)
    found = {
        "prompt_tokens": PROMPT_TOKENS,
        "kernel_microseconds": kernels,
        "shares": shares,
    }
    write_result(arguments.out, SCHEMA, found, indent=2)


if __name__ == "__main__":
    main()
