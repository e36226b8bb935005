"""Sampling in the core: known answers, hand-made cases, the reference, and statistics."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.engines.pools import pool_of
from support.kernels import cpp_checks
from support.reference.sampling import philox_4x32_10, uniform
from support.reference.sampling import sample as reference_sample
from support.text.token_masks import mask_of

from potluck.engines.native.engine import available_isas
from potluck.engines.native.program import core_opening
from potluck.kernels import runner
from potluck.types.step import SamplingParams, SequenceId, SequenceOpening

Logits = NDArray[np.float32]


def make(vocab_size: int, *, num_threads: int = 1, isa: str | None = None) -> runner.Sampler:
    return runner.Sampler(
        vocab_size=vocab_size, isa=isa or available_isas()[-1], pool=pool_of(num_threads)
    )


def open_sequence(
    sampler: runner.Sampler,
    params: SamplingParams,
    *,
    sequence: int = 0,
    prompt: tuple[int, ...] = (),
    output: tuple[int, ...] = (),
) -> None:
    opening = SequenceOpening(
        sequence_id=SequenceId(sequence),
        sampling=params,
        prompt_tokens=prompt,
        output_tokens=output,
    )
    sampler.open([core_opening(opening)])


def as_logits(*values: float) -> Logits:
    return np.array([values], dtype=np.float32)


def choose(logits: Logits, params: SamplingParams, position: int = 0, **history: Any) -> int:
    sampler = make(logits.shape[1])
    open_sequence(sampler, params, **history)
    return sampler.sample([(0, position)], logits)[0].token


def greedy(**others: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, **others)


def reachable(logits: Logits, params: SamplingParams, num_draws: int = 400) -> set[int]:
    """The tokens that come up at so many positions."""
    sampler = make(logits.shape[1])
    open_sequence(sampler, params)
    return {sampler.sample([(0, i)], logits)[0].token for i in range(num_draws)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        # Random123, tests/kat_vectors, philox4x32 with 10 rounds.
        (("0",) * 6, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (("ffffffff",) * 6, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            ("243f6a88", "85a308d3", "13198a2e", "03707344", "a4093822", "299f31d0"),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_known_answers(words: tuple[str, ...], expected: str) -> None:
    assert cpp_checks.run("philox_check", *words).split() == expected.split()


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    assert choose(as_logits(1, 3, 2, 3), greedy()) == 1


def test_negative_and_positive_logits_are_penalized_for_repetition() -> None:
    # 4 / 3 < 2, and -1 * 3 < -2; both seen, once in the prompt and once in the output.
    assert choose(as_logits(4, 2), greedy(repetition_penalty=3.0), prompt=(0,)) == 1
    assert choose(as_logits(-1, -2), greedy(repetition_penalty=3.0), output=(0,)) == 1
    assert choose(as_logits(4, 2), greedy(repetition_penalty=1.5), prompt=(0, 0, 0)) == 0


def test_repetition_comes_before_the_other_penalties() -> None:
    # 4 / 2 - 1 = 1 < 1.4, but (4 - 1) / 2 = 1.5 > 1.4.
    params = greedy(repetition_penalty=2.0, presence_penalty=1.0)
    assert choose(as_logits(4, 1.4), params, output=(0,)) == 1


def test_frequency_counts_the_output_only() -> None:
    params = greedy(frequency_penalty=0.5)
    assert choose(as_logits(2, 1.2), params, prompt=(0, 0, 0)) == 0
    assert choose(as_logits(2, 1.2), params, output=(0,)) == 0
    assert choose(as_logits(2, 1.2), params, output=(0, 0)) == 1


def test_presence_counts_a_token_once() -> None:
    params = greedy(presence_penalty=0.5)
    assert choose(as_logits(2, 1.2), params, output=(0, 0, 0)) == 0
    assert choose(as_logits(2, 1.6), params, output=(0,)) == 1
    assert choose(as_logits(2, 1.6), params, prompt=(0,)) == 0


def test_sampled_tokens_count_as_output() -> None:
    sampler = make(2)
    open_sequence(sampler, greedy(frequency_penalty=1.0))
    logits = as_logits(2, 0.5)
    tokens = [sampler.sample([(0, i)], logits)[0].token for i in range(4)]
    # 2 > .5, 1 > .5, 0 < .5, 0 > -.5
    assert tokens == [0, 0, 1, 0]


def test_bias_is_added() -> None:
    params = greedy(logit_bias=((2, 1.5), (0, -100.0)))
    assert choose(as_logits(3, 1, 0), params) == 2


def test_top_k_and_its_ties() -> None:
    logits = as_logits(1, 2, 1, 1)
    assert reachable(logits, SamplingParams(top_k=1)) == {1}
    assert reachable(logits, SamplingParams(top_k=2)) == {0, 1}
    assert reachable(logits, SamplingParams(top_k=100)) == {0, 1, 2, 3}


def test_top_p_keeps_the_shortest_prefix() -> None:
    # Probabilities 0.6, 0.3, 0.1.
    logits = as_logits(*np.log([0.1, 0.6, 0.3]))
    assert reachable(logits, SamplingParams(top_p=0.01)) == {1}
    assert reachable(logits, SamplingParams(top_p=0.59)) == {1}
    assert reachable(logits, SamplingParams(top_p=0.61)) == {1, 2}
    assert reachable(logits, SamplingParams(top_p=0.89)) == {1, 2}
    assert reachable(logits, SamplingParams(top_p=0.91)) == {0, 1, 2}


def test_top_p_is_of_what_top_k_has_left() -> None:
    # Of 0.6, 0.3 alone: 2/3 and 1/3, so that 0.65 needs the first only.
    logits = as_logits(*np.log([0.1, 0.6, 0.3]))
    assert reachable(logits, SamplingParams(top_k=2, top_p=0.65)) == {1}
    assert reachable(logits, SamplingParams(top_p=0.65)) == {1, 2}


def test_min_p_is_relative_to_the_largest() -> None:
    logits = as_logits(*np.log([0.1, 0.6, 0.3]))
    assert reachable(logits, SamplingParams(min_p=0.51)) == {1}
    assert reachable(logits, SamplingParams(min_p=0.49)) == {1, 2}
    assert reachable(logits, SamplingParams(min_p=0.1)) == {0, 1, 2}


def test_extreme_temperatures_do_not_overflow() -> None:
    logits = as_logits(3, 5, 5, -1e30)
    assert reachable(logits, SamplingParams(temperature=1e-30)) == {1, 2}
    assert reachable(logits, SamplingParams(temperature=1e30)) >= {0, 1, 2}


def test_the_draw_is_the_first_whose_cumulative_weight_exceeds_it() -> None:
    """Equal weights over 4 tokens: the draw's upper two bits are the token.

    The first words of Philox for key 0 and counters 0, 1, 2 come from the known answers and from
    the reference's generator, which is tested by itself.
    """
    for position in range(50):
        word = philox_4x32_10((position, 0, 0, 0), (7, 9))[0]
        seed = 7 + (9 << 32)
        assert choose(as_logits(0, 0, 0, 0), SamplingParams(seed=seed), position) == word >> 30


def test_large_positions_reach_the_second_word() -> None:
    draws = [choose(np.zeros((1, 1024), np.float32), SamplingParams(), i << 32) for i in range(5)]
    assert len(set(draws)) == 5


PARAMS = [
    SamplingParams(),
    SamplingParams(temperature=0.3),
    SamplingParams(temperature=2.5, top_k=1),
    SamplingParams(top_k=50),
    SamplingParams(top_k=300, top_p=0.9),
    SamplingParams(top_p=0.5),
    SamplingParams(top_p=0.999, min_p=0.02),
    SamplingParams(min_p=0.1),
    SamplingParams(temperature=0.0, logprobs=True),
    SamplingParams(temperature=1.5, logprobs=True, top_logprobs=20),
    SamplingParams(
        repetition_penalty=1.3,
        frequency_penalty=0.4,
        presence_penalty=-0.7,
        logit_bias=((3, 4.0), (5, -100.0), (8, 2.5)),
        top_k=40,
        seed=2**63 + 5,
        logprobs=True,
        top_logprobs=3,
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("params", PARAMS, ids=range(len(PARAMS)))
@pytest.mark.parametrize("spread", [0.01, 1.0, 6.0])
@pytest.mark.parametrize(
    ("vocab_size", "num_draws"),
    [
        pytest.param(3000, 40, id="small"),
        pytest.param(30_001, 5, id="large"),  # of which few blocks hold all candidates
    ],
)
def test_as_the_reference(
    params: SamplingParams, spread: float, vocab_size: int, num_draws: int
) -> None:
    """Flat and peaked distributions; the histories grow with what was sampled."""
    rng = np.random.default_rng(int(spread * 100))
    sampler = make(vocab_size)
    prompt = tuple(int(token) for token in rng.integers(0, 60, 20))
    output: tuple[int, ...] = (3, 8, 8)
    open_sequence(sampler, params, prompt=prompt, output=output)
    for position in range(20, 20 + num_draws):
        logits = (rng.standard_normal(vocab_size) * spread).astype(np.float32)
        # Many ties, which the order by token id must settle.
        logits = np.round(logits, 2)
        expected = reference_sample(
            logits, params, prompt_tokens=prompt, output_tokens=output, position=position
        )
        (actual,) = sampler.sample([(0, position)], logits[None])
        assert (actual.sequence_id, actual.position) == (0, position)
        assert actual.token == expected.token
        output = (*output, expected.token)
        assert [one.token for one in actual.top] == [one.token for one in expected.top]
        # Both round a log-softmax to float32; sums of so many terms differ in the last bits.
        np.testing.assert_allclose(
            [one.logprob for one in actual.top],
            [one.logprob for one in expected.top],
            rtol=0,
            atol=1e-5,
        )
        if expected.logprob is None:
            assert actual.logprob is None
        else:
            assert actual.logprob == pytest.approx(expected.logprob, abs=1e-5)


def test_logprobs_are_of_the_raw_distribution() -> None:
    params = greedy(logprobs=True, top_logprobs=2, logit_bias=((2, 50.0),))
    sampler = make(3)
    open_sequence(sampler, params)
    (token,) = sampler.sample([(0, 0)], as_logits(*np.log([0.5, 0.3, 0.2])))
    assert token.token == 2
    assert token.logprob == pytest.approx(np.log(0.2), abs=1e-6)
    assert [one.token for one in token.top] == [0, 1]
    assert [one.logprob for one in token.top] == pytest.approx(np.log([0.5, 0.3]), abs=1e-6)


@pytest.mark.parametrize(
    "params", [SamplingParams(seed=3), SamplingParams(seed=4, temperature=0.7, top_p=0.95)]
)
def test_draws_have_the_right_frequencies(params: SamplingParams) -> None:
    """Chi-square over 20,000 positions, against 99.9 % of its distribution."""
    vocab_size, num_draws = 9, 20_000
    logits = np.random.default_rng(1).standard_normal((1, vocab_size)).astype(np.float32)
    sampler = make(vocab_size)
    open_sequence(sampler, params)
    tokens = [sampler.sample([(0, i)], logits)[0].token for i in range(num_draws)]
    probabilities = np.exp(logits[0].astype(np.float64) / params.temperature)
    probabilities /= probabilities.sum()
    order = np.argsort(-probabilities)
    kept = order[: 1 + int(np.searchsorted(np.cumsum(probabilities[order]), params.top_p))]
    expected = probabilities[kept] / probabilities[kept].sum() * num_draws
    counts = np.bincount(tokens, minlength=vocab_size)
    assert counts.sum() == counts[kept].sum()
    chi_square = float(np.sum((counts[kept] - expected) ** 2 / expected))
    # 99.9 % points of chi-square with 8, 7, 6, 5, 4 degrees (Abramowitz and Stegun, 26.8).
    limits = {8: 26.12, 7: 24.32, 6: 22.46, 5: 20.52, 4: 18.47}
    assert chi_square < limits[len(kept) - 1]


WIDE_PARAMS = [
    SamplingParams(seed=5),
    SamplingParams(seed=5, temperature=0.05),
    SamplingParams(seed=5, temperature=0.8, top_p=0.95),
    SamplingParams(seed=5, temperature=2.0, top_p=0.999),
    SamplingParams(seed=5, top_p=0.3, min_p=0.01),
    SamplingParams(seed=5, top_p=0.0),
    SamplingParams(seed=5, top_k=600),
    SamplingParams(seed=5, top_k=512, top_p=0.9),
    SamplingParams(seed=5, top_k=20_000, top_p=0.9, min_p=0.02),
    SamplingParams(seed=5, top_k=10**6, top_p=0.9),
    SamplingParams(seed=5, min_p=0.3),
    SamplingParams(seed=5, top_k=3000, logit_bias=((7, 3e38), (9, -3e38), (11, 20.0))),
    SamplingParams(seed=5, top_p=0.9, logit_bias=((7, -3e38), (9, 12.0))),
]


WIDE_VOCAB_SIZE = 50_011


@cache
def wide_logits(kind: str) -> list[NDArray[np.float32]]:
    """Logits of six positions."""
    rng = np.random.default_rng(8)
    made = []
    for _ in range(6):
        normal = rng.standard_normal(WIDE_VOCAB_SIZE)
        match kind:
            case "flat":
                normal *= 0.1
            case "peaked":
                normal = normal * 2 + 30 * (rng.random(WIDE_VOCAB_SIZE) < 1e-4)
            case "skewed":
                normal = -np.log(rng.permutation(WIDE_VOCAB_SIZE) + 1.0) * 1.1
            case "tied":
                normal = np.round(normal, 1)
            case "equal":
                normal = np.zeros(WIDE_VOCAB_SIZE)
        made.append(normal.astype(np.float32))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("params", WIDE_PARAMS, ids=range(len(WIDE_PARAMS)))
@pytest.mark.parametrize("kind", ["flat", "normal", "peaked", "skewed", "tied", "equal"])
def test_a_wide_vocabulary_as_the_reference(params: SamplingParams, kind: str) -> None:
    """Of distributions for which the cut is found in different ways."""
    sampler = make(WIDE_VOCAB_SIZE)
    open_sequence(sampler, params)
    for position, logits in enumerate(wide_logits(kind)):
        expected = reference_sample(
            logits, params, prompt_tokens=(), output_tokens=(), position=position
        )
        (actual,) = sampler.sample([(0, position)], logits[None])
        assert actual.token == expected.token


@pytest.mark.slow
def test_what_masks_forbid_is_not_cut_into() -> None:
    """Fewer tokens are allowed than top_k would keep; the others are all equal."""
    vocab_size = 5000
    allowed = range(17, vocab_size, 50)
    mask = mask_of(vocab_size, allowed)
    logits = np.random.default_rng(3).standard_normal((1, vocab_size)).astype(np.float32)
    sampler = make(vocab_size)
    open_sequence(sampler, SamplingParams(top_k=4000, top_p=0.99))
    masks = [(0, mask[None])]
    tokens = {sampler.sample([(0, i)], logits, masks=masks)[0].token for i in range(2000)}
    assert tokens <= set(allowed)
    assert len(tokens) > 80


@pytest.mark.slow
def test_a_number_of_zero_does_not_choose_what_has_no_weight() -> None:
    """Positions with the smallest numbers of many, and a first token of tiny weight."""
    numbers = [float(uniform(0, position)) for position in range(200_000)]
    sampler = make(2)
    open_sequence(sampler, SamplingParams())
    logits = as_logits(0, np.log(2.0**22))  # the first token has a share of 2^-22
    for position in np.argsort(numbers)[:20]:
        expected = 0 if numbers[position] + 2**-25 < 1 / (1 + 2**22) else 1
        assert sampler.sample([(0, int(position))], logits)[0].token == expected
    rare = as_logits(0, 60)
    assert {sampler.sample([(0, int(i))], rare)[0].token for i in np.argsort(numbers)[:20]} == {1}


@pytest.mark.slow
@pytest.mark.parametrize("params", WIDE_PARAMS, ids=range(len(WIDE_PARAMS)))
@pytest.mark.parametrize("isa", available_isas())
def test_the_same_tokens_on_every_instruction_set_and_number_of_threads(
    isa: str, params: SamplingParams
) -> None:
    """A row's blocks divided among threads, or rows; against one thread and the scalar kernels."""
    vocab_size = 20_000
    rng = np.random.default_rng(6)
    logits = rng.standard_normal((4, vocab_size)).astype(np.float32)
    logits[1] *= 0.01
    logits[2] *= 8
    mask = mask_of(vocab_size, map(int, rng.choice(vocab_size, 7000, replace=False)))
    found = []
    for name, num_threads in (("scalar", 1), (isa, 1), (isa, 3), (isa, 8)):
        sampler = make(vocab_size, num_threads=num_threads, isa=name)
        for sequence in range(4):
            open_sequence(sampler, params, sequence=sequence)
        tokens = [
            each.token
            for position in range(5)
            for each in sampler.sample(
                [(i, position) for i in range(4)], logits, masks=[(3, mask[None])]
            )
        ]
        found.append(tokens)
    assert found[1:] == found[:1] * 3


