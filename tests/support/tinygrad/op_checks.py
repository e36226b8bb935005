"""Checks of single ops on tinygrad against the reference engine; see ``tinygrad_child``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from support.engines.parity import native_error_limit, rms
from support.models.random_weights import load_random_weights
from support.reference import ops as reference_ops
from support.reference.engine import ReferenceEngine

from potluck.engines.tinygrad.adapter import Ops, Tensor, TinyJit, UOp, dtypes
from potluck.engines.tinygrad.attention import CacheTensors, append, attend, bound_last_block
from potluck.engines.tinygrad.compiled import open_device
from potluck.engines.tinygrad.engine import TinygradEngine
from potluck.engines.tinygrad.formats import DECODERS
from potluck.engines.tinygrad.kernels import THREADS, distribution, for_units, narrowed
from potluck.engines.tinygrad.layout import BLOCKS
from potluck.types.engine import Engine
from potluck.types.program import (
    HIDDEN,
    Activation,
    Add,
    Attention,
    CacheSpec,
    Embed,
    GatedActivation,
    Head,
    LayerNorm,
    Linear,
    Multiply,
    Op,
    Program,
    Register,
    RmsNorm,
    Rope,
    RopeTable,
    Scale,
    Shard,
    SigmoidGate,
    WeightSpec,
)
from potluck.types.step import SequenceId, SequenceSlice, Step, StepId
from potluck.types.tensor import TensorFormat

# No power of two, so that padding would show.
WIDTH, BRANCH, VOCAB, CONTEXT = 96, 80, 50, 128
# Sums of at most 96 products of float32 and one exp: an error of a few of their last bits.
F32_LIMIT = 2e-6


def check_every_format_is_decoded() -> None:
    assert set(DECODERS) == set(BLOCKS)


def check_embed() -> None:
    _compare(Embed(weight="w", out=HIDDEN), w=(VOCAB, WIDTH), has_embedding=True)


def check_rms_norm() -> None:
    _compare(RmsNorm(x=HIDDEN, weight="n", out=HIDDEN, group=WIDTH, epsilon=1e-5), n=(WIDTH,))


def check_rms_norm_of_heads() -> None:
    _compare(RmsNorm(x=HIDDEN, weight="n", out=HIDDEN, group=24, epsilon=1e-5), n=(24,))


def check_rms_norm_without_a_weight() -> None:
    _compare(RmsNorm(x=HIDDEN, weight=None, out=HIDDEN, group=24, epsilon=1e-5))


def check_layer_norm() -> None:
    _compare(LayerNorm(x=HIDDEN, weight="n", out=HIDDEN, epsilon=1e-5), n=(WIDTH,))


def check_scale_and_multiply() -> None:
    _compare(
        Scale(x=HIDDEN, factor=1.7),
        Multiply(x=HIDDEN, weight="one"),
        Multiply(x=HIDDEN, weight="all"),
        one=(1,),
        all=(WIDTH,),
    )


def check_sigmoid_gate() -> None:
    """A factor for each column, and one for each token."""
    _compare(
        Linear(x=HIDDEN, weight="g", out="gate"),
        Linear(x=HIDDEN, weight="o", out="one"),
        SigmoidGate(x=HIDDEN, gate="gate"),
        SigmoidGate(x=HIDDEN, gate="one"),
        g=(WIDTH, WIDTH),
        o=(1, WIDTH),
    )


def check_linear() -> None:
    _compare(
        Linear(x=HIDDEN, weight="a", out="branch"),
        Linear(x="branch", weight="b", out=HIDDEN),
        a=(BRANCH, WIDTH),
        b=(WIDTH, BRANCH),
    )


def check_linear_with_bias() -> None:
    _compare(
        Linear(x=HIDDEN, weight="a", out=HIDDEN, bias="a_bias"),
        a=(WIDTH, WIDTH),
        a_bias=(WIDTH,),
    )


def check_rope() -> None:
    _compare(Rope(x=HIDDEN, num_heads=4, head_dim=24, rotary_dim=24))


def check_rope_of_a_part_of_each_head() -> None:
    _compare(Rope(x=HIDDEN, num_heads=2, head_dim=48, rotary_dim=24))


def check_rope_by_several_tables() -> None:
    _compare(
        Rope(x=HIDDEN, num_heads=4, head_dim=24, rotary_dim=24),
        Rope(x=HIDDEN, num_heads=4, head_dim=24, rotary_dim=10, table=1),
    )


def check_gated_activation_and_add() -> None:
    _compare(
        Linear(x=HIDDEN, weight="g", out="gate"),
        GatedActivation(gate="gate", up=HIDDEN, out="gate"),
        Add(x=HIDDEN, y="gate"),
        g=(WIDTH, WIDTH),
    )


def check_gelu_of_columns_and_add_with_a_scale() -> None:
    _compare(
        Linear(x=HIDDEN, weight="g", out="k"),
        GatedActivation(gate="k", up=HIDDEN, out="k", activation=Activation.GELU_TANH, up_start=31),
        Linear(x="k", weight="d", out="gate"),
        Add(x=HIDDEN, y="gate", scale=0.22),
        g=(48, WIDTH),
        d=(WIDTH, 48),
    )


def check_head() -> None:
    _compare(Head(x=HIDDEN, weight="w", vocab_size=VOCAB), w=(VOCAB, WIDTH), has_head=True)


def check_head_with_a_scale_and_a_cap() -> None:
    _compare(
        Head(x=HIDDEN, weight="w", vocab_size=VOCAB, scale=0.8, softcap=1.5),
        w=(VOCAB, WIDTH),
        has_head=True,
    )


def check_attention() -> None:
    _compare_attention(window=None)


def check_attention_with_a_window() -> None:
    _compare_attention(window=5)


def check_attention_with_a_cap() -> None:
    _compare_attention(window=None, softcap=0.7)


def check_attention_over_a_shared_cache() -> None:
    """The second op reads what the first has stored, and adds nothing to it."""
    first = _attention(window=None)
    _compare(
        Linear(x=HIDDEN, weight="k", out="k"),
        Linear(x=HIDDEN, weight="v", out="v"),
        first,
        replace(first, k=None, v=None, window=7),
        k=(48, WIDTH),
        v=(48, WIDTH),
    )


def check_what_is_not_seen_may_be_no_number() -> None:
    """Of 21 positions in two blocks of 16 out of order; the cache has NaN everywhere else."""
    device = open_device()
    op = _attention(window=None)
    dtype = np.float16 if device.has_f16 else np.float32
    rng = np.random.default_rng(4)
    q, k, v = (
        rng.standard_normal((21, width)).astype(dtype).astype(np.float32) for width in (96, 48, 48)
    )
    positions = np.arange(21, dtype=np.int32)
    table = np.array([3, 1], np.int32)
    cache = CacheTensors(
        keys=Tensor(np.full(5 * 16 * 48, np.nan, dtype)).realize(),
        values=Tensor(np.full(5 * 16 * 48, np.nan, dtype)).realize(),
    )
    written = append(
        cache,
        CacheSpec(num_kv_heads=2, head_dim=24, value_dim=24),
        Tensor(k),
        Tensor(v),
        Tensor((table[positions // 16] * 16 + positions % 16).astype(np.int32)),
    )
    out = attend(
        op,
        Tensor(q),
        written,
        tables=Tensor(np.tile(table, 21)),
        positions=Tensor(positions),
        last_block=bound_last_block(2, 2),
    )
    assert out.dtype == dtypes.float
    wanted = reference_ops.attention(
        q.reshape(21, 4, 24),
        k.reshape(21, 2, 24),
        v.reshape(21, 2, 24),
        positions.astype(np.int64),
        op.scale,
        None,
    ).reshape(21, 96)
    np.testing.assert_allclose(out.numpy(), wanted, atol=F32_LIMIT * 4)


def check_no_grid_is_empty_while_variables_are_0() -> None:
    """CUDA refuses such a kernel, and tinygrad makes graphs for CUDA with all variables 0."""
    op = _attention(window=None)
    most = 4
    q = Tensor(np.ones((2, 96), np.float32)).realize()
    cache = CacheTensors(
        keys=Tensor(np.ones(most * 16 * 48, np.float32)).realize(),
        values=Tensor(np.ones(most * 16 * 48, np.float32)).realize(),
    )
    tables = Tensor(np.tile(np.arange(most, dtype=np.int32), 2)).realize()
    positions = Tensor(np.array((20, 40), np.int32)).realize()

    def function(last_block: UOp) -> None:
        out = attend(op, q, cache, tables=tables, positions=positions, last_block=last_block)
        out.realize()

    jit = TinyJit(function)
    jit.cnt = 1
    jit(bound_last_block(most, most))
    programs = [call.src[0] for call in jit.captured.linear.toposort() if call.op is Ops.CALL]
    kernels = [program.arg for program in programs if program.op is Ops.PROGRAM]
    assert any(kernel.vars for kernel in kernels)
    for kernel in kernels:
        global_size, _ = kernel.launch_dims({variable.expr: 0 for variable in kernel.vars})
        assert min(global_size) > 0, kernel


def check_products_occupy_the_device() -> None:
    """Of an H100's 132 units, and of 4 as on a board: tokens for each thread, and parts of rows."""
    large, small = (for_units(THREADS, num_units) for num_units in (132, 4))
    q8_0, q4_k = TensorFormat.Q8_0, TensorFormat.Q4_K
    found = {
        (name, format.name, rows, tokens): distribution(launch, format, rows, tokens)
        for name, launch in (("large", large), ("small", small), ("unknown", THREADS))
        for format in (q8_0, q4_k)
        for rows in (512, 14336, 128256)
        for tokens in (1, 32)
    }
    of_q4_k = {key: value for key, value in found.items() if key[1] == "Q4_K"}
    assert found["large", "Q8_0", 512, 1] == (1, 32)
    assert found["large", "Q8_0", 14336, 1] == (1, 16)
    assert found["large", "Q8_0", 128256, 1] == (1, 8)
    assert found["large", "Q8_0", 512, 32] == (8, 8)
    assert found["large", "Q8_0", 14336, 32] == (8, 4)
    assert found["large", "Q8_0", 128256, 32] == (32, 4)
    assert {parts for (*_, tokens), (_, parts) in of_q4_k.items() if tokens == 1} == {8}
    assert {parts for (*_, tokens), (_, parts) in of_q4_k.items() if tokens == 32} == {4}
    assert of_q4_k["large", "Q4_K", 512, 32] == (8, 4)
    for (name, _, rows, tokens), value in found.items():
        if name == "unknown" or (name == "small" and rows > 512):
            assert value == ((1, 8) if tokens == 1 else (32, 4))
    assert distribution(narrowed(large, 256), q8_0, 512, 1) == (1, 16)


