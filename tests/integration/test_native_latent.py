"""Multi-head latent attention on the native engine: heads' products, and values in the keys."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from support.engines.native_pipeline import (
    CONTEXT_TOKENS,
    VOCAB_SIZE,
    Part,
    Pipeline,
    make_program,
)
from support.engines.parity import native_error_limit, rms
from support.engines.pools import pool_of
from support.models.configs import make_config
from support.models.random_weights import load_random_weights
from support.reference.engine import ReferenceEngine

from potluck.engines.native.backend import COST
from potluck.engines.native.engine import NativeEngine
from potluck.kernels import available_isas
from potluck.models.layers import with_layers
from potluck.types.arithmetic import Arithmetic, arithmetics_with
from potluck.types.engine import Engine
from potluck.types.model import LatentAttentionConfig, ModelConfig, RopeConfig
from potluck.types.program import (
    HIDDEN,
    CopyColumns,
    HeadLinear,
    Program,
    Register,
    Shard,
    WeightSpec,
)
from potluck.types.step import BlockCopy, SequenceId, SequenceSlice, Step, StepId
from potluck.types.tensor import COMPUTED_FORMATS, TensorFormat

F32 = NDArray[np.float32]

NUM_HEADS, NUM_TOKENS, WIDTH = 3, 150, 1600
FAST = [each for each in arithmetics_with(tuple(available_isas())) if each.isa is not None]


def heads_program(rows: int, columns: int) -> Program:
    """Every head takes columns 5 apart from the last one's, and leaves 3 of the output alone."""
    heads = HeadLinear(
        x="x",
        weight="heads",
        out=HIDDEN,
        num_heads=NUM_HEADS,
        rows=rows,
        columns=columns,
        x_start=11,
        x_stride=columns + 5,
        out_start=2,
        out_stride=rows + 3,
    )
    return Program(
        shard=Shard(start_layer=0, end_layer=1, num_layers=1, has_embedding=False, has_head=False),
        registers=(Register(name=HIDDEN, width=WIDTH), Register(name="x", width=WIDTH)),
        ops=(
            CopyColumns(
                x=HIDDEN, out="x", num_groups=1, count=WIDTH, x_stride=WIDTH, out_stride=WIDTH
            ),
            heads,
        ),
        weights=(WeightSpec(name="heads", shape=(NUM_HEADS, rows, columns)),),
        caches=(),
        ropes=(),
        hidden_size=WIDTH,
        vocab_size=10,
        context_tokens=NUM_TOKENS,
    )


def native(
    program: Program,
    fmt: TensorFormat,
    *,
    num_threads: int = 1,
    isa: str | None = None,
    arithmetic: Arithmetic = Arithmetic.EXACT,
) -> Engine:
    engine = NativeEngine(
        program,
        num_blocks=0,
        max_step_tokens=NUM_TOKENS,
        pool=pool_of(num_threads),
        isa=isa,
        arithmetic=arithmetic,
    )
    load_random_weights(engine, program, fmt)
    return engine


def run(engine: Engine, hidden: F32) -> F32:
    part = SequenceSlice(
        sequence_id=SequenceId(0),
        tokens=(1,) * len(hidden),
        start_position=0,
        block_table=tuple(range(10)),
        sample=False,
    )
    out = engine.step(Step(step_id=StepId(0), slices=(part,)), hidden).hidden
    assert out is not None
    return out


def hidden_rows() -> F32:
    return np.random.default_rng(1).standard_normal((NUM_TOKENS, WIDTH)).astype(np.float32)