@pytest.mark.parametrize("isa", available_isas())
def test_the_same_on_every_instruction_set_and_in_any_company(isa: str) -> None:
    """A batch on three threads, against one by one on one."""
    vocab_size, num_sequences = 50_000, 9
    rng = np.random.default_rng(5)
    logits = rng.standard_normal((num_sequences, vocab_size)).astype(np.float32) * 3
    alone, together = make(vocab_size), make(vocab_size, num_threads=3, isa=isa)
    for sequence in range(num_sequences):
        params = SamplingParams(seed=sequence, top_p=0.98, logprobs=True, top_logprobs=4)
        for sampler in (alone, together):
            open_sequence(sampler, params, sequence=sequence)
    many = together.sample([(i, 10 + i) for i in range(num_sequences)], logits)
    for i, other in enumerate(many):
        (one,) = alone.sample([(i, 10 + i)], logits[i : i + 1])
        assert (one.token, one.logprob) == (other.token, other.logprob)
        assert [(top.token, top.logprob) for top in one.top] == [
            (top.token, top.logprob) for top in other.top
        ]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_name_the_sequence(bad: float, temperature: float) -> None:
    sampler = make(4)
    params = SamplingParams(temperature=temperature, frequency_penalty=2.0)
    for sequence in (6, 7):
        open_sequence(sampler, params, sequence=sequence)
    good = as_logits(1, 0, 0, 0)
    with pytest.raises(runner.Error, match="sequence 7: its logits are not finite"):
        sampler.sample([(6, 0), (7, 0)], np.concatenate([good, as_logits(0, bad, 0, 0)]))
    # The other sequence's history does not have the token that nobody got to see.
    (token,) = sampler.sample([(6, 0)], as_logits(1.5, 0, 0, 0) if not temperature else good * 50)
    assert token.token == 0


