"""Tokens per second from the steps that come back, whatever else the deployment does."""

from __future__ import annotations

import itertools
import random

import pytest
from support.processes.proportion import least_busy_seconds

from potluck.cluster.coordinator.token_rates import LEAST_ROUNDS, TokenRates
from potluck.types.documents.cluster import TokenSpeed
from potluck.types.step import SampledToken, SequenceId, SequenceSlice, Step, StepId


def results(step: Step) -> tuple[SampledToken, ...]:
    return tuple(
        SampledToken(sequence_id=sequence_id, position=position, token=1)
        for sequence_id, position in step.results
    )


class Deployment:
    """Computes steps by a clock of the test's."""

    def __init__(self) -> None:
        self.rates = TokenRates()
        self.now = 50.0
        self.positions: dict[int, int] = {}

    def step(self, *sequences: int, num_tokens: int = 1, seconds: float = 0.1) -> None:
        slices = []
        for sequence in sequences:
            start = self.positions.get(sequence, 0)
            self.positions[sequence] = start + num_tokens
            slices.append(
                SequenceSlice(
                    sequence_id=SequenceId(sequence),
                    tokens=(1,) * num_tokens,
                    start_position=start,
                    block_table=(),
                    sample=True,
                )
            )
        self.now += seconds
        step = Step(step_id=StepId(0), slices=tuple(slices))
        self.rates.record(step, results(step), self.now)


def test_one_stream_is_measured_from_token_to_token() -> None:
    deployment, draw = Deployment(), random.Random(3)
    assert deployment.rates.speed() == TokenSpeed()
    for _ in range(1000):
        deployment.step(1, seconds=0.02 * (30.0 if draw.random() < 0.01 else 1.0))
    speed = deployment.rates.speed()
    assert speed.tokens_per_second == pytest.approx(50.0, rel=0.1)
    assert speed.total_tokens_per_second is speed.num_streams is None


def test_what_waits_for_a_quota_now_and_then_counts_in_the_long_run() -> None:
    deployment = Deployment()
    for index in range(300):
        deployment.step(1, seconds=0.093 if index % 3 == 0 else 0.003)
    assert deployment.rates.speed().tokens_per_second == pytest.approx(3 / 0.099, rel=0.1)


@pytest.mark.parametrize("groups", [[(0, 1, 2, 3)], [(0, 1), (2, 3)], [(0,), (1, 2), (3,)]])
def test_several_streams_count_together_however_steps_divide_them(
    groups: list[tuple[int, ...]],
) -> None:
    deployment = Deployment()
    for _ in range(30):
        for group in groups:
            deployment.step(*group, seconds=0.1 * len(group))
    speed = deployment.rates.speed(8)
    assert speed.num_streams == 4
    assert speed.total_tokens_per_second == pytest.approx(10.0)
    assert speed.tokens_per_second is None


def test_more_streams_than_fit_in_the_steps_in_flight_count_too() -> None:
    deployment = Deployment()
    for turn in range(60):
        deployment.step(*((turn * 2 + index) % 6 for index in range(2)))
    speed = deployment.rates.speed()
    assert speed.num_streams == 6
    assert speed.total_tokens_per_second == pytest.approx(20.0)


def test_the_number_of_streams_that_is_asked_for_is_preferred() -> None:
    deployment = Deployment()
    for _ in range(12):
        deployment.step(0, 1, 2, 3, 4, 5, 6, 7, seconds=0.2)
    for _ in range(40):
        deployment.step(0, 1, seconds=0.1)
    assert deployment.rates.speed(8).num_streams == 8
    assert deployment.rates.speed(8).total_tokens_per_second == pytest.approx(40.0)
    assert deployment.rates.speed(5).num_streams == 2
    assert deployment.rates.speed(5).total_tokens_per_second == pytest.approx(20.0)


def test_rounds_with_prompts_and_rests_between_requests_are_no_decoding() -> None:
    deployment = Deployment()
    for request in range(40):
        deployment.now += 5.0  # nobody asks
        deployment.step(request, num_tokens=64, seconds=1.0)
        for _ in range(3):
            deployment.step(request, seconds=0.1)
    assert deployment.rates.speed().tokens_per_second == pytest.approx(10.0)
    for request in range(100, 140):  # a prompt in every round
        deployment.step(1000, 1001)
        deployment.step(request, num_tokens=64, seconds=1.0)
    assert deployment.rates.speed().total_tokens_per_second is None


def test_with_drafts_every_token_counts_and_a_wrong_guess_ends_no_round() -> None:
    rates, position, now = TokenRates(), 1, 0.0
    for turn in range(60):
        part = SequenceSlice(
            sequence_id=SequenceId(1),
            tokens=(1,) * 4,
            start_position=position - 1,
            block_table=(),
            sample=True,
            num_drafts=3,
        )
        step = Step(step_id=StepId(0), slices=(part,))
        now += 0.1
        num_right = turn % 3  # of three turns one gives nothing, and one each 2 and 4 tokens
        rates.record(step, results(step)[: 2 * num_right], now)
        position += 2 * num_right
    assert rates.speed().tokens_per_second == pytest.approx(6 / 0.3, rel=0.1)
    assert rates.speed().num_streams is None


def test_a_preempted_sequence_begins_again() -> None:
    deployment = Deployment()
    for _ in range(LEAST_ROUNDS + 2):  # the first is cold, the first round too
        deployment.step(1)
    deployment.positions[1] = 0
    for _ in range(LEAST_ROUNDS + 1):
        deployment.now += 9.0
        deployment.step(1)
        deployment.positions[1] = 0
    assert deployment.rates.speed().tokens_per_second == pytest.approx(10.0)


def test_what_is_old_beside_the_latest_does_not_count_and_what_is_followed_is_bounded() -> None:
    deployment = Deployment()
    for _ in range(40):
        deployment.step(1, seconds=0.1)
    deployment.now += 100
    for _ in range(30):
        deployment.step(1, seconds=0.5)
    assert deployment.rates.speed().tokens_per_second == pytest.approx(2.0)
    for sequence in range(5_000):
        deployment.step(sequence)
    assert len(deployment.rates._followed) <= 256


def test_a_step_costs_a_few_microseconds() -> None:
    deployment = Deployment()
    steps = [
        Step(
            step_id=StepId(0),
            slices=tuple(
                SequenceSlice(
                    sequence_id=SequenceId(sequence),
                    tokens=(1,),
                    start_position=position,
                    block_table=(),
                    sample=True,
                )
                for sequence in range(8)
            ),
        )
        for position in range(1_000)
    ]
    sampled = [results(step) for step in steps]
    at = itertools.count()

    def note() -> None:
        for step, tokens in zip(steps, sampled, strict=True):
            deployment.rates.record(step, tokens, float(next(at)))

    assert least_busy_seconds(note) / len(steps) < 2e-5
