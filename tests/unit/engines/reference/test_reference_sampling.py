"""Sampling against results written by hand."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.reference.sampling import (
    Choice,
    adjust_logits,
    draw,
    keep_candidates,
    log_softmax,
    philox_4x32_10,
    sample,
    uniform,
)
from support.text.token_masks import mask_of

from potluck.errors import EngineError
from potluck.types.step import SamplingParams

NEUTRAL = SamplingParams()
GREEDY = SamplingParams(temperature=0.0)


def logits_of(*values: float) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


def probabilities(*values: float) -> NDArray[np.float32]:
    return np.array([math.log(value) for value in values], dtype=np.float32)


def choose(
    logits: NDArray[np.float32],
    params: SamplingParams,
    *,
    prompt: tuple[int, ...] = (),
    output: tuple[int, ...] = (),
    position: int = 5,
) -> Choice:
    return sample(logits, params, prompt_tokens=prompt, output_tokens=output, position=position)


def kept(logits: NDArray[np.float32], **fields: Any) -> list[int]:
    params = replace(NEUTRAL, **fields)
    candidates, _ = keep_candidates(logits, params, np.float32(params.temperature))
    tokens: list[int] = candidates.tolist()
    return tokens


# Known answers of the authors' own test (Random123, tests/kat_vectors).
@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        (
            (0, 0, 0, 0),
            (0, 0),
            (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
        ),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    assert philox_4x32_10(counter, key) == expected


def test_uniform_takes_the_upper_24_bits() -> None:
    assert uniform(0, 0) == 0x6627E8 / 2**24


def test_uniform_depends_on_all_64_bits_of_the_seed() -> None:
    numbers = {float(uniform(seed, 3)) for seed in (0, 1, 1 << 32, 1 << 63, 2**64 - 1)}
    assert len(numbers) == 5


@pytest.mark.slow
def test_draws_follow_the_distribution() -> None:
    logits = probabilities(0.5, 0.2, 0.3)
    counts = Counter(
        choose(logits, SamplingParams(seed=9), position=position).token for position in range(4000)
    )
    # Four standard deviations of a binomial share: 4 * sqrt(0.25 / 4000) = 0.032.
    for token, share in enumerate((0.5, 0.2, 0.3)):
        assert counts[token] / 4000 == pytest.approx(share, abs=0.032)


def test_a_draw_is_repeatable() -> None:
    logits = np.zeros(1000, dtype=np.float32)
    first = choose(logits, SamplingParams(seed=4), position=7)
    assert choose(logits, SamplingParams(seed=4), position=7) == first
    assert choose(logits, SamplingParams(seed=4), position=8) != first
    assert choose(logits, SamplingParams(seed=5), position=7) != first


def test_draw_takes_the_first_whose_sum_exceeds_the_number() -> None:
    candidates, weights = np.array([7, 3, 5]), logits_of(1.0, 0.5, 0.5)
    assert draw(candidates, weights, np.float32(0.0)) == 3
    assert draw(candidates, weights, np.float32(0.25 - 2**-24)) == 3
    assert draw(candidates, weights, np.float32(0.25)) == 5
    assert draw(candidates, weights, np.float32(0.5)) == 7
    assert draw(candidates, weights, np.float32(1 - 2**-24)) == 7


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    assert choose(logits_of(1, 3, 2, 3), GREEDY).token == 1


def test_a_temperature_too_small_for_float32_is_greedy() -> None:
    assert choose(logits_of(1, 3, 2), SamplingParams(temperature=1e-60)).token == 1


def test_a_tiny_temperature_leaves_the_largest() -> None:
    assert choose(logits_of(-50, 3, 2), SamplingParams(temperature=1e-37)).token == 1


def test_repetition_penalty_counts_prompt_and_output_once() -> None:
    params = SamplingParams(repetition_penalty=2.0)
    adjusted = adjust_logits(logits_of(4, -4, 4, 4), params, (0, 1, 1), (2, 2))
    assert adjusted.tolist() == [2, -8, 2, 4]


def test_frequency_and_presence_count_the_output_alone() -> None:
    params = SamplingParams(frequency_penalty=0.5, presence_penalty=2.0)
    adjusted = adjust_logits(logits_of(4, 4, 4), params, (0,), (1, 2, 2))
    assert adjusted.tolist() == [4, 1.5, 1]


def test_penalties_come_in_order_and_bias_last() -> None:
    params = SamplingParams(
        repetition_penalty=2.0,
        frequency_penalty=1.0,
        presence_penalty=0.5,
        logit_bias=((0, 10.0), (0, 0.25)),
    )
    adjusted = adjust_logits(logits_of(8, 1), params, (), (0, 0))
    assert adjusted.tolist() == [8 / 2 - 2 - 0.5 + 10 + 0.25, 1]


def test_bias_decides_greedy_choice_but_not_logprobs() -> None:
    params = replace(GREEDY, logit_bias=((2, 100.0),), logprobs=True, top_logprobs=2)
    choice = choose(probabilities(0.5, 0.3, 0.2), params)
    assert choice.token == 2
    assert choice.logprob == pytest.approx(math.log(0.2), rel=1e-5)
    assert [entry.token for entry in choice.top] == [0, 1]
    assert choice.top[0].logprob == pytest.approx(math.log(0.5), rel=1e-5)


def test_logprobs_only_when_asked_for() -> None:
    choice = choose(probabilities(0.5, 0.5), GREEDY)
    assert choice.logprob is None
    assert choice.top == ()


def test_logits_are_not_changed() -> None:
    logits = logits_of(4, -4)
    choose(logits, SamplingParams(repetition_penalty=2.0, logit_bias=((0, 1.0),)), prompt=(0, 1))
    assert logits.tolist() == [4, -4]


def test_equal_candidates_stand_in_order_of_their_ids() -> None:
    logits = np.tile(logits_of(1, 3, 2), 100)
    assert kept(logits) == [*range(1, 300, 3), *range(2, 300, 3), *range(0, 300, 3)]


def test_top_k_keeps_exactly_k() -> None:
    assert kept(logits_of(1, 3, 3, 3, 2), top_k=2) == [1, 2]
    assert kept(logits_of(1, 3, 2), top_k=10) == [1, 2, 0]


def test_top_p_keeps_the_shortest_sufficient_prefix() -> None:
    logits = probabilities(0.125, 0.5, 0.25, 0.125)
    assert kept(logits, top_p=0.4) == [1]
    assert kept(logits, top_p=0.6) == [1, 2]
    assert kept(logits, top_p=0.8) == [1, 2, 0]
    assert kept(logits, top_p=1.0) == [1, 2, 0, 3]


def test_top_p_counts_what_top_k_left() -> None:
    # Of 0.5 and 0.25 the first has two thirds, so that 0.6 needs it alone; of all, it has half.
    logits = probabilities(0.5, 0.25, 0.25)
    assert kept(logits, top_k=2, top_p=0.6) == [0]
    assert kept(logits, top_p=0.6) == [0, 1]


def test_top_p_comes_after_temperature() -> None:
    # With temperature 0.5 probabilities square: 0.5² : 0.25² : 0.25² is two thirds for the first.
    logits = probabilities(0.5, 0.25, 0.25)
    assert kept(logits, temperature=0.5, top_p=0.6) == [0]


def test_min_p_is_relative_to_the_largest() -> None:
    logits = probabilities(0.1, 0.6, 0.3)
    assert kept(logits, min_p=0.4) == [1, 2]
    assert kept(logits, min_p=0.6) == [1]
    assert kept(logits, min_p=1.0) == [1]


def test_a_token_of_no_probability_is_never_drawn() -> None:
    logits = logits_of(-1e30, 0.0)
    tokens = {choose(logits, NEUTRAL, position=position).token for position in range(50)}
    assert tokens == {1}


@pytest.mark.parametrize("values", [(1.0, math.nan), (math.inf, 1.0), (1.0, -math.inf)], ids=str)
@pytest.mark.parametrize("params", [GREEDY, NEUTRAL], ids=["greedy", "sampled"])
def test_logits_that_are_not_finite_are_refused(
    values: tuple[float, ...], params: SamplingParams
) -> None:
    with pytest.raises(EngineError, match="position 5 are not all finite"):
        choose(logits_of(*values), params)


def test_log_softmax() -> None:
    logprobs = log_softmax(logits_of(1000, 1000 + math.log(3)))
    np.testing.assert_allclose(logprobs, [math.log(0.25), math.log(0.75)], rtol=1e-3)


@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1.0])
def test_a_mask_leaves_the_allowed_tokens(temperature: float) -> None:
    """After penalties and bias, before the draw; log-probabilities stay the model's own."""
    params = replace(
        NEUTRAL,
        temperature=temperature,
        logit_bias=((0, 100.0), (2, -100.0), (33, -100.0)),
        logprobs=True,
        top_logprobs=1,
    )
    logits = logits_of(*([2.0] + [1.0] * 39))
    for allowed in ({33}, {2, 33}, set(range(40))):
        mask = mask_of(40, allowed)
        for position in range(20):
            choice = sample(
                logits, params, prompt_tokens=(), output_tokens=(), position=position, mask=mask
            )
            assert choice.token in allowed
            assert choice.top[0].token == 0
            wanted = (2.0 if choice.token == 0 else 1.0) - math.log(39 * math.e + math.e**2)
            assert choice.logprob == pytest.approx(wanted, abs=1e-5)
        if temperature == 0 and 0 not in allowed:
            assert choice.token == min(allowed), "the lowest id among equals"