def _compare_attention(window: int | None, softcap: float | None = None) -> None:
    """With 4 heads over 2, and products to make keys and values."""
    _compare(
        Linear(x=HIDDEN, weight="k", out="k"),
        Linear(x=HIDDEN, weight="v", out="v"),
        replace(_attention(window=window), softcap=softcap),
        k=(48, WIDTH),
        v=(48, WIDTH),
    )


def _attention(window: int | None) -> Attention:
    return Attention(
        q=HIDDEN,
        k="k",
        v="v",
        out=HIDDEN,
        cache_index=0,
        num_heads=4,
        num_kv_heads=2,
        head_dim=24,
        scale=24**-0.5,
        window=window,
    )


def _compare(
    *ops: Op, has_embedding: bool = False, has_head: bool = False, **weights: tuple[int, ...]
) -> None:
    """A program of these ops over 37 tokens of two sequences: two calls of 32, one of them padded.

    Calls of 1 token are for whole programs to check.
    """
    tables = [np.random.default_rng(6).uniform(-3, 3, (CONTEXT, pairs)) for pairs in (12, 5)]
    program = Program(
        shard=Shard(
            start_layer=0, end_layer=0, num_layers=0, has_embedding=has_embedding, has_head=has_head
        ),
        registers=tuple(
            Register(name=name, width=width)
            for name, width in (
                (HIDDEN, WIDTH),
                ("branch", BRANCH),
                ("gate", WIDTH),
                ("one", 1),
                ("k", 48),
                ("v", 48),
            )
        ),
        ops=ops,
        weights=tuple(WeightSpec(name=name, shape=shape) for name, shape in weights.items()),
        caches=tuple(
            CacheSpec(num_kv_heads=op.num_kv_heads, head_dim=op.head_dim, value_dim=op.head_dim)
            for op in ops
            if isinstance(op, Attention) and op.k is not None
        ),
        ropes=tuple(
            RopeTable(cos=np.cos(angles).astype(np.float32), sin=np.sin(angles).astype(np.float32))
            for angles in tables
        ),
        hidden_size=WIDTH,
        vocab_size=VOCAB,
        context_tokens=CONTEXT,
    )
    rng = np.random.default_rng(7)
    actual = TinygradEngine(program, num_blocks=9, max_step_tokens=64)
    expected = ReferenceEngine(program, num_blocks=9)
    for engine in (actual, expected):
        load_random_weights(engine, program, TensorFormat.F32)
    is_exact = not (program.caches and open_device().has_f16)
    limit = F32_LIMIT if is_exact else native_error_limit(num_layers=1, is_quantized=False)
    slices = tuple(
        SequenceSlice(
            sequence_id=SequenceId(sequence),
            tokens=tuple(rng.integers(0, VOCAB, count).tolist()),
            start_position=0,
            block_table=table,
            sample=True,
        )
        for sequence, count, table in ((0, 29, (4, 2)), (1, 8, (7, 0)))
    )
    step = Step(step_id=StepId(0), slices=slices)
    hidden = None
    if not has_embedding:
        hidden = rng.standard_normal((step.num_tokens, WIDTH)).astype(np.float32)
    wanted = _output(expected, step, hidden, has_head=has_head)
    error = _output(actual, step, hidden, has_head=has_head) - wanted
    assert rms(wanted) > 0.1
    assert rms(error) < limit * rms(wanted), rms(error) / rms(wanted)
    actual.close()


def _output(engine: Engine, step: Step, hidden: np.ndarray | None, *, has_head: bool) -> np.ndarray:
    if has_head:
        return engine.logits(step, hidden)
    result = engine.step(step, hidden).hidden
    assert result is not None
    return result
