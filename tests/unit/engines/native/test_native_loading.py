"""Making a native engine and giving it its weights; what they occupy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import gguf
import numpy as np
import pytest
from support.engines.native_pipeline import (
    VOCAB_SIZE,
    make_program,
    small_config,
)
from support.engines.pools import pool_of
from support.models.random_weights import stored_rows

from potluck.engines.native import engine as native
from potluck.engines.native.backend import COST
from potluck.engines.native.engine import (
    NativeEngine,
    available_isas,
    choose_isa,
    convert_on,
)
from potluck.errors import EngineError, ParameterError
from potluck.models.program import build_program
from potluck.models.rope import rope_tables
from potluck.types.program import (
    CacheSpec,
    Embed,
    Program,
    Register,
    Shard,
    WeightSpec,
)
from potluck.types.step import (
    SequenceId,
    SequenceSlice,
    Step,
    StepId,
)
from potluck.types.tensor import TensorFormat, TensorInfo

CONFIG = small_config(2)


def engine_for(program: Program, num_threads: int = 1) -> NativeEngine:
    return NativeEngine(program, num_blocks=10, max_step_tokens=64, pool=pool_of(num_threads))


def embedding_program(num_rows: int, num_columns: int) -> Program:
    """Its output is the rows of its weight."""
    return Program(
        shard=Shard(start_layer=0, end_layer=0, num_layers=1, has_embedding=True, has_head=False),
        registers=(Register(name="hidden", width=num_columns),),
        ops=(Embed(weight="table", out="hidden"),),
        weights=(WeightSpec(name="table", shape=(num_rows, num_columns)),),
        caches=(),
        ropes=(),
        hidden_size=num_columns,
        vocab_size=num_rows,
        context_tokens=100,
    )


def embedding_step(*tokens: int) -> Step:
    part = SequenceSlice(
        sequence_id=SequenceId(0), tokens=tokens, start_position=0, block_table=(), sample=False
    )
    return Step(step_id=StepId(0), slices=(part,))


def table_info(num_rows: int, num_columns: int, fmt: TensorFormat = TensorFormat.F32) -> TensorInfo:
    return TensorInfo(name="table", shape=(num_rows, num_columns), format=fmt)


@pytest.mark.parametrize("num_threads", [1, 4])
def test_rows_come_back_however_they_were_written(num_threads: int) -> None:
    """4099 rows in pieces that end within panels, large enough to be packed by several threads."""
    num_rows, num_columns = 4099, 96
    engine = engine_for(embedding_program(num_rows, num_columns), num_threads)
    rows = np.random.default_rng(0).standard_normal((num_rows, num_columns)).astype(np.float32)
    sink = engine.sink()
    sink.begin(table_info(num_rows, num_columns))
    bounds = [0, 1, 14, 16, 16, 2000, 4000, 4099]
    for start, end in pairwise(bounds):
        sink.write_rows("table", start, end, memoryview(rows[start:end].tobytes()))
    sink.finish("table")
    tokens = (0, 1, 13, 15, 16, 1999, 2000, 3999, 4098, 4000)
    result = engine.step(embedding_step(*tokens), None)
    assert result.sampled == ()
    np.testing.assert_array_equal(result.hidden, rows[list(tokens)])
    # The last panel is filled up to 16 rows.
    assert engine.weights_bytes == 4112 * num_columns * 4


@pytest.mark.parametrize("num_columns", [40, 96])  # whole strips of 64 bytes, and not
def test_bfloat16_stays_two_bytes(num_columns: int) -> None:
    """Written in pieces that fill panels and pieces that do not."""
    num_rows = 55
    engine = engine_for(embedding_program(num_rows, num_columns))
    wide = np.random.default_rng(1).standard_normal((num_rows, num_columns)).astype(np.float32)
    bits = (wide.view(np.uint32) >> 16).astype(np.uint16)
    sink = engine.sink()
    sink.begin(table_info(num_rows, num_columns, TensorFormat.BF16))
    for start, end in pairwise([0, 16, 21, 48, 55]):
        sink.write_rows("table", start, end, memoryview(bits[start:end].tobytes()))
    sink.finish("table")
    assert engine.weights_bytes == 64 * num_columns * 2
    result = engine.step(embedding_step(*range(num_rows)), None)
    expected = (bits.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(result.hidden, expected)


UNCOMPUTED = tuple(each for each in TensorFormat if not each.has_kernels)


@pytest.mark.parametrize("rows_at_once", [1, 3, 100])
@pytest.mark.parametrize("fmt", UNCOMPUTED, ids=lambda fmt: fmt.label)
def test_a_format_without_kernels_is_decoded_first(
    fmt: TensorFormat, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "_DECODED_VALUES", rows_at_once * 512)
    # A scale of f16 in every place where a format has one, and other bits wherever there are any.
    stored = np.random.default_rng(1).integers(30, 60, (7, fmt.row_bytes(512)), np.uint8)
    values = gguf.dequantize(stored, gguf.GGMLQuantizationType[fmt.name])
    out = bytearray(7 * TensorFormat.Q8_0.row_bytes(512))
    convert = convert_on(pool_of(1))
    convert(memoryview(stored.tobytes()), fmt, memoryview(out), TensorFormat.Q8_0, 7, 512)
    expected = gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    assert bytes(out) == expected.tobytes()


@pytest.mark.parametrize("fmt", [TensorFormat.F16, TensorFormat.BF16])
def test_vectors_are_widened_exactly(fmt: TensorFormat) -> None:
    """All scales are numbers that every format holds, 2^-20 (subnormal in F16) among them."""
    program = make_program(CONFIG, Shard.whole(2))
    results = []
    for vector_format in (TensorFormat.F32, fmt):
        engine = engine_for(program)
        sink = engine.sink()
        for spec in program.weights:
            is_vector = len(spec.shape) == 1
            info = TensorInfo(
                name=spec.name,
                shape=spec.shape,
                format=vector_format if is_vector else TensorFormat.F32,
            )
            sink.begin(info)
            if is_vector:
                values = np.resize(
                    np.array([1, -0.5, 2.0**-20, 1.25, 0, -3], np.float32), spec.shape
                )
                data = {
                    TensorFormat.F32: values.tobytes(),
                    TensorFormat.F16: values.astype(np.float16).tobytes(),
                    TensorFormat.BF16: (values.view(np.uint32) >> 16).astype(np.uint16).tobytes(),
                }[vector_format]
            else:
                rng = np.random.default_rng(len(spec.name))
                data = stored_rows(rng, TensorFormat.F32, info.num_rows, info.num_columns).tobytes()
            sink.write_rows(spec.name, 0, info.num_rows, memoryview(data))
            sink.finish(spec.name)
        step = Step(
            step_id=StepId(0),
            slices=(
                SequenceSlice(
                    sequence_id=SequenceId(0),
                    tokens=(1, 2, 3),
                    start_position=0,
                    block_table=(0,),
                    sample=True,
                ),
            ),
        )
        results.append(engine.logits(step, None))
    assert np.ptp(results[0]) > 0
    np.testing.assert_array_equal(results[0], results[1])


ROW = memoryview(bytes(32 * 4))

SINK_ERRORS: dict[str, tuple[Callable[[NativeEngine], None], str]] = {
    "unknown name": (
        lambda engine: engine.sink().begin(replace(table_info(50, 32), name="other")),
        "no weight 'other'",
    ),
    "other shape": (lambda engine: engine.sink().begin(table_info(50, 64)), "shape"),
    "begun twice": (lambda engine: engine.sink().begin(table_info(50, 32)), "begun before"),
    "gap": (
        lambda engine: engine.sink().write_rows("table", 1, 2, ROW),
        r"rows \[1, 2\) of weight 'table' do not follow the 0 written of 50",
    ),
    "too many rows": (
        lambda engine: engine.sink().write_rows("table", 0, 51, memoryview(bytes(51 * 128))),
        "do not follow",
    ),
    "backwards": (lambda engine: engine.sink().write_rows("table", 0, -1, ROW), "do not follow"),
    "too few bytes": (
        lambda engine: engine.sink().write_rows("table", 0, 1, ROW[:-1]),
        "127 bytes instead of 128",
    ),
    "not begun": (
        lambda engine: engine.sink().write_rows("other", 0, 1, ROW),
        "'other' is not being written",
    ),
    "unfinished": (lambda engine: engine.sink().finish("table"), "0 rows of 50"),
    "step too early": (
        lambda engine: (engine.step(embedding_step(1), None), None)[1],
        "weight 'table' was not loaded",
    ),
}


@pytest.mark.parametrize("name", SINK_ERRORS)
def test_weights_that_make_no_sense_are_refused(name: str) -> None:
    act, message = SINK_ERRORS[name]
    engine = engine_for(embedding_program(50, 32))
    engine.sink().begin(table_info(50, 32))
    with pytest.raises(EngineError, match=message):
        act(engine)


def test_formats_that_cannot_hold_a_tensor_are_refused() -> None:
    with pytest.raises(EngineError, match="48 columns, which are not whole q8_0 blocks"):
        engine_for(embedding_program(5, 48)).sink().begin(table_info(5, 48, TensorFormat.Q8_0))
    whole = engine_for(make_program(CONFIG, Shard.whole(2)))
    name = next(
        spec.name for spec in make_program(CONFIG, Shard.whole(2)).weights if spec.shape == (256,)
    )
    with pytest.raises(EngineError, match="vectors must be stored as floats"):
        whole.sink().begin(TensorInfo(name=name, shape=(256,), format=TensorFormat.Q8_0))


# Memory


def test_cache_bytes() -> None:
    """Per block and layer: 2 heads of 40 keys and 48 padded values, at 16 positions of 2 bytes."""
    config = small_config(3, head_dim=40)
    program = make_program(config, Shard.whole(3))
    assert program.caches == (CacheSpec(num_kv_heads=2, head_dim=40, value_dim=40),) * 3
    assert COST.cache_bytes(program, 7) == 3 * 7 * 2 * (40 + 48) * 16 * 2
    assert COST.cache_bytes(program, 0) == 0


def test_scratch_bytes_cover_what_a_step_touches() -> None:
    program = make_program(CONFIG, Shard.whole(2))
    one = COST.scratch_bytes(program, 64, num_threads=1)
    registers = sum(register.width for register in program.registers) * 64 * 4
    logits = 32 * VOCAB_SIZE * 4
    sampling = VOCAB_SIZE * 16
    # A row for each of a token's two experts: what goes in or comes out, its gate and its up.
    experts = 64 * 2 * (256 + 256 + 256) * 4
    least = registers + logits + sampling + experts
    assert least < one < 1.5 * least
    assert COST.scratch_bytes(program, 64, num_threads=3) >= one + 2 * sampling
    with pytest.raises(EngineError, match="max_step_tokens"):
        COST.scratch_bytes(program, 0, num_threads=1)
    with pytest.raises(EngineError, match="num_threads"):
        COST.scratch_bytes(program, 1, num_threads=0)


def test_scratch_hardly_grows_with_the_context() -> None:
    """Attention needs as much per thread for any context, and partials of one per 256 positions
    where threads are more than one: per row and span 64 weighted values, a maximum and a sum.
    """
    config = replace(CONFIG, max_context_tokens=1 << 16)

    def scratch(context_tokens: int, num_threads: int) -> int:
        rope = rope_tables(config, context_tokens)
        program = build_program(config, Shard.whole(2), context_tokens=context_tokens, ropes=rope)
        return COST.scratch_bytes(program, 64, num_threads=num_threads)

    assert scratch(1 << 16, 1) == scratch(1 << 10, 1)
    attention = config.layers[0].grouped_attention
    span_bytes = attention.num_heads * (attention.head_dim + 2) * 4
    assert scratch(1 << 16, 2) - scratch(1 << 10, 2) == (256 - 4) * span_bytes


def test_memory_that_does_not_exist_is_one_clear_line() -> None:
    """More blocks than an address space holds."""
    config = small_config(1, head_dim=512, num_kv_heads=4)
    program = make_program(config, Shard.whole(1))
    with pytest.raises(EngineError, match=r"no memory for the key cache \(\d+ bytes\)") as caught:
        NativeEngine(program, num_blocks=1 << 28, max_step_tokens=1, pool=pool_of(1))
    assert "\n" not in caught.value.message
    assert caught.value.hint


# Threads and instruction sets


def test_an_unavailable_instruction_set_names_those_there_are() -> None:
    with pytest.raises(ParameterError, match="'mmx' is not available") as caught:
        NativeEngine(
            embedding_program(5, 32), num_blocks=0, max_step_tokens=1, pool=pool_of(1), isa="mmx"
        )
    assert ", ".join(available_isas()) in caught.value.hint


def test_the_environment_chooses_the_instruction_set() -> None:
    assert choose_isa(None, {}) == available_isas()[-1]
    assert choose_isa(None, {"POTLUCK_ISA": "scalar"}) == "scalar"
    assert choose_isa("scalar", {"POTLUCK_ISA": "mmx"}) == "scalar"
    with pytest.raises(ParameterError) as caught:
        choose_isa(None, {"POTLUCK_ISA": "mmx"})
    assert "scalar" in caught.value.hint


def test_an_instruction_set_that_does_not_work_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    best = available_isas()[-1]
    monkeypatch.setattr(native, "available_isas", lambda: ("scalar", best))
    monkeypatch.setattr(
        native, "_problem", lambda isa: "its products are wrong" if isa == best else ""
    )
    assert choose_isa(None, {}) == "scalar"
    assert caplog.messages == [
        f"the instruction set {best} does not work here, so scalar is used: its products are wrong"
    ]
    with pytest.raises(ParameterError, match="does not work here: its products are wrong"):
        choose_isa(best, {})


def test_the_last_instruction_set_is_used_untried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "available_isas", lambda: ("scalar",))
    monkeypatch.setattr(native, "_problem", lambda _: "everything is wrong")
    assert choose_isa(None, {}) == "scalar"
