"""Drafters that ask a small model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from potluck.drafting.model import ModelDrafts
from potluck.errors import EngineError
from potluck.types.drafting import Drafter
from potluck.types.sequence import (
    Cancel,
    CommittedToken,
    FinishReason,
    OnUpdate,
    SequenceRequest,
    SequenceUpdate,
)
from potluck.types.step import Pooling, SamplingParams, SequenceId

VOCAB_SIZE = 100


@dataclass
class SmallModel:
    """Answers when it is told to, on a thread whose work is done when the test says so."""

    posted: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    requests: list[tuple[SequenceRequest, OnUpdate]] = field(default_factory=list)
    num_cancelled: int = 0
    num_ready: int = 0
    failure: Exception | None = None

    def post(self, seconds: float, work: Callable[[], None]) -> None:
        self.posted.append((seconds, work))

    def start(self, request: SequenceRequest, on_update: OnUpdate) -> Cancel:
        if self.failure is not None:
            raise self.failure
        self.requests.append((request, on_update))
        return self.cancel

    def cancel(self) -> None:
        self.num_cancelled += 1

    def ready(self) -> None:
        self.num_ready += 1

    def run(self, *, until: float = 0.0) -> None:
        """Do what is due after so many seconds."""
        while due := [each for each in self.posted if each[0] <= until]:
            self.posted.remove(due[0])
            due[0][1]()

    def answer(self, *tokens: int) -> None:
        """Give the tokens that the latest request is answered with, one by one."""
        request, on_update = self.requests[-1]
        start = len(request.prompt_tokens)
        for position, token in enumerate(tokens, start):
            is_last = position == start + len(tokens) - 1
            on_update(SequenceUpdate(tokens=(_token(token, position, is_last=is_last),)))


def _token(token: int, position: int, *, is_last: bool) -> CommittedToken:
    return CommittedToken(
        sequence_id=SequenceId(0),
        token=token,
        position=position,
        logprob=None,
        top=(),
        finish_reason=FinishReason.LENGTH if is_last else None,
    )


def drafts_of(small: SmallModel, *, context_tokens: int = 64) -> ModelDrafts:
    return ModelDrafts(
        small.start,
        small.post,
        small.ready,
        vocab_size=VOCAB_SIZE,
        context_tokens=context_tokens,
    )


def request(**changes: object) -> SequenceRequest:
    known: dict[str, object] = {
        "prompt_tokens": (1, 2, 3),
        "sampling": SamplingParams(seed=7, logprobs=True, top_logprobs=3),
        "grammar": "start: /x/",
        "prediction": (1, 2),
        **changes,
    }
    return SequenceRequest(**known)  # type: ignore[arg-type]


def opened(drafts: ModelDrafts, **changes: object) -> Drafter:
    drafter = drafts.open(SequenceId(1), request(**changes))
    assert drafter is not None
    return drafter


def test_a_guess_is_asked_for_once_and_given_when_it_is_there() -> None:
    small = SmallModel()
    drafter = opened(drafts_of(small))
    assert drafter.propose([1, 2, 3], 2) is None
    assert drafter.propose([1, 2, 3], 2) is None
    small.run()
    (draft_request, _), *others = small.requests
    assert not others
    assert (draft_request.prompt_tokens, draft_request.max_new_tokens) == ((1, 2, 3), 2)
    small.answer(8, 9)
    assert small.num_ready == 1
    assert drafter.propose([1, 2, 3], 2) == (8, 9)


def test_the_small_model_draws_as_the_sequence_does() -> None:
    small = SmallModel()
    opened(drafts_of(small)).propose([1, 2, 3], 2)
    small.run()
    (draft_request, _) = small.requests[0]
    assert draft_request.sampling == SamplingParams(seed=7)
    assert (draft_request.grammar, draft_request.prediction) == (None, ())


def test_a_guess_for_a_text_that_turned_out_otherwise_is_withdrawn() -> None:
    small = SmallModel()
    drafter = opened(drafts_of(small))
    drafter.propose([1, 2, 3, 4], 2)
    small.run()
    drafter.truncate(3)
    small.run()
    assert small.num_cancelled == 1
    small.answer(8, 9)
    assert small.num_ready == 0
    assert drafter.propose([1, 2, 3], 2) is None
    drafter.close()
    small.run()
    assert len(small.requests) == 1, "what is withdrawn before it was asked is not asked"


def test_tokens_that_the_verifying_model_lacks_end_a_guess() -> None:
    small = SmallModel()
    drafter = opened(drafts_of(small))
    drafter.propose([1], 3)
    small.run()
    small.answer(8, VOCAB_SIZE, 9)
    assert drafter.propose([1], 3) == (8,)


def test_nothing_is_guessed_beyond_the_small_context() -> None:
    small = SmallModel()
    drafter = opened(drafts_of(small, context_tokens=4))
    assert drafter.propose([1, 2, 3, 4], 3) == ()
    assert drafter.propose([1, 2, 3], 3) is None
    small.run()
    assert small.requests[0][0].max_new_tokens == 1


def test_a_failure_or_silence_pauses_drafting(monkeypatch: pytest.MonkeyPatch) -> None:
    for fail in (True, False):
        now = [100.0]
        monkeypatch.setattr("potluck.drafting.model.time.monotonic", lambda now=now: now[0])
        small = SmallModel(failure=EngineError("gone") if fail else None)
        drafts = drafts_of(small)
        drafter = opened(drafts)
        assert drafter.propose([1], 2) is None
        small.run(until=60.0)
        assert small.num_ready == 1
        assert small.num_cancelled == (not fail)
        assert drafter.propose([1], 2) == ()
        assert drafter.propose([1, 2], 2) == ()
        now[0] += 60.0
        assert drafter.propose([1, 2], 2) is None


def test_what_guesses_take_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("potluck.drafting.model.time.monotonic", lambda: now[0])
    small = SmallModel()
    drafts = drafts_of(small)
    drafter = opened(drafts)
    assert drafts.seconds(4) == 0.0
    for end, first_seconds in ((1, 9.0), (2, 0.5)):
        drafter.propose(list(range(end)), 3)
        small.run()
        _, on_update = small.requests[-1]
        for number, seconds in enumerate((first_seconds, 0.1, 0.1)):
            now[0] += seconds
            is_last = number == 2
            on_update(SequenceUpdate(tokens=(_token(5, end + number, is_last=is_last),)))
        assert drafter.propose(list(range(end)), 3) == (5, 5, 5)
        now[0] += 1.0
    assert drafts.seconds(1) == pytest.approx(0.5)
    assert drafts.seconds(3) == pytest.approx(0.7)


@pytest.mark.parametrize("changes", [{"max_new_tokens": 1}, {"pooling": Pooling.MEAN}])
def test_some_sequences_get_no_drafter(changes: dict[str, object]) -> None:
    assert drafts_of(SmallModel()).open(SequenceId(1), request(**changes)) is None
