"""Prefill and decode of a model in this process, timed step by step.

Steps are formed as the scheduler forms them (whole prompts one after another, decodes of all
sequences shared among the stages), and run by the stages' own threads. The scheduler, and whatever
a client does with tokens, is not in the figures.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from potluck.engines.native import NativeEngine
from potluck.errors import ParameterError
from potluck.local.model import Model
from potluck.local.pipeline import LocalPipeline
from potluck.scheduling import MAX_STEP_SEQUENCES
from potluck.scheduling.blocks import blocks_for
from potluck.serving.pipeline import StepOutcome
from potluck.types.step import (
    KV_BLOCK_TOKENS,
    SamplingParams,
    SequenceId,
    SequenceOpening,
    SequenceSlice,
    StateCopy,
    Step,
    StepId,
)

_GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95)
"""Of the decode that draws its tokens, as chat clients ask for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is measured: ``num_sequences`` at a time, each after ``depth_tokens`` of context.

    Prefill computes ``prompt_tokens`` of each, decode takes ``decode_tokens`` steps of one token.
    Both begin at the same depth.
    """

    prompt_tokens: int
    decode_tokens: int
    depth_tokens: int
    num_sequences: int

    @property
    def sequence_tokens(self) -> int:
        """The longest that a sequence gets."""
        return self.depth_tokens + max(self.prompt_tokens, self.decode_tokens)

    @property
    def cache_tokens(self) -> int:
        """What all sequences together hold in the cache, in whole blocks."""
        return self.num_sequences * blocks_for(self.sequence_tokens) * KV_BLOCK_TOKENS

    @property
    def num_states(self) -> int:
        """State slots for a model with state: of each sequence, and of each after its context."""
        return self.num_sequences * (2 if self.depth_tokens else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRun:
    """One run of prefill or decode: tokens of all sequences, from the first step to the last.

    ``op_seconds`` by op of all stages together; None where an engine does not count them. ``steps``
    are what was computed.
    """

    num_tokens: int
    seconds: float
    op_seconds: Mapping[str, float] | None
    steps: tuple[Step, ...]

    @property
    def tokens_per_second(self) -> float:
        """Of all sequences together."""
        return self.num_tokens / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Prefill, and greedy decode after it; then the same decode with ``SAMPLED``."""

    prefill: PhaseRun
    decode: PhaseRun
    sampled: PhaseRun


