"""Cache blocks of the native engine as bytes: what one engine gives, another continues from."""

from __future__ import annotations

import numpy as np
import pytest
from support.engines.native_pipeline import Part, Pipeline, small_config

from potluck.engines.native.engine import NativeEngine, available_isas
from potluck.errors import EngineError
from potluck.types.arithmetic import Arithmetic, arithmetics_with
from potluck.types.tensor import TensorFormat

CONFIG = small_config(4)
TOKENS = list(range(40))


def blocks_of(engine: NativeEngine) -> int:
    return engine.block_format.num_bytes


@pytest.mark.parametrize("num_stages", [1, 2, 5])
def test_another_engine_goes_on_from_blocks_that_were_read(num_stages: int) -> None:
    """Also in other places of its cache, and cut where a stage has no layers."""
    before = Pipeline.make(CONFIG, TensorFormat.Q8_0, num_stages=num_stages, block_seed=1)
    after = Pipeline.make(CONFIG, TensorFormat.Q8_0, num_stages=num_stages, block_seed=2)
    before.logits([Part(sequence=0, tokens=TOKENS[:33], start=0)])
    expected = before.logits([Part(sequence=0, tokens=TOKENS[33:], start=33)])
    table = before.tables[0]
    after.tables[0] = [after.free_blocks.pop() for _ in table]
    assert set(after.tables[0]) != set(table)
    for source, target in zip(before.engines, after.engines, strict=True):
        data = source.read_blocks(table)
        assert data.shape == (3, blocks_of(source))
        target.write_blocks(after.tables[0], data)
        np.testing.assert_array_equal(target.read_blocks(after.tables[0]), data)
    np.testing.assert_array_equal(
        after.logits([Part(sequence=0, tokens=TOKENS[33:], start=33)]), expected
    )


def test_a_stage_without_layers_has_blocks_of_no_bytes() -> None:
    engine = Pipeline.make(CONFIG, TensorFormat.Q8_0, num_stages=5).engines[0]
    assert blocks_of(engine) == 0


def test_bytes_that_are_not_those_of_the_blocks_are_refused() -> None:
    one = Pipeline.make(CONFIG, TensorFormat.Q8_0, num_blocks=10)
    engine = one.engines[0]
    one.logits([Part(sequence=0, tokens=TOKENS, start=0)])
    everything = engine.read_blocks(range(10))
    assert everything.any()
    good = np.full((2, blocks_of(engine)), 7, np.uint8)
    for blocks, data, problem in (
        ([0, 10], good, "no cache block 10"),
        ([-1, 0], good, "no cache block -1"),
        ([0], good, "are not those of 1 cache blocks"),
        ([0, 1], good[:, :-1], "are not those of 2 cache blocks"),
    ):
        with pytest.raises(EngineError, match=problem):
            engine.write_blocks(blocks, data)
    with pytest.raises(EngineError, match="no cache block 10"):
        engine.read_blocks([10])
    np.testing.assert_array_equal(engine.read_blocks(range(10)), everything)
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.read_blocks([0])


def test_the_format_tells_arithmetics_and_instruction_sets_apart() -> None:
    arithmetics = arithmetics_with(tuple(available_isas()))
    made = [("scalar", Arithmetic.EXACT), *((each.isa, each) for each in arithmetics)]
    names = {
        Pipeline.make(CONFIG, TensorFormat.BF16, isa=isa, arithmetic=arithmetic)
        .engines[0]
        .block_format.name
        for isa, arithmetic in made
    }
    assert len(names) == len({(isa or available_isas()[-1], each) for isa, each in made})
