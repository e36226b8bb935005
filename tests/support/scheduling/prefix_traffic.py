"""Random traffic over real engines, and what every sequence is given when it is alone.

Prompts that begin alike or continue earlier answers, forks that arrive together, cancellations in
the middle, preemption for want of blocks, and lost stages.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from support.engines.native_pipeline import VOCAB_SIZE, Pipeline, cut, make_program, small_config
from support.engines.pools import pool_of
from support.models.canonical_weights import load_canonical_weights
from support.models.recurrent_configs import RECURRENCES

from potluck.cluster.worker.block_keeper import BlockKeeper, open_stores
from potluck.engines.native.engine import NativeEngine
from potluck.models.layers import with_layers
from potluck.scheduling.limits import SchedulerLimits
from potluck.scheduling.scheduler import Scheduler
from potluck.types.model import LayerConfig, ModelConfig
from potluck.types.sequence import CommittedToken, SequenceRequest
from potluck.types.step import SampledToken, SamplingParams, SequenceId, Step
from potluck.types.tensor import TensorFormat

NUM_LAYERS = 3
CONTEXT_TOKENS = 160

SAMPLINGS = (
    SamplingParams(temperature=0.0, logprobs=True, top_logprobs=2),
    SamplingParams(
        temperature=0.9, top_p=0.9, repetition_penalty=1.3, seed=3, logprobs=True, top_logprobs=3
    ),
)


def hybrid_config() -> ModelConfig:
    """As ``small_config``, but with a recurrence instead of attention in two of three layers."""
    recurrences = {0: RECURRENCES["gated_delta"], 2: RECURRENCES["mamba"]}

    def changed(index: int, layer: LayerConfig) -> LayerConfig:
        if index not in recurrences:
            return layer
        return replace(layer, attention=None, recurrence=recurrences[index])

    return with_layers(small_config(NUM_LAYERS), changed)


def engines_of(num_stages: int, num_blocks: int, num_states: int) -> list[NativeEngine]:
    """Return the stages of a small model: of one with state if there are ``num_states``."""
    if not num_states:
        return Pipeline.make(
            small_config(NUM_LAYERS),
            TensorFormat.Q4_K,
            num_stages=num_stages,
            num_blocks=num_blocks,
        ).engines
    engines = []
    pool = pool_of(1)
    for shard in cut(NUM_LAYERS, num_stages):
        program = make_program(hybrid_config(), shard)
        engine = NativeEngine(
            program, num_blocks=num_blocks, num_states=num_states, max_step_tokens=64, pool=pool
        )
        load_canonical_weights(engine, program)
        engines.append(engine)
    return engines


def limits_of(
    *,
    num_blocks: int = 24,
    chunk: int = 40,
    num_stages: int = 1,
    has_cache: bool = True,
    disk_salt: bytes | None = None,
    num_states: int = 0,
) -> SchedulerLimits:
    return SchedulerLimits(
        num_blocks=num_blocks,
        context_tokens=CONTEXT_TOKENS,
        max_step_tokens=chunk,
        max_step_sequences=min(6, chunk),
        max_steps_in_flight=num_stages,
        has_prefix_cache=has_cache,
        disk_salt=disk_salt,
        num_states=num_states,
    )


@dataclass
class Stages:
    """Engines that run steps when they are told, and count what they compute.

    Each keeps blocks on disk if there is a ``folder``.
    """

    num_stages: int
    num_blocks: int
    num_states: int = 0
    steps: deque[Step] = field(default_factory=deque)
    num_tokens: int = 0
    num_copies: int = 0
    num_state_copies: int = 0
    folder: Path | None = None

    def __post_init__(self) -> None:
        self.engines = engines_of(self.num_stages, self.num_blocks, self.num_states)
        self.keepers = [] if self.folder is None else self._keepers(self.folder)
        self.num_restored = self.state_end = 0

    def _keepers(self, folder: Path) -> list[BlockKeeper]:
        keepers = []
        for index, engine in enumerate(self.engines):
            size = engine.block_format
            limit_bytes = 80 * max(size.num_bytes, size.state_bytes)
            keepers.append(open_stores(engine, size, folder, f"stage-{index}", limit_bytes))
        return keepers

    def close(self) -> None:
        for keeper in self.keepers:
            keeper.close()

    def run_oldest(self) -> tuple[Step, tuple[SampledToken, ...]]:
        step, hidden = self.steps.popleft(), None
        self.num_restored = len(step.restores)
        ends = tuple(range(1, self.num_restored + 1)) if step.restored_state is not None else ()
        for keeper in self.keepers:
            keeper.save(step.saves)
            keeper.save_states(step.state_saves)
            while keeper.num_queued:  # or what is restored would be left to chance
                time.sleep(0.0002)
            self.num_restored = keeper.restore(step.restores[: self.num_restored])
            if step.restored_state is not None:
                hashes = {
                    end: step.restores[end - 1].hash for end in ends if end <= self.num_restored
                }
                ends = tuple(keeper.restore_state(step.restored_state, hashes))
        self.state_end = max(ends, default=0)
        if step.restores:
            return step, ()
        for engine in self.engines:
            result = engine.step(step, hidden)
            hidden = result.hidden
        self.num_tokens += step.num_tokens
        self.num_copies += len(step.copies)
        self.num_state_copies += len(step.state_copies)
        return step, result.sampled


Plain = tuple[int, int, float | None, tuple[tuple[int, float], ...], bool]


def plain(token: CommittedToken) -> Plain:
    top = tuple((each.token, each.logprob) for each in token.top)
    return token.position, token.token, token.logprob, top, token.finish_reason is not None


@cache
def alone_stages(num_states: int) -> Stages:
    return Stages(num_stages=1, num_blocks=10, num_states=num_states)


@cache
def alone(request: SequenceRequest, *, has_state: bool = False) -> list[Plain]:
    """What the request is given when it is the only one, and nothing is cached."""
    num_states = 1 if has_state else 0
    stages = alone_stages(num_states)
    scheduler = Scheduler(limits_of(num_blocks=10, has_cache=False, num_states=num_states))
    for engine in stages.engines:
        engine.reset()
    scheduler.add(request)
    given: list[Plain] = []
    while (step := scheduler.next_step()) is not None:
        assert step.copies == ()
        assert step.state_copies == ()
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
            num_states=self.limits.num_states,
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
            step.step_id,
            sampled,
            num_restored=self.stages.num_restored,
            state_end=self.stages.state_end,
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
        before = self.stages
        before.close()
        self.stages = self._stages()
        self.stages.num_copies = before.num_copies
        self.stages.num_state_copies = before.num_state_copies
        self.scheduler.restart(self.limits)
        self.ends.clear()

    def finish(self) -> None:
        while self.form() or self.stages.steps:
            self.complete()