SHAPES = ((128, 512), (23, 256))
"""Whole panels, and heads that begin within a panel."""


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
@pytest.mark.parametrize(
    ("fmt", "arithmetic"),
    [
        *((fmt, Arithmetic.EXACT) for fmt in COMPUTED_FORMATS),
        *((TensorFormat.BF16, x) for x in FAST),
    ],
    ids=lambda each: getattr(each, "label", None) or each.value,
)
def test_heads_of_every_format(
    fmt: TensorFormat, arithmetic: Arithmetic, rows: int, columns: int
) -> None:
    program = heads_program(rows, columns)
    hidden = hidden_rows()
    reference = ReferenceEngine(program, num_blocks=10)
    load_random_weights(reference, program, fmt)
    wanted = run(reference, hidden)
    made = run(
        native(program, fmt, num_threads=2, isa=arithmetic.isa, arithmetic=arithmetic), hidden
    )
    heads = [slice(2 + h * (rows + 3), 2 + h * (rows + 3) + rows) for h in range(NUM_HEADS)]
    others = np.ones(WIDTH, bool)
    # Sums of that many roundings; integers and bf16 are wrong by half a percent each.
    limit = columns * 2.0**-24
    if fmt.is_quantized or arithmetic is not Arithmetic.EXACT:
        limit = 0.01
    for each in heads:
        assert np.std(made[:, each] - wanted[:, each]) < limit * np.std(wanted[:, each])
        others[each] = False
    assert (made[:, others] == hidden[:, others]).all()


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
@pytest.mark.parametrize("fmt", [TensorFormat.F32, TensorFormat.BF16, TensorFormat.Q8_0])
def test_heads_have_the_same_bits_however_they_are_computed(
    fmt: TensorFormat, rows: int, columns: int
) -> None:
    program = heads_program(rows, columns)
    hidden = hidden_rows()
    whole = run(native(program, fmt, isa="scalar"), hidden)
    for isa in available_isas():
        for num_threads in (1, 2, 5):
            engine = native(program, fmt, num_threads=num_threads, isa=isa)
            bounds = (0, 1, 2, 70, NUM_TOKENS) if num_threads == 2 else (0, NUM_TOKENS)
            parts = [run(engine, hidden[first:end]) for first, end in pairwise(bounds)]
            assert np.concatenate(parts).tobytes() == whole.tobytes()


def latent_config(num_layers: int) -> ModelConfig:
    """Twenty heads share a key of 16 rotated and 64 latent columns."""
    latent = LatentAttentionConfig(
        num_heads=20,
        query_rank=96,
        latent_rank=64,
        rope_dim=16,
        nope_dim=32,
        value_dim=24,
        scale=0.1,
    )
    config = make_config(
        num_layers=num_layers,
        hidden_size=96,
        intermediate_size=128,
        vocab_size=VOCAB_SIZE,
        max_context_tokens=CONTEXT_TOKENS,
        rope=RopeConfig(theta=10000.0, rotary_dim=16),
    )
    return with_layers(config, lambda _, layer: replace(layer, attention=latent))


CONFIG = latent_config(2)
# Over two spans of 256 positions: (sequence, tokens) of every step.
STEPS = (
    ((0, 250), (1, 5)),
    ((1, 1), (0, 1), (2, 60)),
    ((2, 3), (1, 30), (0, 20)),
    ((0, 1), (1, 1), (2, 1)),
    ((0, 2), (1, 3)),
)


def logits_of(steps: tuple[tuple[tuple[int, int], ...], ...], pipeline: Pipeline) -> dict[int, F32]:
    """The logits after the last token of every sequence."""
    lengths = dict.fromkeys(range(3), 0)
    last: dict[int, F32] = {}
    for lots in steps:
        parts = []
        for sequence, count in lots:
            first, end = lengths[sequence], lengths[sequence] + count
            tokens = [(7 * i + i * i % 11 + sequence) % VOCAB_SIZE for i in range(first, end)]
            parts.append(Part(sequence=sequence, tokens=tokens, start=first))
            lengths[sequence] = end
        made = pipeline.logits(parts)
        last.update({sequence: made[i] for i, (sequence, _) in enumerate(lots)})
    return last