def test_sequences_are_opened_once_and_closed() -> None:
    sampler = make(4)
    open_sequence(sampler, greedy(), sequence=3)
    with pytest.raises(runner.Error, match="sequence 3: it is open"):
        open_sequence(sampler, greedy(), sequence=3)
    with pytest.raises(runner.Error, match="sequence 5: it is not open"):
        sampler.sample([(5, 0)], as_logits(1, 2, 3, 4))
    sampler.close(3)
    sampler.close(3)
    with pytest.raises(runner.Error, match="sequence 3: it is not open"):
        sampler.sample([(3, 0)], as_logits(1, 2, 3, 4))
    open_sequence(sampler, greedy(), sequence=3)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (SamplingParams(temperature=-1.0), "temperature"),
        (SamplingParams(temperature=float("nan")), "temperature"),
        (SamplingParams(top_k=0), "top_k"),
        (SamplingParams(top_p=1.5), "top_p"),
        (SamplingParams(min_p=-0.1), "min_p"),
        (SamplingParams(repetition_penalty=0.0), "repetition_penalty"),
        (SamplingParams(frequency_penalty=float("inf")), "frequency_penalty"),
        (SamplingParams(presence_penalty=float("nan")), "presence_penalty"),
        (SamplingParams(logit_bias=((4, 1.0),)), "token 4 of logit_bias"),
        (SamplingParams(logit_bias=((-1, 1.0),)), "token -1 of logit_bias"),
        (SamplingParams(logit_bias=((1, float("inf")),)), "logit_bias must be finite"),
        (SamplingParams(top_logprobs=5), "top_logprobs"),
    ],
)
def test_the_core_refuses_parameters_that_would_break_it(
    params: SamplingParams, message: str
) -> None:
    with pytest.raises(runner.Error, match=message):
        open_sequence(make(4), params)


