"""A group of any shares computes the same bits as one unit, in every family."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from support.engines.groups import (
    NUM_BLOCKS,
    GroupEngine,
    group_factory,
    logits_in_steps,
    reference_member,
)
from support.engines.stages import cut
from support.models.canonical_weights import load_canonical_weights
from support.models.family_configs import BASE_NAMES, family_config, with_more_heads

from potluck.models.program import build_program
from potluck.models.rope import rope_tables
from potluck.types.engine import Engine
from potluck.types.model import ModelConfig
from potluck.types.program import AllGather, Embed, Head, Linear, Moe

CONTEXT_TOKENS = 32


def logits(
    config: ModelConfig, shares: Sequence[int], boundaries: Sequence[int] = ()
) -> tuple[NDArray[np.float32], list[Engine]]:
    """After every token; no ``shares``: of single units."""
    make = group_factory(shares) if shares else reference_member
    engines: list[Engine] = []
    ropes = rope_tables(config, CONTEXT_TOKENS)
    for shard in cut(config.num_layers, boundaries):
        program = build_program(config, shard, context_tokens=CONTEXT_TOKENS, ropes=ropes)
        engine = make(program, NUM_BLOCKS)
        load_canonical_weights(engine, program)
        engines.append(engine)
    has_state = any(layer.recurrence is not None for layer in config.layers)
    try:
        return logits_in_steps(engines, config.vocab_size, has_state=has_state), engines
    finally:
        for engine in engines:
            engine.close()


@pytest.mark.parametrize("name", BASE_NAMES)
def test_any_division_gives_the_same_bits(name: str) -> None:
    # Three members of which two share a key-value head, and two members with heads of their own.
    for factor, key_factor, shares in ((4, 1, (2, 1, 1)), (2, 2, (3, 5))):
        config = with_more_heads(family_config(name), factor, key_factor=key_factor)
        expected, _ = logits(config, ())
        assert np.isfinite(expected).all()
        found, (group,) = logits(config, shares)
        assert isinstance(group, GroupEngine)
        np.testing.assert_array_equal(found, expected)
        assert_is_divided(group, config)


def assert_is_divided(group: GroupEngine, config: ModelConfig) -> None:
    """Every member has a part of the vocabulary, of every layer's output, and of all experts."""
    for program in group.programs:
        ops = program.ops
        assert all(each.bounds for each in ops if isinstance(each, Embed | Head))
        assert all(each.expert_widths for each in ops if isinstance(each, Moe))
        gathers = [each for each in ops if isinstance(each, AllGather)]
        assert len(gathers) >= 2 * config.num_layers
        outputs = {each.weight for each in ops if isinstance(each, Linear)}
        divided = {each.name for each in program.weights if each.rows is not None}
        wide = {each.name for each in program.weights if each.whole_shape[0] == config.hidden_size}
        assert wide & outputs <= divided
    assert len(set(group.mesh.num_exchanges)) == 1


@pytest.mark.parametrize("name", ["llama", "qwen3_next", "deepseek_v3", "gpt_oss", "falcon_h1"])
def test_groups_follow_one_another(name: str) -> None:
    config = with_more_heads(family_config(name), 2, key_factor=2)
    expected, _ = logits(config, (), [1])
    found, _ = logits(config, (1, 2), [1])
    np.testing.assert_array_equal(found, expected)
