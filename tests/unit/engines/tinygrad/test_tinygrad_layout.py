"""Panels of packed matrices: where every number goes, and what it all takes."""

from __future__ import annotations

import numpy as np
import pytest

from potluck.engines.tinygrad.backend import TinygradCost
from potluck.engines.tinygrad.layout import BLOCKS, GROUP_BYTES, MatrixLayout, arrange
from potluck.types.tensor import TensorFormat, TensorInfo

MIB = 2**20


def layout(format: TensorFormat, num_rows: int, num_columns: int) -> MatrixLayout:
    shape = (num_rows, num_columns)
    return MatrixLayout(TensorInfo(name="x", shape=shape, format=format))


def test_words_of_a_panel_are_ordered_by_place_and_then_by_row() -> None:
    stored = np.arange(17 * 8, dtype=np.float32).reshape(17, 8)
    words, halves = arrange(stored.view(np.uint8), layout(TensorFormat.F32, 17, 8))
    numbers = words.view(np.float32)
    assert numbers.shape == (2, 8, 16)
    assert halves.size == 0
    assert numbers[0, 3, 5] == 5 * 8 + 3
    assert numbers[1, 3].tolist() == [16 * 8 + 3] + 15 * [0]  # rows that there are not


def test_rows_of_floats_are_filled_up_to_whole_blocks() -> None:
    stored = np.ones((16, 9), np.float16)
    words, _ = arrange(stored.view(np.uint8), layout(TensorFormat.F16, 16, 9))
    assert words.shape == (1, 8, 16)  # 16 columns, two to a word
    assert words[0, :, 7].tolist() == [0x3C003C00] * 4 + [0x3C00] + [0] * 3


def test_a_scale_goes_to_the_plane_of_halves_and_the_rest_to_the_words() -> None:
    blocks = np.zeros((16, 2, 34), np.uint8)
    blocks[4, 1, :6] = (1, 2, 0x10, 0x20, 0x30, 0x40)
    words, halves = arrange(blocks.reshape(16, -1), layout(TensorFormat.Q8_0, 16, 64))
    assert halves.shape == (1, 2, 16)
    assert halves[0, 1, 4] == 0x0201
    words ^= 0x80808080  # an int8 is kept as 128 more
    assert words[0, 8, 4] == 0x40302010
    assert np.count_nonzero(words) == np.count_nonzero(halves) == 1


def test_the_scale_of_a_q6_k_block_lies_at_its_end() -> None:
    blocks = np.zeros((16, 210), np.uint8)
    blocks[2, 204:] = (1, 2, 3, 4, 5, 6)
    words, halves = arrange(blocks, layout(TensorFormat.Q6_K, 16, 256))
    assert halves[0, 0, 2] == 0x0605
    assert words[0, 51, 2] == 0x04030201


def test_an_int8_of_q8_0_becomes_a_uint8_that_is_128_more() -> None:
    blocks = np.full((16, 34), 0xFE, np.uint8)  # -2
    words, halves = arrange(blocks, layout(TensorFormat.Q8_0, 16, 32))
    assert np.unique(words.view(np.uint8)).tolist() == [126]
    assert np.unique(halves).tolist() == [0xFEFE]  # the scale is what it was


@pytest.mark.parametrize("format", list(BLOCKS))
def test_a_whole_panel_takes_its_stored_bytes(format: TensorFormat) -> None:
    info = TensorInfo(name="w", shape=(64, 512), format=format)
    of = MatrixLayout(info)
    words, halves = arrange(np.zeros((64, info.row_bytes), np.uint8), of)
    assert words.shape == of.words_shape
    assert halves.shape == (of.halves_shape or (4, 0, 16))
    assert words.nbytes + halves.nbytes == of.num_bytes == info.num_bytes


def test_what_a_weight_costs() -> None:
    cost = TinygradCost()
    ragged = TensorInfo(name="w", shape=(17, 9), format=TensorFormat.BF16)
    assert cost.loaded_bytes(ragged) == 32 * 16 * 2  # two panels of two blocks of 8
    vector = TensorInfo(name="v", shape=(9,), format=TensorFormat.BF16)
    assert cost.loaded_bytes(vector) == 9 * 4


@pytest.mark.parametrize(
    ("shape", "format"),
    [
        ((128_256, 4096), TensorFormat.Q4_K),
        ((4096, 28_672), TensorFormat.F32),
        ((3, 256), TensorFormat.Q6_K),
    ],
)
def test_staging_is_small_beside_a_large_weight_and_none_beside_a_small_one(
    shape: tuple[int, int], format: TensorFormat
) -> None:
    info = TensorInfo(name="w", shape=shape, format=format)
    cost = TinygradCost()
    panel_bytes = 16 * info.row_bytes
    assert cost.staging_bytes(info) <= 5 * max(GROUP_BYTES, panel_bytes)
    assert cost.staging_bytes(info) <= 16 * MIB
    assert cost.staging_bytes(info) <= 5 * cost.loaded_bytes(info)
