"""A group of native engines computes the same bits as one, in every family."""

from __future__ import annotations

import numpy as np
import pytest
from support.engines.groups import NUM_BLOCKS, group_factory, logits_in_steps
from support.engines.pools import pool_of
from support.models.canonical_weights import load_canonical_weights
from support.models.family_configs import BASE_NAMES, family_config, with_more_heads

from potluck.engines.native.engine import NativeEngine
from potluck.models.program import build_program
from potluck.models.rope import rope_tables
from potluck.types.program import Program, Shard
from potluck.types.step import SequenceId, SequenceSlice, Step, StepId

CONTEXT_TOKENS = 32


def member(program: Program, num_blocks: int) -> NativeEngine:
    """With threads of its own: members wait for one another while they hold them."""
    return NativeEngine(
        program, num_blocks=num_blocks, num_states=4, max_step_tokens=256, pool=pool_of(1)
    )


@pytest.mark.parametrize("name", BASE_NAMES)
def test_any_division_gives_the_same_bits(name: str) -> None:
    for factor, shares in ((1, (3, 1)), (3, (4, 2, 3))):
        config = with_more_heads(family_config(name), factor, key_factor=factor)
        has_state = any(layer.recurrence is not None for layer in config.layers)
        program = build_program(
            config,
            Shard.whole(config.num_layers),
            context_tokens=CONTEXT_TOKENS,
            ropes=rope_tables(config, CONTEXT_TOKENS),
        )
        results = []
        for engine in (
            member(program, NUM_BLOCKS),
            group_factory(shares, member)(program, NUM_BLOCKS),
        ):
            load_canonical_weights(engine, program)
            results.append(logits_in_steps([engine], config.vocab_size, has_state=has_state))
            engine.close()
        assert np.isfinite(results[0]).all()
        np.testing.assert_array_equal(results[1], results[0])


LONG_CONTEXT_TOKENS = 256
WITH_STATES_AND_EXPERTS = (
    "qwen3_next",
    "falcon_h1",
    "lfm2_moe",
    "deepseek_v3",
    "gpt_oss",
    "mamba2",
)


@pytest.mark.parametrize("name", WITH_STATES_AND_EXPERTS)
def test_halves_of_a_long_prompt_take_turns(name: str) -> None:
    """While slices of one half are on their way, the other is computed: with the same bits."""
    config = with_more_heads(family_config(name), 2, key_factor=2)
    has_state = any(layer.recurrence is not None for layer in config.layers)
    ropes = rope_tables(config, LONG_CONTEXT_TOKENS)
    program = build_program(
        config, Shard.whole(config.num_layers), context_tokens=LONG_CONTEXT_TOKENS, ropes=ropes
    )
    parts = tuple(
        SequenceSlice(
            sequence_id=SequenceId(sequence),
            tokens=tuple((29 * i + sequence) % config.vocab_size for i in range(count)),
            start_position=0,
            block_table=tuple(range(10 * sequence, 10 * sequence + 10)),
            sample=False,
            score_from=0,
            next_token=0,
            state=sequence if has_state else None,
        )
        for sequence, count in enumerate((150, 1, 40))
    )
    results = []
    for engine in (member(program, 30), group_factory((2, 3), member)(program, 30)):
        load_canonical_weights(engine, program)
        results.append(engine.logits(Step(step_id=StepId(0), slices=parts), None))
        engine.close()
    assert np.isfinite(results[0]).all()
    np.testing.assert_array_equal(results[1], results[0])
