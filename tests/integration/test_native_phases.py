"""Ops that run together give the bits that they give one after another.

The same program is run as it is and with an op between every two that reads and writes registers
of its own: then no two ops share a parallel loop, a pass over a row, or quantized activations.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.engines.native_pipeline import (
    VOCAB_SIZE,
    Part,
    Pipeline,
    cut,
    make_program,
    small_config,
)
from support.engines.pools import pool_of
from support.models.random_weights import load_random_weights

from potluck.engines.native.engine import NativeEngine
from potluck.kernels import available_isas
from potluck.types.arithmetic import Arithmetic, arithmetics_with
from potluck.types.program import HIDDEN, Linear, Op, Program, Register, RmsNorm, WeightSpec
from potluck.types.tensor import TensorFormat

NUM_THREADS = 3
# Linear ops of one phase need not have one format.
EXCEPTIONS = {
    "layers.0.attn.k.weight": TensorFormat.F32,
    "layers.0.attn.v.weight": TensorFormat.Q6_K,
    "layers.1.attn.k.weight": TensorFormat.BF16,
    "layers.0.mlp.up.weight": TensorFormat.Q5_0,
    "layers.1.mlp.experts.up.weight": TensorFormat.F16,
}


def whole_program() -> Program:
    return make_program(small_config(2), cut(2, 1)[0])


def divided(program: Program) -> Program:
    """``program`` with an op between every two that has nothing to do with them."""
    width = program.hidden_size
    first, *others = program.ops
    idle = Linear(x="idle", weight="idle.matrix", out="idle_out", bias=None)
    ops: list[Op] = [
        first,
        RmsNorm(x=HIDDEN, weight="idle.vector", out="idle", group=width, epsilon=1e-5),
    ]
    for op in others:
        ops += (idle, op)
    return replace(
        program,
        ops=tuple(ops),
        registers=(
            *program.registers,
            Register(name="idle", width=width),
            Register(name="idle_out", width=width),
        ),
        weights=(
            *program.weights,
            WeightSpec(name="idle.matrix", shape=(width, width)),
            WeightSpec(name="idle.vector", shape=(width,)),
        ),
    )


def pipeline_of(program: Program, fmt: TensorFormat, arithmetic: Arithmetic) -> Pipeline:
    engine = NativeEngine(
        program,
        num_blocks=20,
        max_step_tokens=100,
        pool=pool_of(NUM_THREADS),
        isa=arithmetic.isa,
        arithmetic=arithmetic,
    )
    load_random_weights(engine, program, fmt, exceptions=EXCEPTIONS)
    return Pipeline(engines=[engine], free_blocks=list(range(20)))


@pytest.mark.parametrize("arithmetic", arithmetics_with(tuple(available_isas())))
@pytest.mark.parametrize("fmt", [TensorFormat.Q8_0, TensorFormat.Q4_K, TensorFormat.BF16])
def test_together_as_apart(fmt: TensorFormat, arithmetic: Arithmetic) -> None:
    program = whole_program()
    together, apart = (pipeline_of(each, fmt, arithmetic) for each in (program, divided(program)))
    rng = np.random.default_rng(3)
    starts = [0, 0, 0]
    # A prompt, a token alone, and a ragged batch.
    for lengths in ([70], [1], [9, 1, 30]):
        parts = [
            Part(
                sequence=index,
                tokens=[int(token) for token in rng.integers(0, VOCAB_SIZE, length)],
                start=starts[index],
            )
            for index, length in enumerate(lengths)
        ]
        for index, length in enumerate(lengths):
            starts[index] += length
        wanted, actual = apart.logits(parts), together.logits(parts)
        assert np.all(np.isfinite(wanted))
        assert np.std(wanted) > 0.1
        np.testing.assert_array_equal(actual.view(np.uint32), wanted.view(np.uint32))
