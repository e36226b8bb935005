"""The numeric self-test of a backend: a small case with known results.

Backends compute it in a child process from the inputs defined here. The probe compares the printed
results with those that it computes itself from the same integers, using integer arithmetic and
``math.exp``. It is plain Python, because NumPy is not loaded in the probe.

**Product.** Weights in Q8_0 and Q4_0 are multiplied with activations. Activations are integers, and
every group of 32 contains ±127, so that quantizing a group to 8 bits by its largest value changes
nothing; the scales of the weights are powers of two from 1/16 to 1/2. The sum of a group is at most
31·31·127 + 127·127 = 138,176, and the total at most 345,440, in units of 1/16. That needs 23 bits,
and float32 holds 24: the product is exact in any order of summation, and must match exactly.

**Softmax.** Causal attention of one head, where the value of token t is the unit vector t, so that
the output consists of the attention weights. Scores are multiples of 1/8, and so exact as well.

A whole program is compared with a tolerance (``potluck.probe.cases.program_case``), and sampled
tokens are compared exactly (``potluck.probe.cases.draw_case``).
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from potluck.probe.cases import draw_case, program_case
from potluck.probe.cases.draw_case import draws, uniform_int
from potluck.types.tensor import TensorFormat

FORMATS = (TensorFormat.Q8_0, TensorFormat.Q4_0)

NUM_TOKENS = 19
"""More than the blocks of 8 tokens and the tiles of 16 that kernels process at once, and a multiple
of neither."""
NUM_ROWS = 41
"""More than two panels of 16 rows, and not a multiple of 16."""
NUM_COLUMNS = 160
"""Five groups of 32."""

NUM_POSITIONS = 21
"""More than one block of 16 positions of a key-value cache."""
HEAD_DIM = 32
SCORE_SCALE = 0.125
NUM_SCORE_COLUMNS = 8
"""These first columns of queries and keys are random, and the others 0: scores are within ±9."""

SHARE_TOLERANCE = 1e-3
"""Relative tolerance: half a unit in the last place of f16 is 4.9e-4, and a backend may round
twice, for the exponential and for the quotient."""
_LEAST_SHARE_TOLERANCE = 1e-6
"""Absolute tolerance for the smallest attention weights: f16 has steps of 6e-8 there, and sums have
21 terms."""

_GROUP = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """``quants [NUM_ROWS][NUM_COLUMNS]`` times ``2^exponents [NUM_ROWS][NUM_COLUMNS / 32]``."""

    quants: tuple[tuple[int, ...], ...]
    exponents: tuple[tuple[int, ...], ...]


def activations() -> tuple[tuple[int, ...], ...]:
    """Return ``[NUM_TOKENS][NUM_COLUMNS]``."""
    drawn = draws(seed=1)
    rows = []
    for token in range(NUM_TOKENS):
        row = [uniform_int(next(drawn), -31, 31) for _ in range(NUM_COLUMNS)]
        for start in range(0, NUM_COLUMNS, _GROUP):
            row[start + next(drawn) % _GROUP] = 127 if (token + start // _GROUP) % 2 else -127
        rows.append(tuple(row))
    return tuple(rows)


def weights(fmt: TensorFormat) -> Weights:
    """Return weights in which all values of the format occur, including the extremes."""
    low, high = {TensorFormat.Q8_0: (-127, 127), TensorFormat.Q4_0: (-8, 7)}[fmt]
    drawn = draws(seed=2)
    return Weights(
        quants=tuple(
            tuple(uniform_int(next(drawn), low, high) for _ in range(NUM_COLUMNS))
            for _ in range(NUM_ROWS)
        ),
        exponents=tuple(
            tuple(uniform_int(next(drawn), -4, -1) for _ in range(NUM_COLUMNS // _GROUP))
            for _ in range(NUM_ROWS)
        ),
    )


def stored_weights(fmt: TensorFormat) -> bytes:
    """Return the rows of ``weights(fmt)`` as a file stores them.

    In ``ggml-common.h``, ``block_q8_0`` is an f16 scale and 32 int8; ``block_q4_0`` is an f16 scale
    and 16 bytes, where byte i has element i in its low half and element i + 16 in its high half,
    each plus 8.
    """
    stored = bytearray()
    matrix = weights(fmt)
    for quants, exponents in zip(matrix.quants, matrix.exponents, strict=True):
        for group, exponent in enumerate(exponents):
            block = quants[group * _GROUP : (group + 1) * _GROUP]
            stored += struct.pack("<e", 2.0**exponent)
            if fmt is TensorFormat.Q8_0:
                stored += struct.pack("<32b", *block)
            else:
                halves = zip(block[:16], block[16:], strict=True)
                stored += bytes(low + 8 | (high + 8) << 4 for low, high in halves)
    return bytes(stored)


def expected_products(fmt: TensorFormat) -> list[list[float]]:
    """Return ``[NUM_TOKENS][NUM_ROWS]``, exact: sums of integers, in units of 1/16."""
    matrix = weights(fmt)
    scaled = [
        [quant << (4 + row_exponents[i // _GROUP]) for i, quant in enumerate(quants)]
        for quants, row_exponents in zip(matrix.quants, matrix.exponents, strict=True)
    ]
    return [[sum(map(int.__mul__, row, token)) / 16 for row in scaled] for token in activations()]


def queries() -> tuple[tuple[int, ...], ...]:
    """Return ``[NUM_POSITIONS][HEAD_DIM]``."""
    return _vectors(seed=3)


def keys() -> tuple[tuple[int, ...], ...]:
    """Return ``[NUM_POSITIONS][HEAD_DIM]``."""
    return _vectors(seed=4)


def expected_shares() -> list[list[float]]:
    """Return ``[NUM_POSITIONS][HEAD_DIM]``: row t has the attention weights of positions 0 to t,
    and then zeros.
    """
    rows = []
    known_keys = keys()
    for position, query in enumerate(queries()):
        visible = known_keys[: position + 1]
        scores = [SCORE_SCALE * sum(map(int.__mul__, query, key)) for key in visible]
        powers = [math.exp(score - max(scores)) for score in scores]
        shares = [power / math.fsum(powers) for power in powers]
        rows.append(shares + [0.0] * (HEAD_DIM - len(shares)))
    return rows


def deviation(results: object) -> str:
    """Return a one-line description of the first wrong result of a variant; empty if all are right.

    ``results`` is the object that a child printed: ``q8_0`` and ``q4_0`` as in
    ``expected_products``, ``softmax`` as in ``expected_shares``, ``program`` with the logits of
    ``program_case``, and ``draws`` with the tokens of ``draw_case``.
    """
    if not isinstance(results, dict):
        return "its results are not an object"
    for fmt in FORMATS:
        problem = _first_difference(
            f"the {fmt.label} product", results.get(fmt.label), expected_products(fmt), 0.0, 0.0
        )
        if problem:
            return problem
    problem = _first_difference(
        "the softmax",
        results.get("softmax"),
        expected_shares(),
        SHARE_TOLERANCE,
        _LEAST_SHARE_TOLERANCE,
    )
    problem = problem or _program_deviation(results.get("program"))
    return problem or _first_difference(
        "the drawn tokens", results.get("draws"), [[*map(float, draw_case.EXPECTED)]], 0.0, 0.0
    )


def _first_difference(
    what: str, got: object, expected: list[list[float]], relative: float, absolute: float
) -> str:
    rows = _matrix(what, got, len(expected), len(expected[0]))
    if isinstance(rows, str):
        return rows
    for i, (got_row, row) in enumerate(zip(rows, expected, strict=True)):
        for j, (value, right) in enumerate(zip(got_row, row, strict=True)):
            if not abs(value - right) <= absolute + relative * abs(right):
                return f"{what}[{i}][{j}] is {value:.9g}, but should be {right:.9g}"
    return ""


def _program_deviation(got: object) -> str:
    expected = program_case.expected_logits()
    logits = _matrix("the program's output", got, len(expected), len(expected[0]))
    return logits if isinstance(logits, str) else program_case.deviation(logits)


def _matrix(what: str, got: object, num_rows: int, num_columns: int) -> list[list[float]] | str:
    """Return ``got`` if it is a matrix of that size, or else a message."""
    if not isinstance(got, list) or len(got) != num_rows:
        return f"{what} does not have {num_rows} rows"
    for i, row in enumerate(got):
        if not isinstance(row, list) or len(row) != num_columns:
            return f"row {i} of {what} does not have {num_columns} numbers"
        for j, number in enumerate(row):
            # bool is a subclass of int, but not a valid number here.
            if isinstance(number, bool) or not isinstance(number, int | float):
                return f"{what}[{i}][{j}] is not a number"
    return [[as_float(number) for number in row] for row in got]


def as_float(number: int | float) -> float:
    """Convert a number of a JSON document; integers too large for a float become infinite."""
    try:
        return float(number)
    except OverflowError:
        return math.inf


def _vectors(seed: int) -> tuple[tuple[int, ...], ...]:
    drawn = draws(seed)
    return tuple(
        tuple(uniform_int(next(drawn), -3, 3) for _ in range(NUM_SCORE_COLUMNS))
        + (0,) * (HEAD_DIM - NUM_SCORE_COLUMNS)
        for _ in range(NUM_POSITIONS)
    )
