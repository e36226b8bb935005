"""What a gateway holds of a sequence."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from potluck.cluster.agent.progress import GapError, Patience, SequenceProgress
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
    progress = SequenceProgress(request())
    assert progress.continuation == NOTHING_COMMITTED
    assert progress.take(token(3))
    assert not progress.take(token(3))
    assert not progress.take(token(2))
    assert progress.take(token(4))
    with pytest.raises(GapError, match="position 6 arrived before the one at 5"):
        progress.take(token(6))
    assert progress.continuation == Continuation(output_tokens=(103, 104))
    assert not progress.is_finished


def test_scores_of_the_prompt_come_first() -> None:
    progress = SequenceProgress(request(score_prompt=True))
    with pytest.raises(GapError):
        progress.take(token(3))
    assert progress.take(token(1))
    assert progress.continuation == Continuation(num_scored=1)
    assert not progress.take(token(1))
    assert progress.take(token(2))
    assert progress.take(token(3))
    assert progress.continuation == Continuation(output_tokens=(103,), num_scored=2)


def test_nothing_follows_the_last_token() -> None:
    progress = SequenceProgress(request())
    assert progress.take(token(3, is_last=True))
    assert progress.is_finished
    assert not progress.take(token(3, is_last=True))
    with pytest.raises(GapError):
        progress.take(token(4))


def test_it_goes_on_from_what_was_committed_before() -> None:
    progress = SequenceProgress(request(), [token(3), token(4)])
    assert progress.next_position == 5
    # A gateway need not keep scores, which come before what is generated.
    progress = SequenceProgress(request(score_prompt=True), [token(3)])
    assert progress.continuation == Continuation(output_tokens=(103,), num_scored=2)


def test_patience_adds_up_until_a_token_comes() -> None:
    patience = Patience(limit_seconds=5.0).after(2.0).after(2.0)
    assert patience.left_seconds == 1.0
    assert patience.after(3.0).left_seconds == 0.0
    assert patience.renewed().left_seconds == 5.0


def test_a_vector_is_all_that_a_pooled_sequence_is_given() -> None:
    for pooling, position in ((Pooling.CLS, 0), (Pooling.MEAN, 2), (Pooling.LAST, 2)):
        progress = SequenceProgress(replace(request(), max_new_tokens=0, pooling=pooling))
        assert progress.continuation == NOTHING_COMMITTED
        vector = msgspec.structs.replace(token(position, is_last=True), vector=b"1234")
        assert progress.take(vector)
        assert progress.is_finished
        with pytest.raises(GapError):
            progress.take(vector)
