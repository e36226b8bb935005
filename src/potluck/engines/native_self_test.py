"""The case of ``potluck.probe.self_test`` on the native engine."""

from __future__ import annotations

import numpy as np

from potluck.engines.native import NativeEngine, make_pool
from potluck.probe import self_test as case
from potluck.types.program import (
    HIDDEN,
    Attention,
    CacheSpec,
    Head,
    Linear,
    Program,
    Register,
    Shard,
    WeightSpec,
)
from potluck.types.step import KV_BLOCK_TOKENS, SequenceId, SequenceSlice, Step, StepId
from potluck.types.tensor import TensorFormat, TensorInfo

_NUM_THREADS = 2
"""That work is divided is part of what is tested."""


def self_test(isa: str) -> dict[str, list[list[float]]]:
    """What one instruction set makes of the case: products by format, and ``softmax``."""
    results = {fmt.label: _products(isa, fmt) for fmt in case.FORMATS}
    return {**results, "softmax": _shares(isa)}


def _products(isa: str, fmt: TensorFormat) -> list[list[float]]:
    """The case's activations as hidden states, its weights as a head: the logits."""
    shape = (case.NUM_ROWS, case.NUM_COLUMNS)
    program = Program(
        shard=Shard(start_layer=1, end_layer=1, num_layers=1, has_embedding=False, has_head=True),
        registers=(Register(name=HIDDEN, width=case.NUM_COLUMNS),),
        ops=(Head(x=HIDDEN, weight="weight", vocab_size=case.NUM_ROWS),),
        weights=(WeightSpec(name="weight", shape=shape),),
        caches=(),
        rope=None,
        hidden_size=case.NUM_COLUMNS,
        vocab_size=case.NUM_ROWS,
        context_tokens=1,
    )
    engine = _engine(program, isa)
    _load(engine, TensorInfo(name="weight", shape=shape, format=fmt), case.stored_weights(fmt))
    slices = tuple(
        SequenceSlice(
            sequence_id=SequenceId(token),
            tokens=(0,),
            start_position=0,
            block_table=(),
            sample=True,
        )
        for token in range(case.NUM_TOKENS)
    )
    hidden = np.array(case.activations(), dtype=np.float32)
    logits = engine.logits(Step(step_id=StepId(0), slices=slices), hidden)
    return [[float(value) for value in row] for row in logits]


def _shares(isa: str) -> list[list[float]]:
    """Hidden states are unit vectors, so that the columns of the weights are q, k and v."""
    num_positions, width = case.NUM_POSITIONS, case.HEAD_DIM
    columns = {
        "q": np.array(case.queries(), dtype=np.float32),
        "k": np.array(case.keys(), dtype=np.float32),
        "v": np.eye(num_positions, width, dtype=np.float32),
    }
    program = Program(
        shard=Shard(start_layer=0, end_layer=1, num_layers=1, has_embedding=False, has_head=False),
        registers=tuple(Register(name=name, width=width) for name in (HIDDEN, *columns)),
        ops=(
            *(Linear(x=HIDDEN, weight=name, out=name) for name in columns),
            Attention(
                q="q",
                k="k",
                v="v",
                out=HIDDEN,
                cache_index=0,
                num_heads=1,
                num_kv_heads=1,
                head_dim=width,
                scale=case.SCORE_SCALE,
            ),
        ),
        weights=tuple(WeightSpec(name=name, shape=(width, width)) for name in columns),
        caches=(CacheSpec(num_kv_heads=1, head_dim=width),),
        rope=None,
        hidden_size=width,
        vocab_size=1,
        context_tokens=num_positions,
    )
    engine = _engine(program, isa)
    for name, vectors in columns.items():
        weight = np.zeros((width, width), dtype="<f4")
        weight[:, :num_positions] = vectors.T
        info = TensorInfo(name=name, shape=weight.shape, format=TensorFormat.F32)
        _load(engine, info, weight.tobytes())
    part = SequenceSlice(
        sequence_id=SequenceId(0),
        tokens=(0,) * num_positions,
        start_position=0,
        block_table=tuple(range(-(-num_positions // KV_BLOCK_TOKENS))),
        sample=False,
    )
    hidden = np.eye(num_positions, width, dtype=np.float32)
    out = engine.step(Step(step_id=StepId(0), slices=(part,)), hidden).hidden
    return [] if out is None else [[float(value) for value in row] for row in out]


def _engine(program: Program, isa: str) -> NativeEngine:
    return NativeEngine(
        program,
        num_blocks=-(-program.context_tokens // KV_BLOCK_TOKENS),
        max_step_tokens=max(case.NUM_TOKENS, case.NUM_POSITIONS),
        pool=make_pool(_NUM_THREADS),
        isa=isa,
    )


def _load(engine: NativeEngine, info: TensorInfo, stored: bytes) -> None:
    sink = engine.sink()
    sink.begin(info)
    sink.write_rows(info.name, 0, info.num_rows, memoryview(stored))
    sink.finish(info.name)
