"""Drafts pay, or are not made: texts over stages that take simulated time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.scheduling.timed_pipeline import PlannedDrafts, TimedRun, linear_cost

from potluck.scheduling.draft_lengths import (
    AHEAD,
    ALONE,
    MAX_DRAFTS,
    DraftHistory,
    DraftLengths,
    StepKind,
)
from potluck.types.drafting import DraftTotals

MOST_LOSS = 0.03

THREE = StepKind(num_sequences=3, num_decoding=3)


def gain(
    chance: Callable[[int], float],
    *,
    per_token: float,
    num_stages: int = 1,
    num_prompts: int = 1,
    num_tokens: int = 200,
    propensity: Callable[[int], float] = lambda position: 1.0,
    noise: float = 0.05,
    hop_seconds: float = 0.0,
) -> tuple[float, DraftTotals]:
    """How many times as fast texts are with drafts, and how these fared."""
    costs = [linear_cost(1 / num_stages, per_token)] * num_stages

    def run(drafts: PlannedDrafts | None) -> TimedRun:
        return TimedRun(
            costs=costs,
            hop_seconds=hop_seconds,
            num_prompts=num_prompts,
            num_tokens=num_tokens,
            drafts=drafts,
            noise=noise,
        )

    drafted = run(PlannedDrafts(chance, propensity))
    return run(None).run() / drafted.run(), drafted.totals


@pytest.mark.slow
@pytest.mark.parametrize("num_stages", [1, 2, 4])
@pytest.mark.parametrize("per_token", [0.02, 0.17, 1.0])
@pytest.mark.parametrize("chance", [0.0, 0.1, 0.4])
def test_drafts_that_are_rarely_right_cost_little(
    chance: float, per_token: float, num_stages: int
) -> None:
    times, _ = gain(lambda _: chance, per_token=per_token, num_stages=num_stages)
    assert times > 1 - MOST_LOSS


@pytest.mark.slow
@pytest.mark.parametrize("num_prompts", [2, 5])
@pytest.mark.parametrize("num_stages", [1, 3])
@pytest.mark.parametrize("chance", [0.0, 0.3, 0.9])
def test_many_texts_lose_nothing(chance: float, num_stages: int, num_prompts: int) -> None:
    times, _ = gain(
        lambda _: chance,
        per_token=0.17,
        num_stages=num_stages,
        num_prompts=num_prompts,
        num_tokens=150,
    )
    assert times > 1 - MOST_LOSS


@pytest.mark.parametrize(("per_token", "least"), [(0.02, 8.0), (0.1, 4.0), (0.17, 3.0)])
def test_a_text_that_is_copied_is_much_faster(per_token: float, least: float) -> None:
    times, totals = gain(lambda _: 0.97, per_token=per_token)
    assert times > least
    assert totals.num_accepted > 0.6 * totals.num_drafted


def test_a_pipeline_works_on_one_text_with_all_stages() -> None:
    """Two stages, each half of the model: more than one machine with all of it."""
    (one, _), (two, totals), (four, _) = (
        gain(lambda _: 0.97, per_token=0.17, num_stages=number) for number in (1, 2, 4)
    )
    assert two > 1.3 * one
    assert four > 1.5 * one
    assert totals.num_cancelled > 0


def test_steps_ahead_wait_for_nobody_where_links_are_slow() -> None:
    times, _ = gain(lambda _: 0.97, per_token=0.1, num_stages=2, hop_seconds=0.5)
    assert times > 6


@pytest.mark.slow
def test_a_text_is_drafted_again_when_it_begins_to_be_copied() -> None:
    def is_copied(position: int) -> float:
        return 0.97 if position > 200 else 0.0

    free, _ = gain(lambda _: 0.0, per_token=0.1, num_tokens=400)
    times, totals = gain(is_copied, per_token=0.1, num_tokens=400)
    assert times > 1.4 > free
    assert totals.num_accepted > 150


def test_drafters_without_guesses_cost_nothing() -> None:
    times, totals = gain(lambda _: 1.0, per_token=0.1, propensity=lambda _: 0.0)
    assert totals.num_drafted == 0
    assert times > 0.999


def test_nothing_is_drafted_where_a_token_costs_a_step() -> None:
    _, totals = gain(lambda _: 0.9, per_token=1.0)
    assert totals.num_drafted < 60


def history_of(num_right: int, num_wrong: int) -> DraftHistory:
    history = DraftHistory()
    for _ in range(num_right):
        history.verified(4, is_wrong=False, is_first=True, num_tokens=5, cost=0.4)
    for _ in range(num_wrong):
        history.verified(0, is_wrong=True, is_first=True, num_tokens=1, cost=0.4)
    return history


def measured(lengths: DraftLengths, ratios: dict[int, float]) -> None:
    for num_drafts, seconds in ratios.items():
        for _ in range(3):
            lengths.record(seconds, ALONE, num_drafts)


def test_the_length_follows_what_is_accepted_and_what_steps_take() -> None:
    lengths = DraftLengths()
    measured(lengths, {0: 1.0, 4: 1.2, 16: 1.8})
    assert lengths.length(history_of(9, 0), ALONE) == MAX_DRAFTS
    assert 1 <= lengths.length(history_of(2, 2), ALONE) < MAX_DRAFTS
    assert lengths.length(history_of(0, 20), ALONE) == 0, "its account is overdrawn"
    dear = DraftLengths()
    measured(dear, {0: 1.0, 1: 1.0, 2: 1.9, 4: 4.0, 16: 16.0})
    assert dear.length(history_of(9, 0), ALONE) == 1


def test_steps_without_drafts_are_measured_first_and_now_and_then() -> None:
    lengths = DraftLengths()
    assert lengths.wants_plain(ALONE)
    lengths.record(1.0, ALONE, 0)
    decisions = []
    for _ in range(200):
        decisions.append(lengths.wants_plain(ALONE))
        lengths.record(1.0, ALONE, 1 - decisions[-1])
    assert 2 <= decisions.count(True) <= 4
    assert not any(decisions[:32])


def test_few_are_drafted_as_long_as_nothing_is_known() -> None:
    lengths, history = DraftLengths(), history_of(9, 0)
    assert lengths.length(history, ALONE) == 2
    assert lengths.length(history, THREE, num_drafts=2) == 0
    lengths.record(1.0, ALONE, 0)
    lengths.record(1.1, ALONE, 2)
    assert lengths.length(history, ALONE) == 4, "twice as many as were measured"
    assert lengths.length(history, THREE, num_drafts=2) > 0, "also of other numbers"


def test_measurements_that_nobody_renews_are_forgotten() -> None:
    lengths, history = DraftLengths(), history_of(9, 0)
    measured(lengths, {0: 1.0, 1: 1.05, 4: 9.0, 16: 30.0})
    assert lengths.length(history, ALONE) <= 1
    for index in range(600):
        lengths.record(1.0, ALONE, index % 2)
    assert lengths.length(history, ALONE) == 2, "the step with 4 is forgotten"


def test_one_slow_step_changes_nothing() -> None:
    lengths, history = DraftLengths(), history_of(9, 0)
    measured(lengths, {0: 1.0, 16: 1.5})
    lengths.record(50.0, ALONE, 16)
    assert lengths.length(history, ALONE) == MAX_DRAFTS


def test_what_the_drafter_knows_counts_more_than_earlier_outcomes() -> None:
    lengths, unlucky = DraftLengths(), history_of(9, 6)
    measured(lengths, {0: 1.0, 1: 1.1, 4: 1.4, 16: 2.6})
    assert lengths.length(unlucky, ALONE, chances=[0.95] * 16) >= 8
    assert lengths.length(unlucky, ALONE, chances=[0.95] * 3 + [0.05] * 13) == 3
    assert lengths.length(unlucky, ALONE, chances=[0.3, 0.3]) == 1
    assert lengths.length(unlucky, ALONE, chances=[0.05] * 16) == 0, "it need not be tried"
    assert lengths.length(unlucky, ALONE, chances=()) == 0


def test_a_weak_guess_is_made_where_a_draft_costs_little() -> None:
    cheap, dear = DraftLengths(), DraftLengths()
    measured(cheap, {0: 1.0, 1: 1.02, 16: 1.3})
    measured(dear, {0: 1.0, 1: 1.3, 16: 6.0})
    chances = [0.2, 0.4]
    assert cheap.length(DraftHistory(), ALONE, chances=chances) > 0
    assert dear.length(DraftHistory(), ALONE, chances=chances) == 0


def test_steps_ahead_need_to_be_likely() -> None:
    lengths = DraftLengths(4)
    measured(lengths, {0: 1.0, 16: 1.5})
    history = history_of(4, 0)
    sure, unsure = history.likely(5), history_of(0, 3).likely(5)
    assert lengths.length_ahead(history, likely=sure, num_steps_ahead=1) == 1, "to be measured"
    lengths.record(0.3, AHEAD, 0)
    assert lengths.length_ahead(history, likely=sure, num_steps_ahead=1) > 1
    assert lengths.length_ahead(history, likely=sure, num_steps_ahead=1, chances=()) == 1
    assert lengths.length_ahead(history, likely=history.likely(400), num_steps_ahead=1) == 0
    assert lengths.length_ahead(history, likely=unsure, num_steps_ahead=1) == 0
    history.went_ahead(-5.0)
    assert lengths.length_ahead(history, likely=sure, num_steps_ahead=1) == 0
