"""What a deployment did between two looks at its totals."""

from __future__ import annotations

import dataclasses

import pytest

from potluck.cluster.agent.series import MAX_STAGES, Sampler
from potluck.types.cluster import NodeId
from potluck.types.drafting import DraftTotals
from potluck.types.gateway import GenerationTotals, ModelMetrics, StageMetrics
from potluck.types.prefix_cache import PrefixTotals


def metrics(count: int, *, num_stages: int = 2, epoch: int = 1) -> ModelMetrics:
    """Totals that are ``count`` times the same."""
    return ModelMetrics(
        model_id="m",
        num_waiting=1,
        num_running=2,
        num_blocks=10,
        num_free_blocks=4,
        epoch=epoch,
        generated=GenerationTotals(
            num_tokens=20 * count, num_first_tokens=2 * count, first_token_seconds=0.6 * count
        ),
        prefix=PrefixTotals(num_admissions=4 * count, num_hits=count),
        drafts=DraftTotals(num_drafted=10 * count, num_accepted=7 * count),
        stages=tuple(
            StageMetrics(
                stage=index,
                node_id=NodeId("a"),
                num_steps=5 * count,
                compute_seconds=0.5 * count * (index + 1),
                memory_bytes=0,
            )
            for index in range(num_stages)
        ),
    )


def test_a_sample_is_of_the_time_since_the_last_one() -> None:
    sampler = Sampler()
    sampler.take(metrics(1), 10.0)
    sample = sampler.take(metrics(3), 14.0)
    assert sample.tokens_per_second == pytest.approx(10.0)
    assert sample.first_token_seconds == pytest.approx(0.3)
    assert (sample.num_running, sample.num_waiting) == (2, 1)
    assert sample.cache_hit_share == pytest.approx(0.25)
    assert sample.cache_used_share == pytest.approx(0.6)
    assert sample.draft_acceptance == pytest.approx(0.7)
    assert sample.stage_seconds == pytest.approx((0.1, 0.2))
    assert sample.stage_busy == pytest.approx((0.25, 0.5))


def test_where_nothing_was_done_there_are_no_means() -> None:
    sampler = Sampler()
    first = sampler.take(metrics(1), 10.0)
    assert (first.tokens_per_second, first.num_running) == (None, 2)
    idle = sampler.take(metrics(1), 11.0)
    assert idle.tokens_per_second == 0.0
    assert idle.first_token_seconds is idle.cache_hit_share is idle.draft_acceptance is None
    assert idle.stage_seconds == (None, None)
    assert idle.stage_busy == (0.0, 0.0)


def test_totals_that_begin_again_are_compared_with_nothing() -> None:
    sampler = Sampler()
    sampler.take(metrics(5), 10.0)
    again = sampler.take(metrics(1, epoch=2), 11.0)
    assert again.tokens_per_second is None
    assert again.stage_seconds == (None, None)
    assert sampler.take(metrics(2, epoch=2), 12.0).tokens_per_second == pytest.approx(20.0)


def test_stages_are_compared_with_the_last_look_that_had_them() -> None:
    sampler = Sampler()
    sampler.take(metrics(1), 10.0)
    assert sampler.take(metrics(2, num_stages=0), 11.0).stage_seconds == ()
    assert sampler.take(metrics(3), 14.0).stage_busy == pytest.approx((0.25, 0.5))


def test_an_interval_is_never_more_than_busy_and_stages_are_bounded() -> None:
    sampler = Sampler()
    sampler.take(metrics(1, num_stages=MAX_STAGES + 5), 10.0)
    sample = sampler.take(metrics(20, num_stages=MAX_STAGES + 5), 11.0)
    assert len(sample.stage_busy) == MAX_STAGES
    assert set(sample.stage_busy) == {1.0}


def test_a_stage_that_did_not_answer_is_not_known() -> None:
    sampler = Sampler()
    sampler.take(metrics(1), 10.0)
    later = metrics(2)
    later = dataclasses.replace(later, stages=later.stages[1:])
    silent, other = sampler.take(later, 11.0).stage_seconds
    assert silent is None
    assert other == pytest.approx(0.2)