def test_histories_lie_within_the_vocabulary() -> None:
    with pytest.raises(runner.Error, match="token 4 of the prompt"):
        open_sequence(make(4), greedy(), prompt=(1, 4))
    with pytest.raises(runner.Error, match="token -1 of the output"):
        open_sequence(make(4), greedy(), output=(-1,))


def test_known_tokens_are_scored_and_not_chosen() -> None:
    """By the raw distribution, whatever the parameters; they count for no penalty."""
    sampler = make(4)
    params = SamplingParams(
        temperature=0.0, frequency_penalty=2.0, logit_bias=((3, 100.0),), top_logprobs=1
    )
    open_sequence(sampler, params)
    logits = np.repeat(as_logits(*np.log([0.5, 0.3, 0.15, 0.05])), 3, axis=0)
    first, chosen, last = sampler.sample([(0, 1), (0, 2), (0, 3)], logits, [2, None, 1])
    assert [each.token for each in (first, chosen, last)] == [2, 3, 1]
    assert [each.position for each in (first, chosen, last)] == [1, 2, 3]
    assert first.logprob == pytest.approx(np.log(0.15), abs=1e-6)
    assert last.logprob == pytest.approx(np.log(0.3), abs=1e-6)
    assert [one.token for one in first.top] == [0]
    assert first.top[0].logprob == pytest.approx(np.log(0.5), abs=1e-6)
    assert chosen.logprob is None, "log-probabilities of chosen tokens were not asked for"
    sampler = make(4)
    open_sequence(sampler, SamplingParams(temperature=0.0, frequency_penalty=2.0))
    sampler.sample([(0, 1)], as_logits(1, 0, 0, 0), [0])
    assert sampler.sample([(0, 2)], as_logits(1, 0, 0, 0))[0].token == 0