class Measurement:
    """Measures ``model``, which must not compute anything else meanwhile and is its owner's.

    ``model`` was opened for the cache and context that ``workload`` needs. Raises
    ``ParameterError`` for a model without a head, and what the stages raise. Close it before the
    model.
    """

    def __init__(self, model: Model, workload: Workload) -> None:
        if not model.description.config.has_logits:
            raise ParameterError(
                "model",
                "the model has no head: it generates nothing that could be measured",
                hint="measure a model that generates text",
            )
        self._workload = workload
        self._engines = [stage.engine for stage in model.stages]
        self._native = [each for each in self._engines if isinstance(each, NativeEngine)]
        for engine in self._native:
            engine.time_ops()
        self._max_step_tokens = model.plan.size.max_step_tokens
        self._has_states = model.plan.size.num_states > 0
        draw = random.Random(0)  # the same tokens in every run
        vocab_size = model.description.config.vocab_size
        self._tokens = [
            tuple(draw.randrange(vocab_size) for _ in range(workload.sequence_tokens))
            for _ in range(workload.num_sequences)
        ]
        self._num_steps = 0
        self._outcomes: SimpleQueue[StepOutcome] = SimpleQueue()
        self._pipeline = LocalPipeline(self._engines, self._outcomes.put)

    def close(self) -> None:
        """End the threads, and with them the engines. Idempotent."""
        self._pipeline.close()

    def fill(self, on_progress: Callable[[float], None]) -> None:
        """Compute the context that comes before what is measured. Once, before the first run."""
        steps = [self._step(parts) for parts in self._chunks(0, self._workload.depth_tokens)]
        for number, step in enumerate(steps, 1):
            self._pipeline.submit(step)
            self._outcome()
            on_progress(number / len(steps))

    def run(self) -> Run:
        """Prefill once and decode twice."""
        return Run(
            prefill=self._prefill(), decode=self._decode(_GREEDY), sampled=self._decode(SAMPLED)
        )

    def _prefill(self) -> PhaseRun:
        workload = self._workload
        end = workload.depth_tokens + workload.prompt_tokens
        steps = []
        for parts in self._chunks(workload.depth_tokens, end):
            ended = [part.sequence_id for part in parts if part.sample]
            opened = tuple(_opening(sequence, _GREEDY) for sequence in ended)
            steps.append(self._step(parts, opened=opened, closed=tuple(ended)))
        before = self._op_seconds()
        started = time.perf_counter()
        for step in steps:
            self._pipeline.submit(step)
        for _ in steps:
            self._outcome()
        seconds = time.perf_counter() - started
        num_tokens = workload.num_sequences * workload.prompt_tokens
        return self._phase(num_tokens, seconds, before, steps)

    def _decode(self, sampling: SamplingParams) -> PhaseRun:
        workload = self._workload
        waiting = deque(self._groups())
        position = dict.fromkeys(waiting, workload.depth_tokens)
        tokens = {
            SequenceId(index): known[workload.depth_tokens]
            for index, known in enumerate(self._tokens)
        }
        computing: dict[StepId, tuple[SequenceId, ...]] = {}
        steps: list[Step] = []
        before = self._op_seconds()
        started = time.perf_counter()
        while waiting or computing:
            while waiting and len(computing) < len(self._engines):
                group = waiting.popleft()
                steps.append(self._decode_step(group, position[group], tokens, sampling))
                computing[steps[-1].step_id] = group
                self._pipeline.submit(steps[-1])
            outcome = self._outcome()
            tokens.update((each.sequence_id, each.token) for each in outcome.sampled)
            group = computing.pop(outcome.step.step_id)
            position[group] += 1
            if position[group] < workload.depth_tokens + workload.decode_tokens:
                waiting.append(group)
        seconds = time.perf_counter() - started
        num_tokens = workload.num_sequences * workload.decode_tokens
        return self._phase(num_tokens, seconds, before, steps)

    def _decode_step(
        self,
        group: tuple[SequenceId, ...],
        position: int,
        tokens: Mapping[SequenceId, int],
        sampling: SamplingParams,
    ) -> Step:
        first = self._workload.depth_tokens
        last = first + self._workload.decode_tokens - 1
        parts = [
            SequenceSlice(
                sequence_id=sequence,
                tokens=(tokens[sequence],),
                start_position=position,
                block_table=self._block_table(sequence, position + 1),
                sample=True,
                state=self._slot(sequence),
            )
            for sequence in group
        ]
        return self._step(
            parts,
            opened=tuple(_opening(each, sampling) for each in group) if position == first else (),
            closed=group if position == last else (),
        )

    def _groups(self) -> Iterator[tuple[SequenceId, ...]]:
        """The sequences that decode together: a share for each stage, as the scheduler has it."""
        num_sequences = self._workload.num_sequences
        share = -(-num_sequences // len(self._engines))
        share = min(share, MAX_STEP_SEQUENCES, self._max_step_tokens)
        for start in range(0, num_sequences, share):
            indices = range(start, min(start + share, num_sequences))
            yield tuple(SequenceId(index) for index in indices)

    def _chunks(self, start: int, end: int) -> Iterator[list[SequenceSlice]]:
        """Positions ``[start, end)`` of every sequence in steps; with a prompt's end it samples."""
        parts: list[SequenceSlice] = []
        budget = self._max_step_tokens
        samples = start == self._workload.depth_tokens
        for index, known in enumerate(self._tokens):
            position = start
            while position < end:
                count = min(budget, end - position)
                parts.append(
                    SequenceSlice(
                        sequence_id=SequenceId(index),
                        tokens=known[position : position + count],
                        start_position=position,
                        block_table=self._block_table(SequenceId(index), position + count),
                        sample=samples and position + count == end,
                        state=self._slot(SequenceId(index), is_context=not samples),
                    )
                )
                position += count
                budget -= count
                if budget == 0 or len(parts) == MAX_STEP_SEQUENCES:
                    yield parts
                    parts, budget = [], self._max_step_tokens
        if parts:
            yield parts

    def _block_table(self, sequence: SequenceId, end: int) -> tuple[int, ...]:
        first = sequence * blocks_for(self._workload.sequence_tokens)
        return tuple(range(first, first + blocks_for(end)))

    def _slot(self, sequence: SequenceId, *, is_context: bool = False) -> int | None:
        """The state slot of a sequence, or the one that keeps its state after its context."""
        if not self._has_states:
            return None
        return sequence + (self._workload.num_sequences if is_context else 0)

    def _step(
        self,
        parts: Sequence[SequenceSlice],
        *,
        opened: tuple[SequenceOpening, ...] = (),
        closed: tuple[SequenceId, ...] = (),
    ) -> Step:
        self._num_steps += 1
        depth = self._workload.depth_tokens
        copies = [
            StateCopy(source=context, target=part.state)
            for part in parts
            if 0 < depth == part.start_position
            and part.state is not None
            and (context := self._slot(part.sequence_id, is_context=True)) is not None
        ]
        return Step(
            step_id=StepId(self._num_steps),
            slices=tuple(parts),
            opened=opened,
            closed=closed,
            state_copies=tuple(copies),
        )

    def _outcome(self) -> StepOutcome:
        outcome = self._outcomes.get()
        if outcome.error is not None:
            raise outcome.error
        return outcome

    def _op_seconds(self) -> Mapping[str, float] | None:
        if len(self._native) < len(self._engines):
            return None
        total: dict[str, float] = {}
        for engine in self._native:
            for op, seconds in engine.op_seconds().items():
                total[op] = total.get(op, 0.0) + seconds
        return total

    def _phase(
        self,
        num_tokens: int,
        seconds: float,
        before: Mapping[str, float] | None,
        steps: Sequence[Step],
    ) -> PhaseRun:
        after = self._op_seconds()
        op_seconds = None
        if before is not None and after is not None:
            op_seconds = {name: after[name] - before[name] for name in after}
        return PhaseRun(
            num_tokens=num_tokens, seconds=seconds, op_seconds=op_seconds, steps=tuple(steps)
        )


def _opening(sequence: SequenceId, sampling: SamplingParams) -> SequenceOpening:
    return SequenceOpening(sequence_id=sequence, sampling=sampling, prompt_tokens=())
