"""A member reads its rows of tensors and no others."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from numpy.typing import NDArray
from support.engines.programs import program_reading
from support.models.tensor_sources import MemorySource, read_in_pieces, read_whole

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.types.program import Program, WeightRows, WeightSpec
from potluck.types.tensor import TensorFormat, TensorInfo
from potluck.weights.divided import DividedSource
from potluck.weights.load import check_weights

Array = NDArray[np.float32]


def source_of(values: Array) -> MemorySource:
    info = TensorInfo(name="w", shape=values.shape, format=TensorFormat.F32)
    return MemorySource({"w": (info, values.tobytes())})


def part_of(values: Array, start: int, count: int, axis: int) -> WeightSpec:
    shape = list(values.shape)
    shape[axis] = count
    rows = WeightRows(start=start, total=values.shape[axis], axis=axis)
    return WeightSpec(name="w", shape=tuple(shape), rows=rows)


@pytest.mark.parametrize(
    ("shape", "axis"), [((12, 5), 0), ((12,), 0), ((12, 3, 5), 0), ((4, 12, 5), 1), ((4, 12), 1)]
)
@pytest.mark.parametrize("rows_at_once", [1, 3, 100])
def test_the_part_is_read(shape: tuple[int, ...], axis: int, rows_at_once: int) -> None:
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    part = part_of(values, 3, 7, axis)
    source = DividedSource(source_of(values), [part])
    assert source.info("w").shape == part.shape
    expected = values.take(range(3, 10), axis=axis)
    assert read_in_pieces(source, "w", rows_at_once) == expected.tobytes()


def test_only_its_rows_are_read() -> None:
    values = np.zeros((4, 12, 5), dtype=np.float32)
    whole = source_of(values)
    source = DividedSource(whole, [part_of(values, 3, 7, 1)])
    read_whole(source, "w")
    assert whole.reads == [("w", 12 * index + 3, 12 * index + 10) for index in range(4)]


def test_other_tensors_are_whole() -> None:
    values = np.arange(6, dtype=np.float32).reshape(3, 2)
    whole = source_of(values)
    source = DividedSource(whole, [WeightSpec(name="w", shape=(3, 2))])
    assert list(source.names()) == ["w"]
    assert read_whole(source, "w") == values.tobytes()
    source.close()
    assert not whole.is_closed


def test_shapes_of_files_are_compared_with_whole_ones() -> None:
    values = np.zeros((12, 4), dtype=np.float32)
    program = program_reading({})
    part = part_of(values, 3, 7, 0)
    (info,) = check_weights(with_weight(program, part), source_of(values))
    assert info.shape == (7, 4)
    with pytest.raises(ModelFileError, match=r"shape \[7, 4\].* requires \[12, 4\]"):
        check_weights(with_weight(program, part), source_of(values[:7]))


def test_vectors_in_blocks_are_refused() -> None:
    info = TensorInfo(name="w", shape=(4, 64), format=TensorFormat.Q8_0)
    source = MemorySource({"w": (info, bytes(info.num_bytes))})
    part = WeightSpec(name="w", shape=(4, 32), rows=WeightRows(start=0, total=64, axis=1))
    with pytest.raises(UnsupportedModelError, match="the vector w is stored as q8_0"):
        check_weights(with_weight(program_reading({}), part), source)


def with_weight(program: Program, spec: WeightSpec) -> Program:
    return dataclasses.replace(program, weights=(spec,))
