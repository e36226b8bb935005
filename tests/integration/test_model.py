"""``potluck.Model``: the same tokens and log-probabilities however a text was made."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import potluck
from potluck.catalog.locate import DEMO_DIRECTORY
from potluck.errors import ParameterError, PotluckError, PromptTooLongError
from potluck.host.cores import own_usable_cores
from potluck.local import SamplingOptions
from potluck.scheduling.draft_lengths import DraftLengths

PROMPTS = (
    "Once upon a time, there was a little fox who",
    "In the village",
    "One snowy afternoon, a mouse found a key. " * 6,
    "The",
    "A shy puppy wanted to win the race too. " * 20,
    '"I will win," said',
    "They looked for a long time.",
)
NUM_NEW = 40
GREEDY: SamplingOptions = {"temperature": 0.0, "logprobs": True, "top_logprobs": 2}
SAMPLED: SamplingOptions = {
    "temperature": 0.9,
    "top_k": 40,
    "repetition_penalty": 1.1,
    "seed": 11,
    "logprobs": True,
}

Text = tuple[tuple[int, float, Any], ...]


def generate(
    model: potluck.Model, prompt: str, options: SamplingOptions, num_new: int = NUM_NEW
) -> potluck.Generation:
    return model.generate(prompt, max_tokens=num_new, ignore_eos=True, **options)


def text_of(generation: potluck.Generation) -> Text:
    """Tokens with log-probabilities, whose equality is that of bits."""
    pieces = generation.result().pieces
    assert all(piece.logprob is not None for piece in pieces)
    return tuple((piece.token, piece.logprob or 0.0, piece.top) for piece in pieces)


def texts_alone(model: potluck.Model) -> list[Text]:
    return [
        text_of(generate(model, prompt, options))
        for prompt in PROMPTS
        for options in (GREEDY, SAMPLED)
    ]


def free_blocks(model: potluck.Model) -> int:
    return model._dispatcher.load.num_free_blocks


@pytest.fixture(scope="module")
def expected() -> list[Text]:
    """Each alone, on one thread, in one stage."""
    with potluck.Model.open("demo", num_threads=1) as model:
        texts = texts_alone(model)
    assert all(len(text) == NUM_NEW for text in texts)
    assert len(set(texts)) == len(texts)
    return texts


@pytest.fixture(scope="module")
def model() -> Iterator[potluck.Model]:
    with potluck.Model.open("demo", stages=2, num_threads=2, cache_tokens=8192) as opened:
        yield opened


@pytest.mark.parametrize(
    ("stages", "num_threads"), [(1, 2), (2, 1), (3, 2), (5, 1), (12, 2)], ids=str
)
def test_cuts_and_threads(expected: list[Text], stages: int, num_threads: int) -> None:
    with potluck.Model.open("demo", stages=stages, num_threads=num_threads) as model:
        assert len(model.plan.stages) == stages
        assert texts_alone(model) == expected


@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize("cache_tokens", [8192, None], ids=["room for all", "preempted"])
def test_all_at_the_same_time(expected: list[Text], stages: int, cache_tokens: int | None) -> None:
    """Without room for all, the youngest lose their blocks and are computed again."""
    with potluck.Model.open(
        "demo", stages=stages, context_tokens=320, cache_tokens=cache_tokens
    ) as model:
        total = sum(
            len(model.tokenizer.encode(prompt)) + NUM_NEW for prompt in PROMPTS for _ in range(2)
        )
        assert (total > model.plan.size.num_blocks * 16) == (cache_tokens is None)
        generations = [
            generate(model, prompt, options) for prompt in PROMPTS for options in (GREEDY, SAMPLED)
        ]
        assert [text_of(generation) for generation in generations] == expected
        assert free_blocks(model) == model.plan.size.num_blocks


def test_from_several_threads(expected: list[Text], model: potluck.Model) -> None:
    texts: dict[int, Text] = {}

    def work(worker: int) -> None:
        for index in range(worker, len(expected), 4):
            options = (GREEDY, SAMPLED)[index % 2]
            texts[index] = text_of(generate(model, PROMPTS[index // 2], options))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [texts[index] for index in range(len(expected))] == expected


def test_others_join_and_leave(expected: list[Text], model: potluck.Model) -> None:
    generation = generate(model, PROMPTS[0], SAMPLED)
    guests: list[potluck.Generation] = []
    tokens = []
    for number, piece in enumerate(generation):
        tokens.append(piece.token)
        if number % 5 == 0:
            guests.append(generate(model, PROMPTS[4], GREEDY, 500))
        if number % 7 == 6:
            guests.pop(0).close()
    for guest in guests:
        guest.close()
    assert tokens == [token for token, _, _ in expected[1]]
    assert free_blocks(model) == model.plan.size.num_blocks


def test_a_text_that_is_left_gives_its_blocks_back(model: potluck.Model) -> None:
    for piece in generate(model, PROMPTS[0], GREEDY, 400):
        if piece.seconds > 0:
            break
    assert free_blocks(model) == model.plan.size.num_blocks
    with generate(model, PROMPTS[0], GREEDY, 400) as generation:
        pieces = iter(generation)
        next(pieces)
        assert free_blocks(model) < model.plan.size.num_blocks
    assert free_blocks(model) == model.plan.size.num_blocks
    with pytest.raises(PotluckError, match="closed before its end"):
        generation.result()


def test_seeds(model: potluck.Model) -> None:
    def text(seed: int | None) -> str:
        return model.generate("The fox", max_tokens=30, temperature=1.2, seed=seed).result().text

    assert text(3) == text(3)
    assert len({text(3), text(4), text(None), text(None)}) == 4


def test_the_context_is_used_to_its_end(model: potluck.Model) -> None:
    with potluck.Model.open("demo", context_tokens=50) as small:
        result = generate(small, "The fox", GREEDY, 1000).result()
        assert len(result.prompt_tokens) + len(result.pieces) == 50
        assert result.finish_reason.value == "length"
        longest = [result.prompt_tokens[0]] * 49
        assert len(small.generate(longest, max_tokens=9).result().pieces) == 1
        with pytest.raises(PromptTooLongError):
            small.generate([*longest, longest[0]])


def test_closing_ends_what_is_live_with_an_error() -> None:
    model = potluck.Model.open("demo", stages=2)
    generation = generate(model, PROMPTS[0], GREEDY, 400)
    model.close()
    model.close()
    with pytest.raises(PotluckError, match="closed"):
        generation.result()
    with pytest.raises(PotluckError, match="closed"):
        model.generate("The fox")


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"seed": 1.5}, "seed"),
        ({"warmth": 1}, "warmth"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": "end"}, "stop"),
        ({"logit_bias": {5000: 1.0}}, "logit_bias"),
        ({"logit_bias": {"5": 1.0}}, "logit_bias"),
        ({"logit_bias": {5: 10**400}}, "logit_bias"),
        ({"top_k": 2**63}, "top_k"),
        ({"top_k": 2**64}, "top_k"),
        ({"top_k": True}, "top_k"),
        ({"temperature": 10**400}, "temperature"),
        ({"temperature": None}, "temperature"),
        ({"seed": 2**64}, "seed"),
        ({"logprobs": "yes"}, "logprobs"),
        ({"max_tokens": 2**63}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"prediction": [1.0]}, "prediction"),
    ],
    ids=str,
)
def test_parameters_that_are_not_allowed(
    model: potluck.Model, options: dict[str, Any], name: str
) -> None:
    with pytest.raises(ParameterError) as caught:
        model.generate("The fox", **options)
    assert caught.value.name == name
    assert caught.value.hint
    assert free_blocks(model) == model.plan.size.num_blocks


@pytest.mark.parametrize("tokens", [[], [-1], [2048], [2**64], [1.0], ["a"], [None]])
def test_prompts_that_are_not_allowed(model: potluck.Model, tokens: list[Any]) -> None:
    with pytest.raises(ParameterError):
        model.generate(tokens)


@pytest.mark.parametrize("name", ["stages", "context_tokens", "cache_tokens", "num_threads"])
@pytest.mark.parametrize("number", [0, -1, 2**63, 2**64, 1.5, "2"])
def test_sizes_that_are_not_allowed(name: str, number: Any) -> None:
    with pytest.raises(ParameterError):
        potluck.Model.open("demo", **{name: number})


def test_numbers_of_numpy_are_numbers(model: potluck.Model) -> None:
    tokens: Any = np.array([1, 2, 3])
    options: dict[str, Any] = {"temperature": np.float64(0.0), "max_tokens": 3}
    given = model.generate(tokens, **options).result()
    assert given.text == model.generate([1, 2, 3], temperature=0.0, max_tokens=3).result().text


def test_a_text_ends_before_a_stop_string(model: potluck.Model) -> None:
    whole = generate(model, PROMPTS[0], GREEDY).result()
    word = whole.text.split()[5]
    options: dict[str, Any] = {"max_tokens": NUM_NEW, "temperature": 0.0, "stop": [word]}
    generation = model.generate(PROMPTS[0], **options)
    streamed = "".join(piece.text for piece in generation)
    result = generation.result()
    assert streamed == result.text == whole.text[: whole.text.index(word)]
    assert result.finish_reason.value == "stop"
    assert free_blocks(model) == model.plan.size.num_blocks


def test_an_empty_stop_string_starts_nothing(model: potluck.Model) -> None:
    with pytest.raises(ParameterError, match="a stop string is empty"):
        model.generate(PROMPTS[0], max_tokens=NUM_NEW, stop=[""])
    assert model._dispatcher.live == ()


def test_what_was_held_back_comes_with_the_last_token(model: potluck.Model) -> None:
    """A stop string that only begins: its beginning is text after all."""
    whole = generate(model, PROMPTS[0], GREEDY).result()
    begun = whole.text[-1] + "\0"
    result = model.generate(
        PROMPTS[0], max_tokens=NUM_NEW, ignore_eos=True, temperature=0.0, stop=[begun]
    ).result()
    assert result.text == whole.text


def test_timings_add_up(model: potluck.Model) -> None:
    result = generate(model, PROMPTS[0], GREEDY).result()
    timings = result.timings
    seconds = [piece.seconds for piece in result.pieces]
    assert seconds == sorted(seconds)
    assert timings.prefill_seconds == seconds[0] > 0
    assert timings.prefill_seconds + timings.decode_seconds == pytest.approx(seconds[-1])
    rate = timings.decode_tokens_per_second
    assert rate is not None
    assert rate * timings.decode_seconds == pytest.approx(NUM_NEW - 1)
    assert timings.prefill_tokens_per_second * seconds[0] == pytest.approx(
        len(result.prompt_tokens) - timings.num_cached_tokens
    )


def test_drafts_and_predictions_change_nothing_but_the_number_of_steps() -> None:
    prompt = "Once upon a time"

    def generate_result(
        model: potluck.Model, prediction: str | list[int] = "", **options: Any
    ) -> Any:
        generation = model.generate(
            prompt, max_tokens=NUM_NEW, prediction=prediction, logprobs=True, **options
        )
        return generation.result()

    def output_of(result: Any) -> Any:
        return [(each.token, each.logprob) for each in result.pieces], result.finish_reason

    with (
        potluck.Model.open("demo", draft="off") as plain,
        potluck.Model.open("demo", stages=2) as drafting,
    ):
        both: tuple[dict[str, Any], ...] = ({"temperature": 0.0}, {"temperature": 0.9, "seed": 3})
        for options in both:
            expected = generate_result(plain, **options)
            assert (expected.timings.num_drafted_tokens, expected.timings.tokens_per_step) == (0, 1)
            whole = generate_result(drafting, expected.text, **options)
            by_tokens = generate_result(
                drafting, [each.token for each in expected.pieces], **options
            )
            wrong = generate_result(drafting, "of something else altogether", **options)
            for result in (whole, by_tokens, wrong):
                assert output_of(result) == output_of(expected)
            timings = by_tokens.timings
            # How many follows from what steps take just now.
            assert timings.num_drafted_tokens >= timings.num_accepted_tokens > 0
            assert timings.tokens_per_step > 1
        with pytest.raises(ParameterError, match="outside the model's vocabulary") as caught:
            generate_result(drafting, [10**6])
        assert caught.value.name == "prediction"


def test_a_model_that_drafts_changes_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    # However busy the machine is, it is asked and waited for.
    monkeypatch.setattr(DraftLengths, "length", lambda *_, **__: 3)
    monkeypatch.setattr("potluck.drafting.model._NEXT_SECONDS", 60.0)
    monkeypatch.setattr("potluck.drafting.model._FIRST_SECONDS", 60.0)
    with (
        potluck.Model.open("demo", draft="off") as plain,
        potluck.Model.open("demo", draft="demo") as drafting,
    ):
        assert drafting.draft_model is not None
        for options in (GREEDY, SamplingOptions(temperature=0.9, seed=3)):
            expected = generate(plain, PROMPTS[0], options).result()
            found = generate(drafting, PROMPTS[0], options).result()
            assert found.text == expected.text
            # It is the same model, which draws what it verifies.
            assert found.timings.num_accepted_tokens == found.timings.num_drafted_tokens > 0


def test_too_many_threads_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    num_threads = own_usable_cores().num_cores + 1
    with potluck.Model.open("demo", draft="demo", num_threads=num_threads):
        pass
    assert sum(f"of {num_threads} threads" in message for message in caplog.messages) == 1


def test_a_model_with_another_vocabulary_does_not_draft(tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(DEMO_DIRECTORY, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text("utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    words = sorted(vocabulary, key=vocabulary.__getitem__)[300:302]
    vocabulary[words[0]], vocabulary[words[1]] = vocabulary[words[1]], vocabulary[words[0]]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    differs = r"the vocabularies differ \(token 300 differs\)"
    with pytest.raises(ParameterError, match=differs) as caught:
        potluck.Model.open("demo", draft=str(other))
    assert caught.value.name == "draft"
    with pytest.raises(PotluckError, match="nowhere"):
        potluck.Model.open("demo", draft="/nowhere/small.gguf")


def test_a_prompt_that_is_known_is_not_computed_again() -> None:
    with potluck.Model.open("demo") as model:
        first = generate(model, PROMPTS[0], GREEDY).result()
        again = generate(model, PROMPTS[0], GREEDY).result()
    with potluck.Model.open("demo", prefix_cache=False) as model:
        generate(model, PROMPTS[0], GREEDY).result()
        without = generate(model, PROMPTS[0], GREEDY).result()
    num_cached = [each.timings.num_cached_tokens for each in (first, again, without)]
    assert num_cached == [0, len(first.prompt_tokens) - 1, 0]
    assert first.text == again.text == without.text


def test_loading_reports_every_byte_once_over_all_stages() -> None:
    reports: list[tuple[int, int]] = []
    with potluck.Model.open(
        "demo",
        stages=3,
        cache_tokens=16,  # less than one sequence may need: it gets that
        on_progress=lambda progress: reports.append((progress.done_bytes, progress.total_bytes)),
    ) as model:
        total = sum(stage.read_bytes for stage in model.plan.stages)
        assert model.plan.size.num_blocks * 16 >= model.context_tokens
    done = [done for done, _ in reports]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, total)
    assert {each for _, each in reports} == {total}