@pytest.mark.parametrize("fmt", [TensorFormat.F32, TensorFormat.Q8_0])
def test_a_model_gives_what_the_reference_does(fmt: TensorFormat) -> None:
    pipeline = Pipeline.make(CONFIG, fmt, num_threads=2)
    program = make_program(CONFIG, Shard.whole(CONFIG.num_layers))
    reference = ReferenceEngine(program, num_blocks=100)
    load_random_weights(reference, program, fmt)
    both = Pipeline(engines=[reference], free_blocks=list(range(100)))  # type: ignore[list-item]
    made, wanted = logits_of(STEPS, pipeline), logits_of(STEPS, both)
    limit = native_error_limit(num_layers=CONFIG.num_layers, is_quantized=fmt.is_quantized)
    for sequence, expected in wanted.items():
        assert np.std(expected) > 0.1
        assert rms(made[sequence] - expected) < limit * rms(expected)


@pytest.mark.parametrize("isa", available_isas())
def test_the_bits_depend_on_the_sequence_alone(isa: str) -> None:
    """Not on the batch, the chunks, the threads, the cut, the instruction set or the blocks."""
    expected = logits_of(STEPS, Pipeline.make(CONFIG, TensorFormat.Q8_0))
    totals = dict.fromkeys(range(3), 0)
    for lots in STEPS:
        for sequence, count in lots:
            totals[sequence] += count
    for number, num_threads in enumerate((1, 2, 7)):
        pipeline = Pipeline.make(
            CONFIG,
            TensorFormat.Q8_0,
            isa=isa,
            num_threads=num_threads,
            num_stages=1 + number % 2,
            block_seed=number,
        )
        chunks = (1, 17, 400)[number]
        for sequence, total in totals.items():
            steps = tuple(
                ((sequence, min(chunks, total - first)),) for first in range(0, total, chunks)
            )
            if chunks == 1:
                steps = (((sequence, total - 5),), *(((sequence, 1),),) * 5)
            alone = logits_of(steps, pipeline)
            assert alone[sequence].tobytes() == expected[sequence].tobytes()


def test_keys_are_kept_once() -> None:
    program = make_program(CONFIG, Shard.whole(CONFIG.num_layers))
    per_block = CONFIG.num_layers * 16 * 80 * 2
    assert COST.cache_bytes(program, 7) == 7 * per_block
    engine = Pipeline.make(CONFIG, TensorFormat.Q8_0).engines[0]
    assert engine.block_format.num_bytes == per_block


def test_blocks_are_read_written_and_copied() -> None:
    first, second = (Pipeline.make(CONFIG, TensorFormat.Q8_0, block_seed=seed) for seed in range(2))
    tokens = list(range(40))
    first.logits([Part(sequence=0, tokens=tokens[:33], start=0)])
    expected = first.logits([Part(sequence=0, tokens=tokens[33:], start=33)])
    second.tables[0] = [second.free_blocks.pop() for _ in range(3)]
    (source,), (target,) = first.engines, second.engines
    target.write_blocks(second.tables[0], source.read_blocks(first.tables[0]))
    # All of them go to other places at the beginning of the next step.
    places = [second.free_blocks.pop() for _ in range(3)]
    copies = tuple(
        BlockCopy(source=old, target=new) for old, new in zip(second.tables[0], places, strict=True)
    )
    second.tables[0] = places
    step = second.step_of([Part(sequence=0, tokens=tokens[33:], start=33)])
    made = target.logits(replace(step, copies=copies), None)
    np.testing.assert_array_equal(made, expected)


def test_memory_for_partials_does_not_grow_with_the_threads_where_heads_suffice() -> None:
    """Twenty heads can be divided in two by heads alone: two threads need no more than one span's
    partials of one sequence.
    """
    program = make_program(CONFIG, Shard.whole(CONFIG.num_layers))

    def scratch(num_threads: int) -> int:
        return COST.scratch_bytes(
            program, max_step_tokens=8, num_threads=num_threads, arithmetic=Arithmetic.EXACT
        )

    spans = -(-CONTEXT_TOKENS // 256)
    partials = spans * 20 * (64 + 2) * 4
    assert partials <= scratch(2) - scratch(1) < partials + 600_000
