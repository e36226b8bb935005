"""Logs of sequences, as gateways and coordinators keep them."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from potluck.scheduling.ledger import GapError, SequenceLog
from potluck.types.sequence import (
    NOTHING_COMMITTED,
    CommittedToken,
    Continuation,
    FinishReason,
    SequenceRequest,
)
from potluck.types.step import Pooling, SamplingParams, SequenceId


def request(*, score_prompt: bool = False) -> SequenceRequest:
    return SequenceRequest(
        prompt_tokens=(7, 8, 9), sampling=SamplingParams(), score_prompt=score_prompt
    )


def token(position: int, *, is_last: bool = False) -> CommittedToken:
    return CommittedToken(
        sequence_id=SequenceId(position),
        token=100 + position,
        position=position,
        logprob=None,
        top=(),
        finish_reason=FinishReason.LENGTH if is_last else None,
    )


def test_tokens_are_taken_once_and_in_order() -> None:
    log = SequenceLog(request())
    assert log.continuation == NOTHING_COMMITTED
    assert log.take(token(3))
    assert not log.take(token(3))
    assert not log.take(token(2))
    assert log.take(token(4))
    with pytest.raises(GapError, match="position 6 arrived before the one at 5"):
        log.take(token(6))
    assert log.continuation == Continuation(output_tokens=(103, 104))
    assert not log.is_finished


def test_scores_of_the_prompt_come_first() -> None:
    log = SequenceLog(request(score_prompt=True))
    with pytest.raises(GapError):
        log.take(token(3))
    assert log.take(token(1))
    assert log.continuation == Continuation(num_scored=1)
    assert not log.take(token(1))
    assert log.take(token(2))
    assert log.take(token(3))
    assert log.continuation == Continuation(output_tokens=(103,), num_scored=2)


def test_nothing_follows_the_last_token() -> None:
    log = SequenceLog(request())
    assert log.take(token(3, is_last=True))
    assert log.is_finished
    assert not log.take(token(3, is_last=True))
    with pytest.raises(GapError):
        log.take(token(4))


def test_it_continues_after_what_was_committed_before() -> None:
    log = SequenceLog(request(), Continuation(output_tokens=(103, 104)))
    assert log.next_position == 5
    log = SequenceLog(request(score_prompt=True), Continuation(num_scored=1))
    assert log.next_position == 2


def test_a_vector_is_all_that_a_pooled_sequence_is_given() -> None:
    for pooling, position in ((Pooling.CLS, 0), (Pooling.MEAN, 2), (Pooling.LAST, 2)):
        log = SequenceLog(replace(request(), max_new_tokens=0, pooling=pooling))
        assert log.continuation == NOTHING_COMMITTED
        vector = msgspec.structs.replace(token(position, is_last=True), vector=b"1234")
        assert log.take(vector)
        assert log.is_finished
        with pytest.raises(GapError):
            log.take(vector)
