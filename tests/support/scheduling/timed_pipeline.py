"""Stages that take simulated time, under a scheduler: how long texts take, with drafts and without.

The stages skip cancelled steps as those of a cluster do: a stage knows of a cancellation once the
step that brings it has arrived.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from support.scheduling.drafters import InstantSource, QuietDrafter
from support.scheduling.toy_pipeline import ToyPipeline, expected_tokens, next_token

from potluck.scheduling.limits import SchedulerLimits
from potluck.scheduling.scheduler import Scheduler
from potluck.types.drafting import DraftSource, DraftTotals
from potluck.types.sequence import SequenceRequest
from potluck.types.step import SamplingParams, SequenceId, Step, StepId

Cost = Callable[[int], float]
"""Seconds that one stage takes for a step with so many tokens."""


def linear_cost(seconds: float, per_token: float) -> Cost:
    """``seconds`` for one token, and ``per_token`` of that for each further one."""
    return lambda num_tokens: seconds * (1 + per_token * (num_tokens - 1))


@dataclass
class _TimedStage:
    cost: Cost
    queue: deque[Step] = field(default_factory=deque)
    cancelled: set[StepId] = field(default_factory=set)
    skipped: set[StepId] = field(default_factory=set)
    is_busy: bool = False


@dataclass
class TimedRun:
    """Sequences of a toy model over stages that take time."""

    costs: Sequence[Cost]
    hop_seconds: float = 0.0
    num_prompts: int = 1
    num_tokens: int = 200
    drafts: DraftSource | None = None
    noise: float = 0.0
    now: float = 0.0
    totals: DraftTotals = field(default_factory=DraftTotals)

    def __post_init__(self) -> None:
        self._stages = [_TimedStage(cost) for cost in self.costs]
        self._events: list[tuple[float, int, str, int, Step]] = []
        self._numbers = count()
        self._toy = ToyPipeline()
        self._submitted: dict[StepId, float] = {}
        self._last_outcome = 0.0
        self._draws = random.Random(5)

    def run(self) -> float:
        """Return the seconds after which a text was complete, on average."""
        prompts = [[index, 2, 3] for index in range(self.num_prompts)]
        scheduler = Scheduler(
            SchedulerLimits(
                num_blocks=400,
                context_tokens=2048,
                max_step_tokens=256,
                max_step_sequences=32,
                max_steps_in_flight=len(self.costs),
            ),
            self.drafts,
        )
        for prompt in prompts:
            scheduler.add(
                SequenceRequest(
                    prompt_tokens=tuple(prompt),
                    sampling=SamplingParams(),
                    max_new_tokens=self.num_tokens,
                )
            )
        given: dict[SequenceId, list[int]] = {}
        ends: list[float] = []
        self._submit(scheduler)
        while self._events:
            self.now, _, kind, index, step = heapq.heappop(self._events)
            if kind == "outcome":
                seconds = self.now - max(self._submitted.pop(step.step_id), self._last_outcome)
                self._last_outcome = self.now
                for token in scheduler.complete(*self._toy.run_oldest(), seconds=seconds):
                    given.setdefault(token.sequence_id, []).append(token.token)
                    ends += [self.now] * (token.finish_reason is not None)
                self._submit(scheduler)
                continue
            stage = self._stages[index]
            if kind == "arrival":
                stage.cancelled.update(step.cancels)
                stage.queue.append(step)
            else:
                stage.is_busy = False
                self._pass_on(index, step)
            self._start(index)
        for sequence, prompt in enumerate(prompts):
            assert given[SequenceId(sequence)] == expected_tokens(prompt, self.num_tokens)
        self.totals = scheduler.load.drafts
        return sum(ends) / len(ends)

    def _submit(self, scheduler: Scheduler) -> None:
        while (step := scheduler.next_step()) is not None:
            self._toy.submit(step)
            self._submitted[step.step_id] = self.now
            self._push(self.now + self.hop_seconds, "arrival", 0, step)

    def _push(self, at: float, kind: str, index: int, step: Step) -> None:
        heapq.heappush(self._events, (at, next(self._numbers), kind, index, step))

    def _pass_on(self, index: int, step: Step) -> None:
        kind = "arrival" if index + 1 < len(self._stages) else "outcome"
        self._push(self.now + self.hop_seconds, kind, index + 1, step)

    def _start(self, index: int) -> None:
        stage = self._stages[index]
        while stage.queue and not stage.is_busy:
            step = stage.queue.popleft()
            if step.step_id in stage.cancelled or any(
                step.step_id in before.skipped for before in self._stages[:index]
            ):
                stage.skipped.add(step.step_id)
                self._pass_on(index, step)
                continue
            stage.is_busy = True
            noise = 1 + self.noise * self._draws.expovariate(1.0)
            self._push(self.now + stage.cost(step.num_tokens) * noise, "end", index, step)


@dataclass
class PlannedDrafter(QuietDrafter):
    """Guesses that are right as often as ``chance`` says of their position in the text.

    It has a guess at all as often as ``propensity`` says. The first wrong guess is the last one
    that could be right.
    """

    chance: Callable[[int], float]
    propensity: Callable[[int], float]
    draws: random.Random
    num_calls: int = 0

    def propose(self, tokens: Sequence[int], k: int) -> Sequence[int]:
        """See ``Drafter``."""
        self.num_calls += 1
        if self.draws.random() >= self.propensity(len(tokens)):
            return ()
        guesses: list[int] = []
        for position in range(len(tokens), len(tokens) + k):
            right = next_token([*tokens, *guesses])
            is_right = self.draws.random() < self.chance(position)
            guesses.append(right if is_right else 1000 + len(guesses))
        return guesses


@dataclass
class PlannedDrafts(InstantSource):
    """A source of such drafters."""

    chance: Callable[[int], float]
    propensity: Callable[[int], float] = lambda position: 1.0
    seed: int = 0

    def open(self, sequence_id: SequenceId, request: SequenceRequest) -> PlannedDrafter:
        """See ``DraftSource``."""
        draws = random.Random(f"{self.seed} {sequence_id}")
        return PlannedDrafter(self.chance, self.propensity, draws)
