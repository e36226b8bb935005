"""A model with state in this process: state slots, stages and texts at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.models.small_lfm2 import SLOT_BYTES, VOCABULARY, write_small_lfm2

import potluck
from potluck.errors import ParameterError

NUM_NEW = 24


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_small_lfm2(tmp_path_factory.mktemp("lfm2"))


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Eight that begin alike, longer than a block."""
    drawn = np.random.default_rng(6)
    shared = drawn.integers(3, VOCABULARY, 40).tolist()
    return [[*shared, *drawn.integers(3, VOCABULARY, 3 + 5 * each).tolist()] for each in range(8)]


def text_of(opened: potluck.Model, prompt: list[int]) -> tuple[int, ...]:
    generation = opened.generate(prompt, max_tokens=NUM_NEW, temperature=0, ignore_eos=True)
    return tuple(piece.token for piece in generation)


@pytest.fixture(scope="module")
def alone(model: str, prompts: list[list[int]]) -> list[tuple[int, ...]]:
    """One after the other, with nothing of them kept."""
    with potluck.Model.open(model, num_threads=1, num_states=1, prefix_cache=False) as opened:
        return [text_of(opened, prompt) for prompt in prompts]


@pytest.mark.parametrize(("stages", "num_states"), [(1, 1), (1, 4), (2, 4), (3, None)])
def test_texts_at_the_same_time_are_those_of_each_alone(
    model: str,
    prompts: list[list[int]],
    alone: list[tuple[int, ...]],
    stages: int,
    num_states: int | None,
) -> None:
    with potluck.Model.open(
        model, stages=stages, num_threads=2, num_states=num_states, cache_tokens=4096
    ) as opened:
        assert opened.plan.size.num_states == (num_states or 64)
        assert opened.plan.memory.state_bytes == (num_states or 64) * SLOT_BYTES
        with ThreadPoolExecutor(len(prompts)) as threads:
            texts = list(threads.map(lambda prompt: text_of(opened, prompt), prompts))
        assert texts == alone
        # And again, from what is kept of them.
        assert [text_of(opened, prompt) for prompt in prompts] == alone
    assert len({token for text in alone for token in text}) > 10


def test_states_are_for_models_that_have_some(model: str) -> None:
    with pytest.raises(ParameterError, match="llama models have no state slots"):
        potluck.Model.open("demo", num_states=4)
    with potluck.Model.open("demo", default_states=4) as opened:
        assert opened.plan.size.num_states == 0
    with potluck.Model.open(model, default_states=4) as opened:
        assert opened.plan.size.num_states == 4
    with pytest.raises(ParameterError, match="states is 0"):
        potluck.Model.open(model, num_states=0)
