"""What ops read and compute in a step."""

from __future__ import annotations

import pytest
from support.native_pipeline import make_program, small_config

from potluck.engines.native import loaded_bytes
from potluck.engines.products import Arithmetic
from potluck.engines.step_work import Work, work_of
from potluck.types.program import Shard
from potluck.types.step import SequenceId, SequenceSlice, Step, StepId
from potluck.types.tensor import TensorFormat, TensorInfo

SHARD = Shard(start_layer=1, end_layer=2, num_layers=3, has_embedding=False, has_head=False)


def work(num_tokens: int) -> Work:
    """Of the layer with experts: 7 of 256 rows, of which a token has 2."""
    program = make_program(small_config(3), SHARD)
    weights = {
        spec.name: TensorInfo(
            name=spec.name,
            shape=spec.shape,
            format=TensorFormat.F32
            if spec.is_router or len(spec.shape) == 1
            else TensorFormat.Q8_0,
        )
        for spec in program.weights
    }
    part = SequenceSlice(
        sequence_id=SequenceId(0),
        tokens=(1,) * num_tokens,
        start_position=0,
        block_table=(0,),
        sample=False,
    )
    step = Step(step_id=StepId(0), slices=(part,))
    arithmetic = {TensorFormat.Q8_0: Arithmetic.INT8, TensorFormat.F32: Arithmetic.F32}
    return work_of(program, weights, [step], arithmetic)


ONE_EXPERT = 3 * 256 * 256
BYTES = 3 * loaded_bytes(TensorInfo(name="w", shape=(7, 256, 256), format=TensorFormat.Q8_0))


def test_a_token_reads_and_computes_its_own_experts() -> None:
    alone = work(1)
    assert alone.read_bytes["experts"] == pytest.approx(BYTES * 2 / 7, abs=3)
    assert alone.multiply_adds["experts", Arithmetic.INT8] == 2 * ONE_EXPERT
    assert alone.read_bytes["mlp.router"] == 16 * 256 * 4


def test_tokens_share_experts() -> None:
    several = work(16)
    # All but those that no token has chosen: each misses one with a chance of 5 in 7.
    assert several.read_bytes["experts"] == pytest.approx(BYTES * (1 - (5 / 7) ** 16), abs=3)
    assert several.multiply_adds["experts", Arithmetic.INT8] == 16 * 2 * ONE_EXPERT
