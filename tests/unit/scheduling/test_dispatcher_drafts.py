"""A dispatcher with drafters that answer late, fail, and are closed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from support.scheduling.drafters import InstantSource, QuietDrafter
from support.scheduling.toy_pipeline import ToyPipeline, expected_tokens

from potluck.errors import DefectError, PotluckError
from potluck.scheduling.dispatcher import Dispatcher
from potluck.scheduling.ledger import Update
from potluck.scheduling.limits import SchedulerLimits
from potluck.scheduling.pipeline import OnOutcome, StepOutcome
from potluck.types.sequence import SequenceRequest, SequenceUpdate
from potluck.types.step import SamplingParams, SequenceId, Step

LIMITS = SchedulerLimits(
    num_blocks=16,
    context_tokens=128,
    max_step_tokens=32,
    max_step_sequences=4,
    max_steps_in_flight=2,
)
REQUEST = SequenceRequest(prompt_tokens=(1, 2), sampling=SamplingParams(), max_new_tokens=40)
TEXT = [1, 2, *expected_tokens([1, 2], 40)]


@dataclass
class LateDrafter(InstantSource, QuietDrafter):
    """Has an answer once ``is_ready``."""

    is_ready: bool = False
    fails: bool = False
    opened: list[SequenceId] = field(default_factory=list)

    def open(self, sequence_id: SequenceId, request: SequenceRequest) -> LateDrafter:
        """See ``DraftSource``."""
        self.opened.append(sequence_id)
        return self

    def propose(self, tokens: Sequence[int], k: int) -> Sequence[int] | None:
        """See ``Drafter``."""
        if self.fails:
            raise RuntimeError("no more guesses")
        return TEXT[len(tokens) : len(tokens) + k] if self.is_ready else None

    def close(self) -> None:
        """See ``Drafter``."""
        super().close()
        if self.fails:
            raise RuntimeError("nor an end")


class Played:
    """A pipeline that answers when it is told."""

    def __init__(self, on_outcome: OnOutcome) -> None:
        self._on_outcome = on_outcome
        self._toy = ToyPipeline()
        self.steps: deque[Step] = deque()

    def submit(self, step: Step) -> None:
        self._toy.submit(step)
        self.steps.append(step)

    def close(self) -> None:
        pass

    def answer(self) -> None:
        _, sampled = self._toy.run_oldest()
        self._on_outcome(StepOutcome(step=self.steps.popleft(), sampled=sampled))


@dataclass
class Deployed:
    drafter: LateDrafter
    broken: list[PotluckError] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dispatcher = Dispatcher(LIMITS, self.broken.append, self.drafter)
        self.attach()

    def attach(self) -> None:
        def start(on_outcome: OnOutcome) -> Played:
            self.pipeline = Played(on_outcome)
            return self.pipeline

        self.dispatcher.attach(start, LIMITS)

    def run(self) -> None:
        while self.pipeline.steps:
            self.pipeline.answer()

    @property
    def tokens(self) -> list[int]:
        return [each.tokens[0].token for each in self.updates if isinstance(each, SequenceUpdate)]


def test_a_late_drafter_is_asked_again_when_it_is_ready() -> None:
    deployed = Deployed(LateDrafter())
    deployed.dispatcher.add(REQUEST, deployed.updates.append)
    deployed.run()
    num_given = len(deployed.tokens)
    assert 0 < num_given < 40, "it waits"
    deployed.dispatcher.drafts_ready()
    assert not deployed.pipeline.steps
    deployed.drafter.is_ready = True
    deployed.dispatcher.drafts_ready()
    deployed.run()
    assert deployed.tokens == TEXT[2:]
    assert deployed.drafter.is_closed
    drafts = deployed.dispatcher.load.drafts
    assert 0 < drafts.num_accepted <= drafts.num_drafted
    tokens = [each.tokens[0] for each in deployed.updates if isinstance(each, SequenceUpdate)]
    assert sum(token.num_accepted for token in tokens) == drafts.num_accepted


def test_a_drafter_that_fails_is_a_defect_and_its_text_goes_on() -> None:
    deployed = Deployed(LateDrafter(is_ready=True))
    deployed.dispatcher.add(REQUEST, deployed.updates.append)
    deployed.drafter.fails = True
    deployed.run()
    (error,) = deployed.broken
    assert isinstance(error, DefectError)
    assert "no more guesses" in error.message
    assert deployed.drafter.is_closed
    deployed.drafter.fails = False
    deployed.dispatcher.detach()
    deployed.attach()
    deployed.run()
    assert deployed.tokens == TEXT[2:]
    assert len(deployed.drafter.opened) == 2


def test_closing_closes_drafters() -> None:
    deployed = Deployed(LateDrafter())
    deployed.dispatcher.add(REQUEST, deployed.updates.append)
    deployed.run()
    deployed.dispatcher.close()
    deployed.dispatcher.drafts_ready()
    assert deployed.drafter.is_closed
