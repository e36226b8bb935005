"""Slices with drafts on the native engine: what follows, as without drafts, to the bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.engines.native_pipeline import VOCAB_SIZE, Part, Pipeline, small_config
from support.engines.pools import pool_of
from support.reference import engine as reference
from support.text.token_masks import mask_of

from potluck.engines.native.engine import available_isas
from potluck.engines.native.program import core_opening
from potluck.errors import EngineError
from potluck.kernels import runner
from potluck.types.arithmetic import Arithmetic, arithmetics_with
from potluck.types.step import SampledToken, SamplingParams, SequenceId, SequenceOpening, Step
from potluck.types.tensor import TensorFormat

CONFIG = small_config(2)
GREEDY = SamplingParams(temperature=0.0)
PENALIZED = SamplingParams(
    temperature=0.7, repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.2, seed=5
)
ALL_PARAMS = {
    "greedy": GREEDY,
    "sampled": SamplingParams(temperature=1.3, top_k=50, top_p=0.95, seed=9),
    "penalties": PENALIZED,
    "greedy-penalties": SamplingParams(temperature=0.0, presence_penalty=2.0),
    "logprobs": SamplingParams(temperature=0.9, seed=2, logprobs=True, top_logprobs=3),
    "bias": SamplingParams(temperature=0.0, logit_bias=((7, 3.0), (11, -2.0)), logprobs=True),
}
NUM_TOKENS = 24

Masks = Callable[[int, int], NDArray[np.uint32] | None]
"""Of a sequence and the position of the token that is sampled."""


def no_masks(sequence: int, position: int) -> None:
    del sequence, position


def masks_by_position(sequence: int, position: int) -> NDArray[np.uint32] | None:
    """Every position of the sequences 1, 3, ... has tokens of its own that may stand there."""
    if sequence % 2 == 0:
        return None
    return mask_of(VOCAB_SIZE, range((3 * position + sequence) % 7, VOCAB_SIZE, 7))


def prompt_of(sequence: int) -> list[int]:
    return [(31 * sequence + 7 * i) % VOCAB_SIZE for i in range(5 + 9 * sequence)]


@dataclass
class Texts:
    """Sequences that grow on a pipeline: each prompt first, then what was sampled."""

    stages: Pipeline
    params: Sequence[SamplingParams]
    masks: Masks = no_masks
    results: list[list[SampledToken]] = field(default_factory=list)

    def begin(self) -> Texts:
        openings = [
            SequenceOpening(
                sequence_id=SequenceId(i), sampling=each, prompt_tokens=tuple(prompt_of(i))
            )
            for i, each in enumerate(self.params)
        ]
        parts = [Part(sequence=i, tokens=prompt_of(i), start=0) for i, _ in enumerate(self.params)]
        self.results = [[] for _ in self.params]
        self.take(self.step(parts, opened=tuple(openings)))
        return self

    def step(self, parts: Sequence[Part], **changes: Any) -> tuple[SampledToken, ...]:
        step = replace(self.stages.step_of(parts), **changes)
        hidden = None
        for engine in self.stages.engines[:-1]:
            hidden = engine.step(step, hidden).hidden
        return self.stages.engines[-1].step(step, hidden, self.masks_of(step)).sampled

    def masks_of(self, step: Step) -> Mapping[SequenceId, NDArray[np.uint32]]:
        """A row for each token after which one is sampled."""
        masks = {}
        for part in step.slices:
            rows = [
                self.masks(part.sequence_id, part.start_position + index + 1)
                for index in part.wanted
            ]
            if given := [row for row in rows if row is not None]:
                masks[part.sequence_id] = np.stack(given)
        return masks

    def take(self, sampled: Sequence[SampledToken]) -> None:
        for each in sampled:
            self.results[each.sequence_id].append(each)

    def tokens(self, sequence: int) -> list[int]:
        return [each.token for each in self.results[sequence]]

    def part(self, sequence: int, drafts: Sequence[int] = ()) -> Part:
        """The last token of a sequence, and drafts."""
        tokens = self.tokens(sequence)
        return Part(
            sequence=sequence,
            tokens=[tokens[-1], *drafts],
            start=len(prompt_of(sequence)) + len(tokens) - 1,
            num_drafts=len(drafts),
        )


def wrong(token: int) -> int:
    return (token + 1) % VOCAB_SIZE


def plain_results(texts: Texts, num_tokens: int = NUM_TOKENS) -> list[list[SampledToken]]:
    """What is sampled without drafts, one token a step."""
    texts.begin()
    for _ in range(num_tokens - 1):
        texts.take(texts.step([texts.part(i) for i, _ in enumerate(texts.params)]))
    return texts.results


def make(fmt: TensorFormat = TensorFormat.Q8_0, **options: Any) -> Pipeline:
    return Pipeline.make(CONFIG, fmt, max_step_tokens=256, **options)


def make_in(arithmetic: Arithmetic, fmt: TensorFormat, **options: Any) -> Pipeline:
    return make(fmt, arithmetic=arithmetic, isa=arithmetic.isa, **options)


def drafted_results(
    texts: Texts, known: Sequence[Sequence[SampledToken]], seed: int
) -> list[list[SampledToken]]:
    """The same by drafts of which as many are right as a generator says, for some sequences."""
    random = np.random.default_rng(seed)
    texts.begin()
    while waiting := [i for i, results in enumerate(texts.results) if len(results) < len(known[i])]:
        parts, expected = [], []
        for i in waiting:
            rest = [each.token for each in known[i][len(texts.results[i]) :]]
            num_drafts = min(int(random.integers(0, 9)), len(rest) - 1)
            num_right = min(int(random.integers(0, num_drafts + 1)), num_drafts)
            guesses = [wrong(token) for token in rest[num_right:num_drafts]]
            parts.append(texts.part(i, rest[:num_right] + guesses))
            expected += [i] * (num_right + 1)
        sampled = texts.step(parts)
        assert [each.sequence_id for each in sampled] == expected
        texts.take(sampled)
    return texts.results


@pytest.mark.slow
@pytest.mark.parametrize("masks", [no_masks, masks_by_position])
@pytest.mark.parametrize("params", ALL_PARAMS)
def test_drafts_change_nothing(params: str, masks: Masks) -> None:
    every = [ALL_PARAMS[params]] * 3
    known = plain_results(Texts(make(), every, masks))
    for seed in range(3):
        stages = make(num_threads=2, block_seed=seed)
        assert drafted_results(Texts(stages, every, masks), known, seed) == known


@pytest.mark.slow
@pytest.mark.parametrize("arithmetic", arithmetics_with(available_isas()))
@pytest.mark.parametrize(
    "fmt", [TensorFormat.Q4_0, TensorFormat.Q4_K, TensorFormat.BF16, TensorFormat.F32]
)
def test_rows_of_drafts_are_computed_as_decodes(fmt: TensorFormat, arithmetic: Arithmetic) -> None:
    """Log-probabilities show every bit of the logits, of fast arithmetics too."""
    params = [replace(each, logprobs=True, top_logprobs=5) for each in ALL_PARAMS.values()]
    known = plain_results(Texts(make_in(arithmetic, fmt), params))
    for num_stages in (1, 2):
        stages = make_in(arithmetic, fmt, num_threads=2, num_stages=num_stages)
        assert drafted_results(Texts(stages, params), known, num_stages) == known


@pytest.mark.parametrize("arithmetic", arithmetics_with(available_isas()))
def test_a_slice_of_drafts_begins_with_accepted_tokens(arithmetic: Arithmetic) -> None:
    """As it does where a recurrent state was put back."""
    known = plain_results(Texts(make_in(arithmetic, TensorFormat.Q4_0), [PENALIZED]))
    texts = Texts(make_in(arithmetic, TensorFormat.Q4_0), [PENALIZED]).begin()
    rest = [each.token for each in known[0]]
    texts.take(texts.step([texts.part(0, [*rest[1:3], wrong(rest[3])])]))
    start = len(prompt_of(0))
    again = Part(sequence=0, tokens=[*rest[:4], *rest[4:6]], start=start, num_drafts=2)
    sampled = texts.step([again])
    assert [each.position for each in sampled] == [start + 4, start + 5, start + 6]
    texts.take(sampled)
    assert texts.results[0] == known[0][:7]


def test_more_drafts_than_the_head_takes_rows_at_a_time() -> None:
    params = [GREEDY, PENALIZED]
    known = plain_results(Texts(make(), params), 60)
    for num_right in (0, 20, 30, 31, 32, 50):
        texts = Texts(make(num_threads=2), params).begin()
        rest = [[each.token for each in results] for results in known]
        guesses = [wrong(token) for token in rest[0][1 + num_right : 51]]
        parts = [texts.part(0, rest[0][1 : 1 + num_right] + guesses), texts.part(1, rest[1][1:40])]
        texts.take(texts.step(parts))
        assert [len(results) for results in texts.results] == [num_right + 2, 41]
        assert texts.results == [known[0][: num_right + 2], known[1][:41]]


# Slices of which all tokens are drafts


def chained(texts: Texts, first: Sequence[int], second: Sequence[int]) -> list[list[int]]:
    """The new tokens of a slice with drafts, and of one after it that guesses what it samples."""
    start = len(prompt_of(0)) + len(texts.results[0])
    chain = Part(sequence=0, tokens=second, start=start + len(first), num_drafts=len(second))
    other = len(texts.params) > 1
    new = []
    for part in (texts.part(0, first), chain):
        sampled = texts.step([part, texts.part(1)] if other else [part])
        texts.take(sampled)
        new.append([each.token for each in sampled if each.sequence_id == 0])
    return new


@pytest.mark.slow
@pytest.mark.parametrize("params", [GREEDY, PENALIZED])
@pytest.mark.parametrize("num_stages", [1, 2])
def test_a_chain_of_drafts_goes_on_where_all_are_right(
    params: SamplingParams, num_stages: int
) -> None:
    known = plain_results(Texts(make(), [params, params]))
    rest = [each.token for each in known[0]]
    for first, second, expected in (
        (rest[1:4], rest[4:7], [rest[1:5], rest[5:8]]),
        (rest[1:4], [rest[4]], [rest[1:5], rest[5:6]]),
        (rest[1:4], [rest[4], wrong(rest[5]), 3], [rest[1:5], rest[5:6]]),
        (rest[1:4], [wrong(rest[4]), *rest[5:7]], [rest[1:5], []]),
        ([*rest[1:3], wrong(rest[3])], rest[4:7], [rest[1:4], []]),
        ([wrong(rest[1]), *rest[2:4]], rest[4:7], [rest[1:2], []]),
        ([], rest[1:3], [rest[1:2], rest[2:4]]),
    ):
        stages = make(num_threads=2, num_stages=num_stages)
        texts = Texts(stages, [params, params]).begin()
        assert chained(texts, first, second) == expected
        # And the sequences go on as if nothing had been guessed.
        for _ in range(3):
            texts.take(texts.step([texts.part(0), texts.part(1)]))
        for i in range(2):
            assert texts.results[i] == known[i][: len(texts.results[i])]


def test_a_restarted_sequence_begins_with_what_was_sampled_before() -> None:
    known = plain_results(Texts(make(), [PENALIZED]))
    rest = [each.token for each in known[0]]
    prompt = prompt_of(0)
    for output, guess, expected in (
        (rest[:3], rest[2], rest[3:6]),
        (rest[:3], wrong(rest[2]), []),
        ([], rest[0], []),
    ):
        texts = Texts(make(), [PENALIZED])
        texts.results = [[]]
        opening = SequenceOpening(
            sequence_id=SequenceId(0),
            sampling=PENALIZED,
            prompt_tokens=tuple(prompt),
            output_tokens=tuple(output),
        )
        before = [*prompt, *rest[:2]]
        texts.step([Part(sequence=0, tokens=before, start=0, sample=False)], opened=(opening,))
        chain = Part(sequence=0, tokens=[guess, *rest[3:5]], start=len(before), num_drafts=3)
        assert [each.token for each in texts.step([chain])] == expected


@pytest.mark.parametrize("num_stages", [1, 2])
@pytest.mark.parametrize("is_right", [True, False])
def test_the_last_stage_does_not_compute_what_is_wrong_already(
    num_stages: int, *, is_right: bool
) -> None:
    """Its cache stays as it is, and so do the rows of other sequences."""
    stages = make(num_stages=num_stages)
    texts = Texts(stages, [GREEDY] * 3).begin()
    known = plain_results(Texts(make(), [GREEDY] * 3), 2)
    parts = [texts.part(i) for i in range(3)]
    token = texts.tokens(1)[-1]
    tokens = [token if is_right else wrong(token), 5]
    parts[1] = Part(sequence=1, tokens=tokens, start=parts[1].start, num_drafts=2)
    stages.step_of(parts)  # so that there are blocks
    before = [engine.read_blocks(stages.tables[1]) for engine in stages.engines]
    sampled = texts.step(parts)
    after = [engine.read_blocks(stages.tables[1]) for engine in stages.engines]
    is_same = [np.array_equal(*pair) for pair in zip(before, after, strict=True)]
    assert is_same == [False] * (num_stages - 1) + [not is_right]
    assert sampled[0] == known[0][1]
    assert sampled[-1] == known[2][1]
    assert len(sampled) == (3 if is_right else 2)


# The reference engine


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_the_reference_accepts_the_same_drafts_of_the_same_logits(seed: int) -> None:
    random = np.random.default_rng(seed)
    names = [str(each) for each in random.choice(list(ALL_PARAMS), 3)]
    params = [ALL_PARAMS[name] for name in names]
    masks = masks_by_position if seed % 2 else no_masks
    texts = Texts(make(num_threads=1 + seed % 2), params, masks).begin()
    sequences = {
        SequenceId(i): reference._Sequence(
            sampling=each, prompt_tokens=tuple(prompt_of(i)), output_tokens=texts.tokens(i)
        )
        for i, each in enumerate(params)
    }
    known = plain_results(Texts(make(), params, masks))
    for _ in range(6):
        parts = []
        for i in range(3):
            after = [each.token for each in known[i][len(texts.results[i]) :]]
            drafts = [
                token if random.random() < 0.8 else wrong(token) for token in after[: seed % 5]
            ]
            part = texts.part(i, drafts)
            if drafts and random.random() < 0.2:  # all are drafts
                part = replace(part, num_drafts=len(part.tokens))
                if random.random() < 0.5:
                    part = replace(part, tokens=[wrong(part.tokens[0]), *drafts])
            parts.append(part)
        step = texts.stages.step_of(parts)
        logits = texts.stages.engines[0].logits(step, None)
        expected = reference._choose_all(step, sequences, logits, texts.masks_of(step))
        sampled = texts.step(parts)
        assert [
            (each.sequence_id, each.position, each.token, [one.token for one in each.top])
            for each in sampled
        ] == [
            (each.sequence_id, each.position, each.token, [one.token for one in each.top])
            for each in expected
        ]
        for each, other in zip(sampled, expected, strict=True):
            assert (each.logprob is None) == (other.logprob is None)
            assert each.logprob == (other.logprob and pytest.approx(other.logprob, abs=1e-4))
        texts.take(sampled)


# What is refused, and what fails


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"num_drafts": 4}, "4 of its 3 tokens are drafts"),
        ({"num_drafts": -1}, "-1 of its 3 tokens are drafts"),
        ({"sample": False}, "it has drafts and is not only sampled"),
        ({"score_from": 0}, "it has drafts and is not only sampled"),
    ],
)
def test_drafts_that_make_no_sense_are_refused(changes: dict[str, Any], problem: str) -> None:
    texts = Texts(make(), [GREEDY]).begin()
    step = texts.stages.step_of([texts.part(0, [3, 4])])
    step = replace(step, slices=(replace(step.slices[0], **changes),))
    with pytest.raises(EngineError, match=problem):
        texts.stages.engines[0].step(step, None)


def test_there_is_a_mask_for_every_row() -> None:
    texts = Texts(make(), [GREEDY]).begin()
    step = texts.stages.step_of([texts.part(0, [3, 4])])
    mask = mask_of(VOCAB_SIZE, range(9))
    for num_rows in (1, 2, 4):
        masks = {SequenceId(0): np.repeat(mask[None], num_rows, axis=0)}
        with pytest.raises(EngineError, match="masks of sequence 0"):
            texts.stages.engines[0].step(step, None, masks)
    nothing = np.stack([mask, mask_of(VOCAB_SIZE, []), mask])
    with pytest.raises(EngineError, match="a mask of sequence 0 allows no token"):
        texts.stages.engines[0].step(step, None, {SequenceId(0): nothing})


def sampler_with(params: SamplingParams, *, output: tuple[int, ...] = ()) -> runner.Sampler:
    sampler = runner.Sampler(vocab_size=4, isa=available_isas()[-1], pool=pool_of(2))
    opening = SequenceOpening(
        sequence_id=SequenceId(0), sampling=params, prompt_tokens=(0,), output_tokens=output
    )
    sampler.open([core_opening(opening)])
    return sampler


def test_logits_after_a_wrong_draft_need_not_be_finite() -> None:
    logits = np.array([[0, 1, 2, 3], [0, 3, 2, 1], [np.nan] * 4], np.float32)
    wanted = [(0, 1), (0, 2), (0, 3)]
    sampler = sampler_with(GREEDY)
    sampled = sampler.sample(wanted, logits, drafts=[None, 3, 2])
    assert [each.token for each in sampled] == [3, 1]
    with pytest.raises(runner.Error, match="its logits are not finite"):
        sampler_with(GREEDY).sample(wanted, logits, drafts=[None, 3, 1])


def test_a_step_that_fails_is_not_recorded() -> None:
    """Neither in what penalties count, nor in what the next drafts are compared with."""
    params = SamplingParams(temperature=0.0, repetition_penalty=2.0, presence_penalty=0.5)
    logits = np.array([[1, 1, 2, 3], [np.nan] * 4], np.float32)
    sampler = sampler_with(params, output=(1,))
    with pytest.raises(runner.Error, match="its logits are not finite"):
        sampler.sample([(0, 2), (0, 3)], logits, drafts=[None, 3])
    assert not sampler.sample([(0, 3)], logits[:1], drafts=[3])
    assert sampler.sample([(0, 2)], logits[:1], drafts=[1])[0].token == 3
    assert sampler.sample([(0, 3)], logits[:1], drafts=[3])[0].token == 2


def test_every_draft_has_a_mask_of_its_own() -> None:
    logits = np.array([[3, 2, 1, 0]] * 3, np.float32)
    masks = np.stack([mask_of(4, [1, 2]), mask_of(4, [2, 3]), mask_of(4, [3])])
    sampler = sampler_with(GREEDY)
    sampled = sampler.sample(
        [(0, 1), (0, 2), (0, 3)],
        logits,
        masks=[(0, masks)],
        drafts=[None, 1, 2],
        mask_rows=[0, 1, 2],
    )
    assert [each.token for each in sampled] == [1, 2, 3]
    with pytest.raises(runner.Error, match="sequence 0: it has no mask 3"):
        sampler.sample([(0, 4)], logits[:1], masks=[(0, masks)], mask_rows=[3])
