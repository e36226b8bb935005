"""A token's logits depend on its own sequence alone, bit for bit.

The same two sequences are computed in many ways; every logit must have the same bits as when each
was alone, in one chunk, on one thread, in one stage, on the fastest instruction set.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.engines.native_pipeline import VOCAB_SIZE, Part, Pipeline, small_config

from potluck.engines.native.engine import available_isas
from potluck.types.arithmetic import Arithmetic, arithmetics_with
from potluck.types.tensor import COMPUTED_FORMATS, TensorFormat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Logits = NDArray[np.float32]

NUM_LAYERS = 3
PROMPT_TOKENS = 530
DECODED_TOKENS = 4
# The quantized formats that differ most, and a float one.
MAIN_FORMATS = (TensorFormat.Q4_K, TensorFormat.Q8_0, TensorFormat.BF16)
FLOAT_FORMATS = (TensorFormat.F32, TensorFormat.F16, TensorFormat.BF16)
FAST = [each for each in arithmetics_with(tuple(available_isas())) if each.isa is not None]


def tokens_of(sequence: int, count: int) -> list[int]:
    rng = np.random.default_rng(sequence)
    return [int(token) for token in rng.integers(0, VOCAB_SIZE, count)]


MAIN = tokens_of(0, PROMPT_TOKENS + DECODED_TOKENS)


def prefill(pipeline: Pipeline, chunk: int) -> dict[int, Logits]:
    """Logits after each chunk of the main sequence's prompt, by position."""
    rows = {}
    for start in range(0, PROMPT_TOKENS, chunk):
        end = min(start + chunk, PROMPT_TOKENS)
        rows[end - 1] = pipeline.logits([Part(sequence=0, tokens=MAIN[start:end], start=start)])[0]
    return rows


def decode(pipeline: Pipeline) -> dict[int, Logits]:
    rows = {}
    for position in range(PROMPT_TOKENS, PROMPT_TOKENS + DECODED_TOKENS):
        part = Part(sequence=0, tokens=MAIN[position : position + 1], start=position)
        rows[position] = pipeline.logits([part])[0]
    return rows


@cache
def expected(
    fmt: TensorFormat, chunk: int = 600, num_layers: int = NUM_LAYERS
) -> dict[int, Logits]:
    """Alone, by default in one chunk, one thread, one stage, the fastest instruction set."""
    pipeline = Pipeline.make(small_config(num_layers), fmt)
    return prefill(pipeline, chunk) | decode(pipeline)


def assert_same_bits(actual: dict[int, Logits], wanted: dict[int, Logits]) -> None:
    common = actual.keys() & wanted.keys()
    assert len(common) >= DECODED_TOKENS
    for position in common:
        assert np.all(np.isfinite(wanted[position]))
        np.testing.assert_array_equal(
            actual[position].view(np.uint32), wanted[position].view(np.uint32), str(position)
        )


def test_the_expected_logits_are_not_trivial() -> None:
    rows = list(expected(TensorFormat.Q4_K).values())
    assert 0.1 < float(np.std(rows[0])) < 10
    assert not np.array_equal(rows[0], rows[1])


@pytest.mark.parametrize("fmt", COMPUTED_FORMATS, ids=lambda fmt: fmt.label)
@pytest.mark.parametrize("chunk", [16, 512])
def test_chunks(fmt: TensorFormat, chunk: int) -> None:
    pipeline = Pipeline.make(small_config(NUM_LAYERS), fmt, block_seed=1)
    assert_same_bits(prefill(pipeline, chunk) | decode(pipeline), expected(fmt))


@pytest.mark.parametrize("fmt", MAIN_FORMATS, ids=lambda fmt: fmt.label)
def test_token_by_token(fmt: TensorFormat) -> None:
    pipeline = Pipeline.make(small_config(NUM_LAYERS), fmt, block_seed=1)
    rows = prefill(pipeline, 1) | decode(pipeline)
    assert_same_bits(rows, expected(fmt))
    assert_same_bits(rows, expected(fmt, chunk=16))


@pytest.mark.parametrize("fmt", COMPUTED_FORMATS, ids=lambda fmt: fmt.label)
def test_two_threads(fmt: TensorFormat) -> None:
    pipeline = Pipeline.make(small_config(NUM_LAYERS), fmt, num_threads=2)
    assert_same_bits(prefill(pipeline, 600) | decode(pipeline), expected(fmt))


@pytest.mark.parametrize("num_threads", [5, 16])
def test_many_threads(num_threads: int) -> None:
    """More than there are key-value heads: a token's attention is cut by spans, and merged."""
    fmt = TensorFormat.Q8_0
    pipeline = Pipeline.make(small_config(NUM_LAYERS), fmt, num_threads=num_threads)
    rows = prefill(pipeline, 64) | decode(pipeline)
    assert_same_bits(rows, expected(fmt))
    assert_same_bits(rows, expected(fmt, chunk=7))


@pytest.mark.parametrize("fmt", COMPUTED_FORMATS, ids=lambda fmt: fmt.label)
@pytest.mark.parametrize("isa", available_isas()[:-1])
def test_instruction_sets(fmt: TensorFormat, isa: str) -> None:
    """A shorter prompt, as scalar code is slow."""
    fast = Pipeline.make(small_config(2), fmt, isa=available_isas()[-1])
    slow = Pipeline.make(small_config(2), fmt, isa=isa)
    for start, end in ((0, 45), (45, 46), (46, 47)):
        parts = [Part(sequence=0, tokens=MAIN[start:end], start=start)]
        assert_same_bits_of(slow.logits(parts), fast.logits(parts))


