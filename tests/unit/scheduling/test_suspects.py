"""Which requests are computed alone, and which are refused."""

from __future__ import annotations

import dataclasses

import pytest

from potluck.scheduling import suspects as module
from potluck.scheduling.suspects import FORGET_SECONDS, Suspects, SuspectState
from potluck.types.sequence import SequenceRequest
from potluck.types.step import SamplingParams

GUILTY = SequenceRequest(
    prompt_tokens=(1, 2, 3), sampling=SamplingParams(seed=1), max_new_tokens=9, request_id="a"
)
INNOCENT = SequenceRequest(prompt_tokens=(4,), sampling=SamplingParams(seed=1), max_new_tokens=9)
AGAIN = dataclasses.replace(
    GUILTY, request_id="b", sampling=dataclasses.replace(GUILTY.sampling, seed=2)
)
"""As a client repeats it: under another id, and with a seed that was drawn anew."""


def test_two_ends_refuse_a_request_and_one_does_not() -> None:
    suspects = Suspects()
    assert suspects.state(GUILTY, 0.0) is SuspectState.FREE
    suspects, refused = suspects.accused([GUILTY, INNOCENT], 0.0)
    assert refused == ()
    assert suspects.state(AGAIN, 1.0) is SuspectState.SUSPECT
    assert suspects.state(INNOCENT, 1.0) is SuspectState.SUSPECT
    suspects, refused = suspects.accused([AGAIN], 2.0)
    assert refused == (AGAIN,)
    assert suspects.state(GUILTY, 3.0) is SuspectState.REFUSED
    assert suspects.state(INNOCENT, 3.0) is SuspectState.SUSPECT


def test_a_suspect_that_completes_is_cleared() -> None:
    suspects, _ = Suspects().accused([GUILTY, INNOCENT], 0.0)
    suspects = suspects.completed(INNOCENT).completed(INNOCENT)
    assert suspects.state(INNOCENT, 1.0) is SuspectState.FREE
    assert suspects.state(GUILTY, 1.0) is SuspectState.SUSPECT


def test_the_choices_of_one_request_count_once() -> None:
    suspects, refused = Suspects().accused([GUILTY, AGAIN, GUILTY], 0.0)
    assert refused == ()
    assert suspects.state(GUILTY, 1.0) is SuspectState.SUSPECT


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(GUILTY, prompt_tokens=(1, 2, 4)),
        dataclasses.replace(GUILTY, max_new_tokens=8),
        dataclasses.replace(GUILTY, sampling=SamplingParams(top_k=1)),
        dataclasses.replace(GUILTY, stop_tokens=frozenset({7})),
    ],
)
def test_another_content_is_another_request(other: SequenceRequest) -> None:
    suspects, _ = Suspects().accused([GUILTY], 0.0)
    assert suspects.state(other, 1.0) is SuspectState.FREE


def test_what_cannot_be_serialized_can_be_remembered() -> None:
    odd = dataclasses.replace(GUILTY, sampling=SamplingParams(top_k=2**64))
    suspects, _ = Suspects().accused([odd], 0.0)
    assert suspects.state(odd, 1.0) is SuspectState.SUSPECT


def test_it_is_forgotten_after_a_while() -> None:
    suspects, _ = Suspects().accused([GUILTY], 0.0)
    suspects, _ = suspects.accused([GUILTY], 10.0)
    assert suspects.state(GUILTY, 9.0 + FORGET_SECONDS) is SuspectState.REFUSED
    assert suspects.state(GUILTY, 10.0 + FORGET_SECONDS) is SuspectState.FREE
    suspects, refused = suspects.accused([GUILTY], 10.0 + FORGET_SECONDS)
    assert refused == ()
    assert len(suspects.records) == 1


def test_memory_is_bounded_and_the_oldest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REMEMBERED", 3)
    requests = [dataclasses.replace(GUILTY, prompt_tokens=(number,)) for number in range(4)]
    suspects = Suspects()
    for at, request in enumerate([*requests[:3], requests[0], requests[3]]):
        suspects, _ = suspects.accused([request], float(at))
    states = [suspects.state(request, 5.0) for request in requests]
    assert states == [
        SuspectState.REFUSED,
        SuspectState.FREE,
        SuspectState.SUSPECT,
        SuspectState.SUSPECT,
    ]
