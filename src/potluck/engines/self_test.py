"""Run the case of ``potluck.probe.cases.self_test`` on an engine of any backend."""

from __future__ import annotations

import numpy as np

from potluck.engines.profiling.rate_program import load_weight, lone_step
from potluck.models.layers import plain_config
from potluck.models.program import build_program
from potluck.models.rope import rope_tables
from potluck.probe.cases import draw_case, program_case
from potluck.probe.cases import self_test as case
from potluck.scheduling.blocks import blocks_for
from potluck.types.engine import MakeEngine
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
from potluck.types.step import (
    KV_BLOCK_TOKENS,
    SequenceId,
    SequenceOpening,
    SequenceSlice,
    Step,
    StepId,
)
from potluck.types.tensor import TensorFormat, TensorInfo


def self_test(make_engine: MakeEngine) -> dict[str, list[list[float]]]:
    """Return the engine's results: products by format, ``softmax``, ``program`` and ``draws``.

    Only the program's engine is warmed up, as in serving: warming up the others would compile more
    than they use.
    """
    results = {fmt.label: _products(make_engine, fmt) for fmt in case.FORMATS}
    return {
        **results,
        "softmax": _shares(make_engine),
        "program": program_logits(make_engine),
        "draws": drawn_tokens(make_engine),
    }


def program_logits(make_engine: MakeEngine) -> list[list[float]]:
    """Return the logits of ``potluck.probe.cases.program_case``, of all its steps."""
    engine = make_engine(
        two_layers(),
        num_blocks=program_case.NUM_BLOCKS,
        max_step_tokens=program_case.MAX_STEP_TOKENS,
    )
    for spec in two_layers().weights:
        fmt = program_case.weight_format(spec.name, spec.shape)
        info = TensorInfo(name=spec.name, shape=spec.shape, format=fmt)
        load_weight(engine.sink(), info, program_case.stored_weight(spec.name, spec.shape))
    engine.warm_up()
    rows: list[list[float]] = []
    for step in program_case.steps():
        rows += engine.logits(step, None).tolist()
    engine.close()
    return rows


def two_layers() -> Program:
    """Return the program of ``potluck.probe.cases.program_case``."""
    config = plain_config(
        family="llama",
        num_layers=program_case.NUM_LAYERS,
        hidden_size=program_case.HIDDEN_SIZE,
        intermediate_size=program_case.INTERMEDIATE_SIZE,
        num_heads=program_case.NUM_HEADS,
        num_kv_heads=program_case.NUM_KV_HEADS,
        head_dim=program_case.HEAD_DIM,
        vocab_size=program_case.VOCAB_SIZE,
        max_context_tokens=program_case.CONTEXT_TOKENS,
        norm_epsilon=program_case.EPSILON,
        theta=program_case.ROPE_THETA,
    )
    return build_program(
        config,
        Shard.whole(program_case.NUM_LAYERS),
        context_tokens=program_case.CONTEXT_TOKENS,
        ropes=rope_tables(config, program_case.CONTEXT_TOKENS),
    )


def _products(make_engine: MakeEngine, fmt: TensorFormat) -> list[list[float]]:
    """Compute the case's products: its activations are hidden states and its weights a head, so the
    logits are the results.
    """
    shape = (case.NUM_ROWS, case.NUM_COLUMNS)
    engine = make_engine(_only_head(shape), num_blocks=0, max_step_tokens=case.NUM_TOKENS)
    load_weight(
        engine.sink(), TensorInfo(name="weight", shape=shape, format=fmt), case.stored_weights(fmt)
    )
    step = Step(step_id=StepId(0), slices=_lone_tokens(case.NUM_TOKENS))
    hidden = np.array(case.activations(), dtype=np.float32)
    logits: list[list[float]] = engine.logits(step, hidden).tolist()
    engine.close()
    return logits


def _shares(make_engine: MakeEngine) -> list[list[float]]:
    """Return attention's shares; hidden states are unit vectors, so the columns of the weights are
    q, k and v.
    """
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
        caches=(CacheSpec(num_kv_heads=1, head_dim=width, value_dim=width),),
        ropes=(),
        hidden_size=width,
        vocab_size=1,
        context_tokens=num_positions,
    )
    num_blocks = blocks_for(num_positions)
    engine = make_engine(program, num_blocks=num_blocks, max_step_tokens=num_positions)
    for name, vectors in columns.items():
        weight = np.zeros((width, width), dtype="<f4")
        weight[:, :num_positions] = vectors.T
        info = TensorInfo(name=name, shape=weight.shape, format=TensorFormat.F32)
        load_weight(engine.sink(), info, weight.tobytes())
    hidden = np.eye(num_positions, width, dtype=np.float32)
    out = engine.step(lone_step(num_positions, num_blocks=num_blocks), hidden).hidden
    engine.close()
    return [] if out is None else out.tolist()


def drawn_tokens(make_engine: MakeEngine) -> list[list[float]]:
    """Return the tokens of ``potluck.probe.cases.draw_case``; hidden states are unit vectors, as
    above.
    """
    width = KV_BLOCK_TOKENS * 2  # whose first columns are rows of logits
    shape = (draw_case.VOCAB_SIZE, width)
    draws = draw_case.all_draws()
    program = _only_head(shape, context_tokens=2)
    engine = make_engine(program, num_blocks=0, max_step_tokens=len(draws))
    weight = np.zeros(shape, dtype="<f4")
    weight[:, : draw_case.NUM_ROWS] = np.array(draw_case.logits(), dtype=np.float32).T
    info = TensorInfo(name="weight", shape=shape, format=TensorFormat.F32)
    load_weight(engine.sink(), info, weight.tobytes())
    allowed = np.packbits(
        [draw_case.is_allowed(token) for token in range(-(-draw_case.VOCAB_SIZE // 32) * 32)],
        bitorder="little",
    ).view("<u4")[np.newaxis]
    step = Step(
        step_id=StepId(0),
        slices=_lone_tokens(len(draws)),
        opened=tuple(
            SequenceOpening(
                sequence_id=SequenceId(number), sampling=draw.params, prompt_tokens=(number,)
            )
            for number, draw in enumerate(draws)
        ),
    )
    hidden = np.eye(width, dtype=np.float32)[[draw.row for draw in draws]]
    masks = {SequenceId(number): allowed for number, draw in enumerate(draws) if draw.has_mask}
    sampled = engine.step(step, hidden, masks).sampled
    engine.close()
    return [[float(each.token) for each in sampled]]


def _only_head(shape: tuple[int, int], context_tokens: int = 1) -> Program:
    """Return the program of a head with a weight of this shape."""
    vocab_size, width = shape
    return Program(
        shard=Shard(start_layer=1, end_layer=1, num_layers=1, has_embedding=False, has_head=True),
        registers=(Register(name=HIDDEN, width=width),),
        ops=(Head(x=HIDDEN, weight="weight", vocab_size=vocab_size),),
        weights=(WeightSpec(name="weight", shape=shape),),
        caches=(),
        ropes=(),
        hidden_size=width,
        vocab_size=vocab_size,
        context_tokens=context_tokens,
    )


def _lone_tokens(count: int) -> tuple[SequenceSlice, ...]:
    """Return the slices of ``count`` sequences with one token each, which is sampled."""
    return tuple(
        SequenceSlice(
            sequence_id=SequenceId(number),
            tokens=(0,),
            start_position=0,
            block_table=(),
            sample=True,
        )
        for number in range(count)
    )