@pytest.mark.parametrize("fmt", FLOAT_FORMATS, ids=lambda fmt: fmt.label)
def test_stages_with_different_instruction_sets_are_one_model(fmt: TensorFormat) -> None:
    """Logits of prompt and decode, as a cluster of different CPUs computes them."""
    isas = available_isas()
    mixed = Pipeline.make(small_config(4), fmt, num_stages=len(isas), isa=isas)
    alone = Pipeline.make(small_config(4), fmt, isa="scalar")
    for start, end in ((0, 21), (21, 22), (22, 23)):
        parts = [Part(sequence=0, tokens=MAIN[start:end], start=start)]
        assert_same_bits_of(mixed.logits(parts), alone.logits(parts))


@pytest.mark.parametrize("arithmetic", FAST, ids=lambda each: each.value)
def test_fast_arithmetic_of_bf16_weights(arithmetic: Arithmetic) -> None:
    """Decoded and prefilled, in chunks and stages, on any number of threads: the same bits."""
    config, fmt = small_config(NUM_LAYERS), TensorFormat.BF16
    isa = arithmetic.isa
    whole = Pipeline.make(config, fmt, isa=isa, arithmetic=arithmetic)
    rows = prefill(whole, 600) | decode(whole)
    cut_up = Pipeline.make(config, fmt, isa=isa, arithmetic=arithmetic, num_stages=3, num_threads=2)
    assert_same_bits(prefill(cut_up, 7) | decode(cut_up), rows)
    with pytest.raises(AssertionError):  # and not those of exact
        assert_same_bits(rows, expected(fmt))


def assert_same_bits_of(actual: Logits, wanted: Logits) -> None:
    np.testing.assert_array_equal(actual.view(np.uint32), wanted.view(np.uint32))


@pytest.mark.parametrize("fmt", MAIN_FORMATS, ids=lambda fmt: fmt.label)
@pytest.mark.parametrize("num_stages", [2, 3, 5, 12])
def test_cuts(fmt: TensorFormat, num_stages: int) -> None:
    pipeline = Pipeline.make(small_config(12), fmt, num_stages=num_stages, num_threads=2)
    rows = prefill(pipeline, 200) | decode(pipeline)
    assert_same_bits(rows, expected(fmt, num_layers=12))


def test_more_stages_than_layers() -> None:
    """Empty layer ranges: the embedding alone, the head alone."""
    pipeline = Pipeline.make(small_config(2), TensorFormat.Q4_K, num_stages=5)
    rows = prefill(pipeline, 600) | decode(pipeline)
    assert_same_bits(rows, expected(TensorFormat.Q4_K, num_layers=2))


def others(step: int) -> list[Part]:
    """Six more sequences of mixed lengths: chunks of prompts and single tokens."""
    lengths = (1, 3, 16, 17, 40, 7)
    parts = []
    for number, length in enumerate(lengths, start=1):
        tokens = tokens_of(number, length * 10)[length * step : length * (step + 1)]
        parts.append(Part(sequence=number, tokens=tokens, start=length * step, sample=number != 3))
    return parts


@pytest.mark.parametrize("fmt", COMPUTED_FORMATS, ids=lambda fmt: fmt.label)
def test_in_a_batch_of_seven(fmt: TensorFormat) -> None:
    pipeline = Pipeline.make(small_config(NUM_LAYERS), fmt, num_threads=2)
    pipeline_rows: dict[int, Logits] = {}
    start, step = 0, 0
    for length in (500, 30, 1, 1, 1, 1):
        before, after = others(step)[:3], others(step)[3:]
        main = Part(sequence=0, tokens=MAIN[start : start + length], start=start)
        rows = pipeline.logits([*before, main, *after])
        start, step = start + length, step + 1
        pipeline_rows[start - 1] = rows[sum(part.sample for part in before)]
    assert_same_bits(pipeline_rows, expected(fmt))


@pytest.mark.parametrize("fmt", MAIN_FORMATS, ids=lambda fmt: fmt.label)
def test_sequences_join_and_leave(fmt: TensorFormat) -> None:
    """Their blocks are given to others, so that stale keys and values would show."""
    pipeline = Pipeline.make(small_config(NUM_LAYERS), fmt, num_threads=2, num_blocks=60)
    steps: Sequence[tuple[int, tuple[int, ...]]] = (
        (100, (1, 4)),
        (17, (1, 2, 4)),
        (1, (2, 5)),
        (400, (5, 6)),
        (12, (3, 6)),
        (1, (1, 2, 3, 4)),
        (1, ()),
        (1, (4,)),
        (1, (5, 6)),
    )
    rows: dict[int, Logits] = {}
    progress: dict[int, int] = {}
    start = 0
    for length, guests in steps:
        for gone in progress.keys() - set(guests):
            pipeline.forget(gone)
            del progress[gone]
        parts = [Part(sequence=0, tokens=MAIN[start : start + length], start=start)]
        for guest in guests:
            step = progress.setdefault(guest, 0)
            progress[guest] += 1
            parts.insert(guest % 2, others(step)[guest - 1])
        index = sum(part.sample for part in parts[: [part.sequence for part in parts].index(0)])
        start += length
        rows[start - 1] = pipeline.logits(parts)[index]
    assert start == PROMPT_TOKENS + DECODED_TOKENS
    assert_same_bits(rows, expected(fmt))
