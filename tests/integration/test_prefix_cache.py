"""With a prefix cache, every sequence has the bits that it has alone without one.

Random traffic over real engines: prompts that begin alike or continue earlier answers, forks that
arrive together, cancellations in the middle, preemption for want of blocks, and lost stages.
Tokens, log-probabilities and alternatives are compared, greedy, sampled and scored.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import pytest
from support.native_pipeline import VOCAB_SIZE, Pipeline, small_config

from potluck.cluster.worker.block_keeper import DiskKeeper
from potluck.cluster.worker.block_store import BlockStore
from potluck.scheduling import Scheduler, SchedulerLimits
from potluck.types.sequence import CommittedToken, SequenceRequest
from potluck.types.step import SampledToken, SamplingParams, SequenceId, Step
from potluck.types.tensor import TensorFormat

NUM_LAYERS = 3
CONTEXT_TOKENS = 160
NUM_EVENTS = 400

SAMPLINGS = (
    SamplingParams(temperature=0.0, logprobs=True, top_logprobs=2),
    SamplingParams(
        temperature=0.9, top_p=0.9, repetition_penalty=1.3, seed=3, logprobs=True, top_logprobs=3
    ),
)


def limits_of(
    *,
    num_blocks: int = 24,
    chunk: int = 40,
    num_stages: int = 1,
    has_cache: bool = True,
    disk_salt: bytes | None = None,
) -> SchedulerLimits:
    return SchedulerLimits(
        num_blocks=num_blocks,
        context_tokens=CONTEXT_TOKENS,
        max_step_tokens=chunk,
        max_step_sequences=min(6, chunk),
        max_steps_in_flight=num_stages,
        has_prefix_cache=has_cache,
        disk_salt=disk_salt,
    )


@dataclass
class Stages:
    """Engines that run steps when they are told, and count what they compute.

    Each keeps blocks on disk if there is a ``folder``.
    """

    num_stages: int
    num_blocks: int
    block_seed: int = 0
    steps: deque[Step] = field(default_factory=deque)
    num_tokens: int = 0
    num_copies: int = 0
    folder: Path | None = None

    def __post_init__(self) -> None:
        self.engines = Pipeline.make(
            small_config(NUM_LAYERS),
            TensorFormat.Q4_K,
            num_stages=self.num_stages,
            num_blocks=self.num_blocks,
        ).engines
        self.keepers = [] if self.folder is None else self._keepers(self.folder)
        self.num_restored = 0

    def _keepers(self, folder: Path) -> list[DiskKeeper]:
        keepers = []
        for index, engine in enumerate(self.engines):
            block_bytes = engine.block_format.num_bytes
            store = BlockStore(
                folder, f"stage-{index}", block_bytes=block_bytes, limit_bytes=40 * block_bytes
            )
            keepers.append(DiskKeeper(engine, store))
        return keepers

    def close(self) -> None:
        for keeper in self.keepers:
            keeper.close()

    def run_oldest(self) -> tuple[Step, tuple[SampledToken, ...]]:
        step, hidden = self.steps.popleft(), None
        self.num_restored = len(step.restores)
        for keeper in self.keepers:
            keeper.save(step.saves)
            while keeper.num_queued:  # or what is restored would be left to chance
                time.sleep(0.0002)
            self.num_restored = keeper.restore(step.restores[: self.num_restored])
        if step.restores:
            return step, ()
        for engine in self.engines:
            result = engine.step(step, hidden)
            hidden = result.hidden
        self.num_tokens += step.num_tokens
        self.num_copies += len(step.copies)
        return step, result.sampled


Plain = tuple[int, int, float | None, tuple[tuple[int, float], ...], bool]


def plain(token: CommittedToken) -> Plain:
    top = tuple((each.token, each.logprob) for each in token.top)
    return token.position, token.token, token.logprob, top, token.finish_reason is not None


@cache
def alone_stages() -> Stages:
    return Stages(num_stages=1, num_blocks=10)


@cache
def alone(request: SequenceRequest) -> list[Plain]:
    """What the request is given when it is the only one, and nothing is cached."""
    stages = alone_stages()
    scheduler = Scheduler(limits_of(num_blocks=10, has_cache=False))
    for engine in stages.engines:
        engine.reset()
    scheduler.add(request)
    given: list[Plain] = []
    while (step := scheduler.next_step()) is not None:
        assert step.copies == ()
        stages.steps.append(step)
        ran, sampled = stages.run_oldest()
        given += map(plain, scheduler.complete(ran.step_id, sampled))
    return given


@dataclass
class Traffic:
    """A scheduler, its stages and what its sequences have been given."""

    limits: SchedulerLimits
    random: random.Random
    requests: dict[SequenceId, SequenceRequest] = field(default_factory=dict)
    given: dict[SequenceId, list[Plain]] = field(default_factory=dict)
    cancelled: set[SequenceId] = field(default_factory=set)
    ends: dict[SequenceId, int] = field(default_factory=dict)
    num_repeated: int = 0
    prompts: list[Sequence[int]] = field(default_factory=list)
    folder: Path | None = None

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.limits)
        self.stages = self._stages()
        for _ in range(2):
            self.prompts.append([self.random.randrange(VOCAB_SIZE) for _ in range(110)])

    def _stages(self) -> Stages:
        return Stages(
            num_stages=self.limits.max_steps_in_flight,
            num_blocks=self.limits.num_blocks,
            folder=self.folder,
        )

    def add(self) -> None:
        draw = self.random
        base = draw.choice(self.prompts)
        prompt = [*base[: draw.randint(1, len(base))]]
        prompt += [draw.randrange(VOCAB_SIZE) for _ in range(draw.choice([0, 0, 3, 20]))]
        request = SequenceRequest(
            prompt_tokens=tuple(prompt[:120]),
            sampling=draw.choice(SAMPLINGS),
            max_new_tokens=draw.choice([1, 3, 9, 40]),
            score_prompt=draw.random() < 0.1,
        )
        for fork in range(draw.choice([1, 1, 1, 3])):
            sampling = replace(request.sampling, seed=request.sampling.seed + fork)
            forked = replace(request, sampling=sampling)
            sequence = self.scheduler.add(forked, is_alone=draw.random() < 0.05)
            self.requests[sequence] = forked
            self.given[sequence] = []

    def form(self) -> bool:
        step = self.scheduler.next_step()
        if step is not None:
            self.stages.steps.append(step)
            for part in step.slices:
                self.num_repeated += part.start_position < self.ends.get(part.sequence_id, 0)
                self.ends[part.sequence_id] = part.start_position + len(part.tokens)
        return step is not None

    def complete(self) -> None:
        if not self.stages.steps:
            return
        step, sampled = self.stages.run_oldest()
        for token in self.scheduler.complete(
            step.step_id, sampled, num_restored=self.stages.num_restored
        ):
            self.given[token.sequence_id].append(plain(token))
            if token.finish_reason is not None:
                self.end(token.sequence_id)

    def end(self, sequence: SequenceId) -> None:
        """The conversation may be continued later."""
        request = self.requests[sequence]
        answer = [token for position, token, *_ in self.given[sequence]]
        self.prompts.append([*request.prompt_tokens, *answer[request.num_scores :]])

    def cancel(self) -> None:
        live = [each for each, given in self.given.items() if not given or not given[-1][-1]]
        if live:
            sequence = self.random.choice(live)
            self.cancelled.add(sequence)
            self.scheduler.cancel(sequence)

    def lose_stages(self) -> None:
        """Steps in flight are lost; the stages that follow hold nothing."""
        chunk = self.random.choice([7, 33, 64])
        self.limits = replace(self.limits, max_step_tokens=chunk, max_step_sequences=min(6, chunk))
        num_copies = self.stages.num_copies
        self.stages.close()
        self.stages = self._stages()
        self.stages.num_copies = num_copies
        self.scheduler.restart(self.limits)
        self.ends.clear()

    def finish(self) -> None:
        while self.form() or self.stages.steps:
            self.complete()


@pytest.mark.parametrize("num_stages", [1, 2])
@pytest.mark.parametrize("num_blocks", [11, 60])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("is_on_disk", [False, True])
def test_random_traffic(
    num_stages: int, num_blocks: int, seed: int, is_on_disk: bool, tmp_path: Path
) -> None:
    """On disk blocks outlive the stages, and there is not room for all."""
    traffic = Traffic(
        limits=limits_of(
            num_blocks=num_blocks, num_stages=num_stages, disk_salt=b"" if is_on_disk else None
        ),
        random=random.Random(f"{num_stages} {num_blocks} {seed}"),
        folder=tmp_path if is_on_disk else None,
    )
    events = [Traffic.add] * 2 + [Traffic.form] * 8 + [Traffic.complete] * 8
    events.append(Traffic.cancel)
    for number in range(NUM_EVENTS):
        traffic.random.choice(events)(traffic)
        if number % 100 == 99:
            traffic.lose_stages()
    traffic.finish()
    traffic.stages.close()
    for sequence, given in traffic.given.items():
        expected = alone(traffic.requests[sequence])
        if sequence in traffic.cancelled:
            expected = expected[: len(given)]
        assert given == expected, sequence
    scheduler = traffic.scheduler
    assert scheduler.num_free_blocks == num_blocks
    assert scheduler.num_sequences == 0
    totals = scheduler.prefix_totals
    assert totals.num_hits > 10, "or this shows nothing"
    assert is_on_disk or not totals.num_restored_tokens
    assert traffic.stages.num_copies > 0
    if num_blocks == 11:
        assert totals.num_evictions > 10
        assert traffic.num_repeated > 0, "or none was preempted"


@pytest.mark.parametrize("num_stages", [1, 2])
def test_stages_that_follow_read_from_disk_what_was_computed(
    num_stages: int, tmp_path: Path
) -> None:
    """Also for a sequence that was live when the stages before were lost."""
    traffic = Traffic(
        limits=limits_of(num_stages=num_stages, disk_salt=b"salt"),
        random=random.Random(0),
        folder=tmp_path,
    )
    prompt = tuple(traffic.prompts[0][:100])

    def ask(tokens: tuple[int, ...]) -> SequenceId:
        request = SequenceRequest(prompt_tokens=tokens, sampling=SAMPLINGS[1], max_new_tokens=40)
        sequence = traffic.scheduler.add(request)
        traffic.requests[sequence] = request
        traffic.given[sequence] = []
        return sequence

    def num_restored() -> int:
        return traffic.scheduler.prefix_totals.num_restored_tokens

    first = ask(prompt)
    while len(traffic.given[first]) < 20:
        traffic.form()
        traffic.complete()
    assert num_restored() == 0
    traffic.lose_stages()
    traffic.finish()
    assert num_restored() == 112, "the prompt and what was generated"
    traffic.lose_stages()
    second = ask((*prompt, 5, 6, 7))
    traffic.finish()
    assert num_restored() == 112 + 96
    traffic.stages.close()
    for sequence in (first, second):
        assert traffic.given[sequence] == alone(traffic.requests[sequence])


def test_a_second_turn_is_computed_from_where_it_differs() -> None:
    traffic = Traffic(limits=limits_of(), random=random.Random(0))
    prompt = tuple(traffic.prompts[0][:100])
    for tokens in (prompt, (*prompt, 5, 6, 7)):
        request = SequenceRequest(prompt_tokens=tokens, sampling=SAMPLINGS[0], max_new_tokens=1)
        sequence = traffic.scheduler.add(request)
        traffic.requests[sequence] = request
        traffic.given[sequence] = []
        traffic.finish()
        assert traffic.given[sequence] == alone(request)
    assert traffic.stages.num_tokens == 103
    assert traffic.stages.num_copies == 1
