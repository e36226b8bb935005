"""Live sequences, and what is committed of them."""

from __future__ import annotations

import pytest

from potluck.scheduling.ledger import GapError, Ledger, Update
from potluck.types.sequence import (
    NOTHING_COMMITTED,
    CommittedToken,
    Continuation,
    FinishReason,
    SequenceRequest,
)
from potluck.types.step import SamplingParams, SequenceId

ONE = SequenceId(1)
SCORED = SequenceRequest(
    prompt_tokens=(10, 11, 12), sampling=SamplingParams(), max_new_tokens=3, score_prompt=True
)


def nobody(_: Update) -> None:
    return


def token(position: int, *, reason: FinishReason | None = None) -> CommittedToken:
    return CommittedToken(
        sequence_id=ONE,
        token=9 + position,
        position=position,
        logprob=None,
        top=(),
        finish_reason=reason,
    )


def test_it_notes_scores_and_then_outputs_until_the_last() -> None:
    ledger = Ledger()
    ledger.add(ONE, SCORED, NOTHING_COMMITTED, nobody)
    seen = []
    for position in range(1, 5):
        seen.append(ledger.commit(token(position)).log.continuation)
    assert seen == [
        Continuation(num_scored=1),
        Continuation(num_scored=2),
        Continuation(num_scored=2, output_tokens=(12,)),
        Continuation(num_scored=2, output_tokens=(12, 13)),
    ]
    assert ledger.get(ONE) is not None
    entry = ledger.commit(token(5, reason=FinishReason.LENGTH))
    assert entry.log.continuation == Continuation(num_scored=2, output_tokens=(12, 13, 14))
    assert not list(ledger)


@pytest.mark.parametrize("position", [0, 1, 2, 4])
def test_nothing_is_committed_twice_or_left_out(position: int) -> None:
    ledger = Ledger()
    ledger.add(ONE, SCORED, Continuation(num_scored=2), nobody)
    with pytest.raises(
        ValueError if position < 3 else GapError, match=f"at (position )?{position}"
    ):
        ledger.commit(token(position))
    ledger.commit(token(3))


def test_a_sequence_that_is_not_live_is_given_nothing() -> None:
    ledger = Ledger()
    with pytest.raises(ValueError, match="not live"):
        ledger.commit(token(1))
    ledger.add(ONE, SCORED, NOTHING_COMMITTED, nobody)
    with pytest.raises(ValueError, match="live already"):
        ledger.add(ONE, SCORED, NOTHING_COMMITTED, nobody)
    for entry in ledger:
        assert ledger.remove(entry.sequence_id) is entry
    assert ledger.remove(ONE) is None
