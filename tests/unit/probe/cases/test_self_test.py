"""The known case: that it is what it claims, checked with NumPy, and that it catches faults."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.engines.fake_backends.behaviour import right_results
from support.reference.ops import attention

from potluck.engines.dequantize import dequantize
from potluck.probe.cases import self_test as case
from potluck.types.tensor import TensorFormat

FORMATS = pytest.mark.parametrize("fmt", case.FORMATS)


@FORMATS
def test_the_stored_weights_are_the_case_s(fmt: TensorFormat) -> None:
    weights = case.weights(fmt)
    scales = np.repeat(2.0 ** np.array(weights.exponents), 32, axis=1)
    np.testing.assert_array_equal(_as_the_engines_read_it(fmt), np.array(weights.quants) * scales)


@FORMATS
def test_the_products_are_those_of_numpy(fmt: TensorFormat) -> None:
    weights = _as_the_engines_read_it(fmt).astype(np.float64)
    products = np.array(case.activations(), dtype=np.float64) @ weights.T
    np.testing.assert_array_equal(case.expected_products(fmt), products)


def _as_the_engines_read_it(fmt: TensorFormat) -> NDArray[np.float32]:
    return dequantize(memoryview(case.stored_weights(fmt)), fmt, case.NUM_COLUMNS)


@FORMATS
def test_float32_holds_every_partial_sum(fmt: TensorFormat) -> None:
    """Even were all terms of one sign: then no order of summing rounds."""
    weights = case.weights(fmt)
    scales = np.repeat(2.0 ** np.array(weights.exponents), 32, axis=1)
    terms = np.abs(np.array(case.activations())) @ np.abs(np.array(weights.quants) * scales).T
    assert terms.max() * 16 < 2**24


def test_quantizing_the_activations_changes_nothing() -> None:
    groups = np.array(case.activations()).reshape(case.NUM_TOKENS, -1, 32)
    assert (np.abs(groups).max(axis=2) == 127).all()


@FORMATS
def test_no_two_rows_tokens_or_columns_are_alike(fmt: TensorFormat) -> None:
    """So that nothing can be swapped unseen."""
    weights = case.weights(fmt)
    scaled = np.array(weights.quants) * np.repeat(2.0 ** np.array(weights.exponents), 32, axis=1)
    for matrix in (scaled, scaled.T, np.array(case.activations()), np.array(case.activations()).T):
        assert len(np.unique(matrix, axis=0)) == len(matrix)


def test_the_shares_are_those_of_the_reference() -> None:
    positions = np.arange(case.NUM_POSITIONS)
    shares = attention(
        np.array(case.queries(), dtype=np.float32)[:, None],
        np.array(case.keys(), dtype=np.float32)[:, None],
        np.eye(case.NUM_POSITIONS, case.HEAD_DIM, dtype=np.float32)[:, None],
        positions,
        case.SCORE_SCALE,
        None,
    )
    np.testing.assert_allclose(shares[:, 0], case.expected_shares(), rtol=1e-6, atol=1e-9)


def test_the_scores_differ_enough_to_tell_softmaxes_apart() -> None:
    last = case.expected_shares()[-1][: case.NUM_POSITIONS]
    assert max(last) / min(last) > 100
    assert max(last) < 0.9


def test_right_results_are_right() -> None:
    assert case.deviation(right_results()) == ""


def test_shares_in_half_precision_are_right() -> None:
    results = right_results()
    halves = np.array(results["softmax"], dtype=np.float16)
    assert case.deviation({**results, "softmax": halves.astype(float).tolist()}) == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["q8_0", "q4_0"])
@pytest.mark.parametrize(("row", "column"), [(0, 0), (10, 40)])
def test_a_product_must_be_exact(name: str, row: int, column: int) -> None:
    results = right_results()
    right = results[name][row][column]
    results[name][row][column] = right + 1 / 16
    assert case.deviation(results) == (
        f"the {name} product[{row}][{column}] is {right + 1 / 16:.9g}, but should be {right:.9g}"
    )


def test_a_share_may_be_off_by_a_thousandth_and_no_more() -> None:
    results = right_results()
    right = results["softmax"][20][0]
    results["softmax"][20][0] = right * 1.0009
    assert case.deviation(results) == ""
    results["softmax"][20][0] = right * 1.0012
    assert case.deviation(results).startswith("the softmax[20][0] is ")


def test_a_token_that_sees_what_comes_after_it() -> None:
    results = right_results()
    results["softmax"][3][4] = 1e-4
    assert case.deviation(results) == "the softmax[3][4] is 0.0001, but should be 0"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (None, "its results are not an object"),
        ([], "its results are not an object"),
        ({}, "the q8_0 product does not have 19 rows"),
        ({"q8_0": "x"}, "the q8_0 product does not have 19 rows"),
        ({"q8_0": []}, "the q8_0 product does not have 19 rows"),
        ({"q8_0": [[]] * 19}, "row 0 of the q8_0 product does not have 41 numbers"),
        ({"q8_0": [None] * 19}, "row 0 of the q8_0 product does not have 41 numbers"),
        ({"q8_0": [[None] * 41] * 19}, "the q8_0 product[0][0] is not a number"),
        ({"q8_0": [[True] * 41] * 19}, "the q8_0 product[0][0] is not a number"),
        ({"q8_0": [["1"] * 41] * 19}, "the q8_0 product[0][0] is not a number"),
        ({"q8_0": [[10**400] * 41] * 19}, "the q8_0 product[0][0] is inf, but "),
        ({"q8_0": [[math.nan] * 41] * 19}, "the q8_0 product[0][0] is nan, but "),
        ({"program": None}, "the program's output does not have 5 rows"),
        (
            {"program": [[math.nan] * 32] * 5},
            "row 0 of the program's output is off by nan of ",
        ),
        (
            {"program": [[10**400] * 32] * 5},
            "row 0 of the program's output is off by inf of ",
        ),
    ],
)
def test_results_without_form(wrong: Any, reason: str) -> None:
    if isinstance(wrong, dict) and wrong:
        wrong = {**right_results(), **wrong}
    assert case.deviation(wrong).startswith(reason)


def test_results_that_are_cut_off() -> None:
    for name in ("q8_0", "q4_0", "softmax", "program"):
        results = copy.deepcopy(right_results())
        results[name][-1].pop()
        assert case.deviation(results).startswith(f"row {len(results[name]) - 1} of the ")
