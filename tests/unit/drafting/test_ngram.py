"""Guesses from the text itself and from a prediction."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from potluck.drafting.ngram import NgramDrafter, NgramDrafts
from potluck.types.sequence import SequenceRequest
from potluck.types.step import Pooling, SamplingParams, SequenceId

texts = st.lists(st.integers(0, 3), max_size=30)


def drafter(num_prompt_tokens: int, prediction: Sequence[int] = ()) -> NgramDrafter:
    return NgramDrafter(num_prompt_tokens, prediction)


def write(text: list[int], answer: Sequence[int], prediction: Sequence[int], k: int) -> list[int]:
    """How many tokens each guess had right, where ``answer`` comes after ``text``."""
    guesses = drafter(len(text), prediction)
    known = [*text, answer[0]]
    counts = []
    while (done := len(known) - len(text)) < len(answer):
        rest = answer[done:]
        guess = guesses.propose(known, k)
        right = next(
            (n for n, (one, other) in enumerate(zip(guess, rest, strict=False)) if one != other),
            min(len(guess), len(rest)),
        )
        counts.append(right)
        known += rest[: right + 1]
    return counts


def test_what_was_there_before_is_guessed_to_follow() -> None:
    assert drafter(7).propose([1, 2, 3, 4, 5, 6, 7, 1, 2, 3], 2) == (4, 5)


def test_without_a_match_there_is_no_guess() -> None:
    assert drafter(4).propose([1, 2, 3, 4, 5], 8) == ()
    assert drafter(4).chances([1, 2, 3, 4, 5], 8) == ()


def test_the_longer_a_match_the_likelier_is_the_next_token() -> None:
    chances = [
        drafter(50).chances([*range(50), 99, *range(10, 10 + length)], 1)[0]
        for length in (1, 2, 3, 4, 6, 8)
    ]
    assert chances == sorted(set(chances))
    assert chances[0] < 0.3 < 0.8 < chances[-1]


def test_a_guess_has_as_many_chances_as_tokens() -> None:
    for tokens in ([1, 2, 3, 4, 1, 2], [1, 2, 3, 4, 5]):
        for k in (1, 5):
            guesses = drafter(4, (7, 8, 9))
            assert len(guesses.chances(tokens, k)) == len(guesses.propose(tokens, k))
    assert len(drafter(2, (7, 8, 9)).chances([1, 2], 8)) == 3  # the prediction ends


def test_a_long_match_far_back_comes_before_recent_short_ones() -> None:
    text = [1, 2, 3, 4, *[5, 3] * 40, 6, 1, 2, 3]
    assert drafter(len(text)).propose(text, 1) == (4,)


def test_a_match_of_one_token_continues_with_its_latest_place() -> None:
    assert drafter(5).propose([1, 7, 1, 8, 1], 1) == (8,)


def test_no_more_tokens_are_guessed_than_asked_for() -> None:
    text = [*range(50), *range(20)]
    for k in range(10):
        assert drafter(50).propose(text, k) == tuple(range(20, 20 + k))


def test_a_circle_is_guessed_to_go_on() -> None:
    assert drafter(2).propose([0, 0, *[7, 8, 9] * 4], 7) == (7, 8, 9, 7, 8, 9, 7)


def test_an_answer_begins_as_predicted() -> None:
    assert drafter(2, (5, 6, 7, 8)).propose([1, 2], 3) == (5, 6, 7)
    assert drafter(2, (5, 6, 7, 8)).propose([1, 2, 5], 8) == (6, 7, 8)
    assert drafter(2, (5, 6, 7, 8)).propose([1, 2, 5, 6, 7, 8], 8) == ()


def test_the_prediction_comes_before_an_equal_match_in_the_text() -> None:
    text = [1, 2, 3, 40, 9, 9, 9, 0, 1, 2, 3]
    assert drafter(7).propose(text, 1) == (40,)
    assert drafter(7, (8, 8, 1, 2, 3, 50, 60)).propose(text, 1) == (50,)


def test_a_changed_token_does_not_lose_the_place() -> None:
    prediction = tuple(range(100, 160))
    answer = [*range(100, 120), 7, *range(121, 140), 8, 8, *range(141, 160)]
    counts = write([1, 2, 3], answer, prediction, k=8)
    assert len(counts) < 20  # 20 changed or first tokens and 57 guessed ones, 8 at a time
    assert sum(counts) > 45


def test_a_copied_text_is_guessed_nearly_whole() -> None:
    text = [(number * number) % 61 + 100 * (number % 7) for number in range(200)]
    counts = write([*text, 1, 2, 3], text, (), k=8)
    assert sum(counts) > 0.8 * len(text)


def test_a_source_that_is_wrong_most_of_the_time_is_trusted_less() -> None:
    guesses = drafter(8)
    text = [1, 2, 3, 4, 5, 6, 7, 8]
    (long_before,) = guesses.chances([*text, 1, 2, 3], 1)
    known = [*text, 1, 2, 3]
    for other in range(1000, 1050):
        known += [other, 1, 2, 3]  # what follows is another token every time
        (last,) = guesses.chances(known, 1)
    assert long_before == 0.5
    assert last < 0.15


@given(prompt=texts, output=texts, assumed=texts, prediction=texts, k=st.integers(0, 8))
def test_tokens_that_were_wrong_are_forgotten(
    prompt: list[int], output: list[int], assumed: list[int], prediction: list[int], k: int
) -> None:
    """A guess is the same as if they had never come, where the place is found by a search."""
    known = prompt + output
    guesses, others = drafter(len(prompt), prediction), drafter(len(prompt), prediction)
    guesses.propose(known, k)
    guesses.propose(known + assumed, k)
    guesses.truncate(len(known))
    others.propose(known, k)
    assert guesses._num_seen == others._num_seen
    assert guesses._num_right == others._num_right
    assert list(guesses._text.tokens) == known


def test_a_wrong_assumption_leaves_the_place_in_the_source() -> None:
    prediction = tuple(range(100, 130))
    guesses = drafter(2, prediction)
    guess = guesses.propose([1, 2], 4)
    assumed = [1, 2, *guess]
    assert guesses.propose(assumed, 4) == tuple(range(104, 108))
    guesses.truncate(4)  # 102 was wrong
    assert guesses.propose([1, 2, 100, 101, 7, 103, 104], 3)[:1] == (105,)


@given(prompt=texts, output=texts, prediction=texts, k=st.integers(0, 8))
def test_guesses_are_tokens_that_were_there(
    prompt: list[int], output: list[int], prediction: list[int], k: int
) -> None:
    guesses = drafter(len(prompt), prediction)
    for count in range(len(output) + 1):
        guess = guesses.propose(prompt + output[:count], k)
        assert len(guess) <= k
        assert set(guess) <= {*prompt, *output[:count], *prediction}
    guesses.close()


def test_nothing_is_drafted_for_vectors_and_single_tokens() -> None:
    def request(max_new_tokens: int | None, pooling: Pooling | None = None) -> SequenceRequest:
        return SequenceRequest(
            prompt_tokens=(1,),
            sampling=SamplingParams(),
            max_new_tokens=max_new_tokens,
            pooling=pooling,
        )

    source = NgramDrafts()
    assert source.open(SequenceId(0), request(None)) is not None
    assert source.open(SequenceId(0), request(2)) is not None
    assert source.open(SequenceId(0), request(1)) is None
    assert source.open(SequenceId(0), request(0)) is None
    assert source.open(SequenceId(0), request(0, Pooling.MEAN)) is None
