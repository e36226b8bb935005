"""Whole models with state and with latent attention: the native engine beside the reference."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from support.engines.stages import cut, native_engine, reference_engine
from support.models.canonical_weights import load_canonical_weights
from support.models.recurrent_configs import (
    RECURRENCES,
    halves_config,
    hybrid_config,
    latent_config,
    parallel_config,
)

from potluck.models.program import build_program
from potluck.models.rope import rope_tables
from potluck.types.engine import Engine
from potluck.types.model import ModelConfig
from potluck.types.step import SequenceId, SequenceSlice, Step, StepId

CONTEXT = 64
NUM_TOKENS = 40
CONFIGS = {
    **{name: hybrid_config(recurrence) for name, recurrence in RECURRENCES.items()},
    "parallel": parallel_config(),
    "halves": halves_config(),
    "latent": latent_config(),
}
TOKENS = tuple(np.random.default_rng(6).integers(0, 50, NUM_TOKENS).tolist())

F32 = NDArray[np.float32]


def engines_of(
    config: ModelConfig, boundaries: tuple[int, ...], *, is_native: bool
) -> list[Engine]:
    engines = []
    for shard in cut(config.num_layers, boundaries):
        ropes = rope_tables(config, CONTEXT)
        program = build_program(config, shard, context_tokens=CONTEXT, ropes=ropes)
        engine = (native_engine if is_native else reference_engine)(program, 16)
        load_canonical_weights(engine, program)
        engines.append(engine)
    return engines


def part(sequence: int, start: int, end: int) -> SequenceSlice:
    return SequenceSlice(
        sequence_id=SequenceId(sequence),
        tokens=TOKENS[start:end],
        start_position=start,
        block_table=tuple(range(4 * sequence, 4 * sequence + 4)),
        sample=True,
        score_from=0,
        state=sequence,
    )


def logits_of(engines: list[Engine], *slices: SequenceSlice) -> F32:
    step = Step(step_id=StepId(0), slices=slices)
    hidden = None
    for engine in engines[:-1]:
        hidden = engine.step(step, hidden).hidden
    return engines[-1].logits(step, hidden)


@pytest.mark.parametrize("name", CONFIGS)
def test_it_gives_what_the_reference_does(name: str) -> None:
    expected = logits_of(engines_of(CONFIGS[name], (), is_native=False), part(0, 0, NUM_TOKENS))
    made = logits_of(engines_of(CONFIGS[name], (), is_native=True), part(0, 0, NUM_TOKENS))
    # Keys and values are float16 here.
    np.testing.assert_allclose(made, expected, atol=4e-3 * float(np.abs(expected).max()))


@pytest.mark.parametrize("name", CONFIGS)
def test_chunks_neighbours_and_cuts_do_not_matter(name: str) -> None:
    config = CONFIGS[name]
    whole = logits_of(engines_of(config, (), is_native=True), part(0, 0, NUM_TOKENS))
    for boundary in range(1, config.num_layers):
        engines = engines_of(config, (boundary,), is_native=True)
        parts = [
            logits_of(engines, part(1, 0, 9), part(0, start, end))[9:]
            for start, end in pairwise((0, 1, 3, 20, NUM_TOKENS))
        ]
        assert np.concatenate(parts).tobytes() == whole.tobytes()