def test_known_tokens_fit_the_request() -> None:
    sampler = make(4)
    open_sequence(sampler, greedy())
    for known, message in (([1, 1], "an entry per sequence"), ([4], "vocab"), ([-1], "vocab")):
        with pytest.raises(runner.Error, match=message):
            sampler.sample([(0, 1)], as_logits(1, 0, 0, 0), known)


def test_logits_have_the_shape_of_the_request() -> None:
    sampler = make(4)
    open_sequence(sampler, greedy())
    with pytest.raises(runner.Error, match="a row of the vocabulary's size per sequence"):
        sampler.sample([(0, 0)], as_logits(1, 2, 3))
    with pytest.raises(runner.Error, match="a row of the vocabulary's size per sequence"):
        sampler.sample([(0, 0)], np.zeros((2, 4), np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("params", PARAMS, ids=range(len(PARAMS)))
@pytest.mark.parametrize("spread", [0.01, 1.0, 6.0])
@pytest.mark.parametrize("num_allowed", [1, 3, 90, 2900])
def test_masked_as_the_reference(params: SamplingParams, spread: float, num_allowed: int) -> None:
    vocab_size = 3001
    rng = np.random.default_rng(num_allowed)
    sampler = make(vocab_size)
    prompt = (5, 8, 40)
    output: tuple[int, ...] = (3, 8, 8)
    open_sequence(sampler, params, prompt=prompt, output=output)
    for position in range(20):
        logits = np.round(rng.standard_normal(vocab_size) * spread, 2).astype(np.float32)
        allowed = rng.choice(vocab_size, num_allowed, replace=False)
        mask = mask_of(vocab_size, map(int, allowed))
        expected = reference_sample(
            logits, params, prompt_tokens=prompt, output_tokens=output, position=position, mask=mask
        )
        assert expected.token in allowed
        (actual,) = sampler.sample([(0, position)], logits[None], masks=[(0, mask[None])])
        assert actual.token == expected.token
        assert [one.token for one in actual.top] == [one.token for one in expected.top]
        if expected.logprob is None:
            assert actual.logprob is None
        else:
            assert actual.logprob == pytest.approx(expected.logprob, abs=1e-5)
        output = (*output, actual.token)


def test_a_mask_outweighs_any_bias_and_leaves_log_probabilities() -> None:
    params = SamplingParams(
        temperature=0.0,
        logit_bias=((0, 3e38), (1, -3e38), (2, -3e38)),
        logprobs=True,
        top_logprobs=1,
    )
    sampler = make(4)
    open_sequence(sampler, params)
    logits = as_logits(*np.log([0.5, 0.3, 0.15, 0.05]))
    (token,) = sampler.sample([(0, 0)], logits, masks=[(0, mask_of(4, [1, 2])[None])])
    assert token.token == 1, "the lower id among equals"
    assert token.logprob == pytest.approx(np.log(0.3), abs=1e-6)
    assert [one.token for one in token.top] == [0]


def test_a_mask_is_of_one_sequence_and_not_of_its_known_tokens() -> None:
    sampler = make(3)
    for sequence in (4, 5):
        open_sequence(sampler, greedy(), sequence=sequence)
    logits = np.repeat(as_logits(3, 2, 1), 3, axis=0)
    sampled = sampler.sample(
        [(4, 1), (4, 2), (5, 1)], logits, [0, None, None], [(4, mask_of(3, [2])[None])]
    )
    assert [each.token for each in sampled] == [0, 2, 0]
    assert sampled[0].logprob == pytest.approx(np.log(1 / (1 + np.e**-1 + np.e**-2)), abs=1e-6)


def test_masks_make_sense() -> None:
    sampler = make(40)
    open_sequence(sampler, greedy())
    logits = as_logits(*range(40))
    for masks, message in (
        ([(0, mask_of(40, [])[None])], "sequence 0: its mask allows no token"),
        ([(0, mask_of(64, [1])[None]), (0, mask_of(64, [2])[None])], "two masks"),
        ([(0, mask_of(65, [1])[None])], "3 words, and 2 are needed"),
    ):
        with pytest.raises(runner.Error, match=message):
            sampler.sample([(0, 1)], logits, masks=masks)
