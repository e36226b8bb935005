"""The part of the self-test that runs a whole program: a tiny decoder with known logits.

The decoder has two Llama layers, with grouped-query attention, rope, gated activation, norms, an
embedding and a head, and weights in Q8_0, Q4_0, F16 and F32. There are two sequences, whose cache
blocks are not in order: both are prefilled in the first step and decoded in the second, and one of
them is decoded alone in the last.

The inputs are generated from integers in plain Python, so they are the same in the child that
computes and in the probe that compares. The expected logits are those of the reference engine
(``program_case_logits.json``, written by ``tools/self_test_logits.py``; a test recomputes them).
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from potluck.probe.cases.draw_case import draws, uniform_int
from potluck.types.step import SequenceId, SequenceSlice, Step, StepId
from potluck.types.tensor import TensorFormat

NUM_LAYERS = 2
HIDDEN_SIZE = 64
INTERMEDIATE_SIZE = 96
NUM_HEADS = 4
NUM_KV_HEADS = 2
HEAD_DIM = 16
VOCAB_SIZE = 32
CONTEXT_TOKENS = 32
ROPE_THETA = 10000.0
EPSILON = 1e-5

NUM_BLOCKS = 4
MAX_STEP_TOKENS = 26

TOLERANCE = 0.05
"""The tolerance for a row of logits, relative to its Euclidean norm. If activations are quantized
to 8 bits in groups of 32 normally distributed values, the largest of which is about 2.1 standard
deviations, the error of a product is 2.1 / 127 / sqrt(12) = 0.5 %. The 15 products that contribute
to a logit have an error of up to sqrt(15) times as much, 1.9 %; half precision adds less. Wrong
arithmetic has a larger error: the tests verify this by removing each op in turn."""

_LOGITS = Path(__file__).with_name("program_case_logits.json")


def steps() -> tuple[Step, ...]:
    """Return the three steps, in which all sequences are sampled."""
    drawn = draws(seed=5)

    def part(sequence: int, num_tokens: int, start_position: int) -> SequenceSlice:
        return SequenceSlice(
            sequence_id=SequenceId(sequence),
            tokens=tuple(next(drawn) % VOCAB_SIZE for _ in range(num_tokens)),
            start_position=start_position,
            block_table=((3, 0), (2, 1))[sequence],
            sample=True,
        )

    return (
        Step(step_id=StepId(0), slices=(part(0, 19, 0), part(1, 7, 0))),
        Step(step_id=StepId(1), slices=(part(0, 1, 19), part(1, 1, 7))),
        Step(step_id=StepId(2), slices=(part(0, 1, 20),)),
    )


def weight_format(name: str, shape: tuple[int, ...]) -> TensorFormat:
    """Return the format in which the weight with this canonical name is stored."""
    if len(shape) == 1:
        return TensorFormat.F32
    if name.startswith("embed."):
        return TensorFormat.F16
    return TensorFormat.Q4_0 if ".mlp." in name else TensorFormat.Q8_0


def stored_weight(name: str, shape: tuple[int, ...]) -> bytes:
    """Return the rows of a weight.

    The values of vectors are around 1; matrices have a standard deviation near
    ``columns ** -0.5``, 1/8.
    """
    drawn = draws(seed=zlib.crc32(name.encode()))
    fmt = weight_format(name, shape)
    if fmt is TensorFormat.F32:
        return struct.pack(
            f"<{shape[0]}f", *(uniform_int(next(drawn), 8, 24) / 16 for _ in range(shape[0]))
        )
    count = math.prod(shape)
    if fmt is TensorFormat.F16:
        return struct.pack(
            f"<{count}e", *(uniform_int(next(drawn), -31, 31) / 16 for _ in range(count))
        )
    return b"".join(_block(fmt, drawn) for _ in range(count // fmt.block_elements))


def _block(fmt: TensorFormat, drawn: Iterator[int]) -> bytes:
    """Return a scale and 32 quants with a standard deviation of 73 or 4.6 (``ggml-common.h``)."""
    scale = uniform_int(next(drawn), 8, 20)
    if fmt is TensorFormat.Q8_0:
        quants = (uniform_int(next(drawn), -127, 127) for _ in range(32))
        return struct.pack("<e32b", scale / 2**13, *quants)
    return struct.pack("<e16B", scale / 2**9, *(next(drawn) % 256 for _ in range(16)))


def expected_logits() -> list[list[float]]:
    """Return the logits ``[5][VOCAB_SIZE]`` of each step's sequences, in order."""
    logits: list[list[float]] = json.loads(_LOGITS.read_text(encoding="ascii"))
    return logits


def deviation(logits: list[list[float]]) -> str:
    """Return a one-line description of the error in logits of the right shape; empty if none."""
    for number, (row, right) in enumerate(zip(logits, expected_logits(), strict=True)):
        norm = math.hypot(*right)
        error = math.dist(row, right)
        if not error <= TOLERANCE * norm:
            return (
                f"row {number} of the program's output is off by {error / norm:.2g} of its norm; "
                f"the tolerance is {TOLERANCE}"
            )
    return ""
