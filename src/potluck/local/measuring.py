"""Measure prefill and decode of a model in this process, step by step.

Steps are formed as in the scheduler (whole prompts in sequence, and decodes of all sequences
distributed over the stages), and run by the stages' own threads. The figures do not include the
scheduler and the processing of tokens by clients. The maximum gain from drafts is measured with
drafts that are all right: the tokens of the previous decode.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from queue import SimpleQueue

from potluck.engines.native.engine import NativeEngine
from potluck.errors import ParameterError
from potluck.local.model import Model
from potluck.local.pipeline import LocalPipeline
from potluck.scheduling.blocks import blocks_for
from potluck.scheduling.frame_limits import MAX_STEP_SEQUENCES, sequences_in_step
from potluck.scheduling.pipeline import StepOutcome
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
"""The parameters of the sampled decode, which are typical for chat clients."""


DRAFTS_PER_STEP = 7
"""The number of drafts of the drafted decode: with the token before them they fill a tile of 8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The workload: ``num_sequences`` at a time, each after ``depth_tokens`` of context.

    Prefill computes ``prompt_tokens`` of each sequence, and decode takes ``decode_tokens`` steps of
    one token. Both begin at the same depth.
    """

    prompt_tokens: int
    decode_tokens: int
    depth_tokens: int
    num_sequences: int

    @property
    def sequence_tokens(self) -> int:
        """The maximum length of a sequence."""
        return self.depth_tokens + max(self.prompt_tokens, self.decode_tokens)

    @property
    def decode_end(self) -> int:
        """The position after the last token that decode computes."""
        return self.depth_tokens + self.decode_tokens

    @property
    def cache_tokens(self) -> int:
        """The positions of all sequences in the cache, in whole blocks."""
        return self.num_sequences * blocks_for(self.sequence_tokens) * KV_BLOCK_TOKENS

    @property
    def num_states(self) -> int:
        """The state slots for a model with state: two per sequence, one for after its context."""
        return self.num_sequences * (2 if self.depth_tokens else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRun:
    """One run of prefill or decode: tokens of all sequences, from the first step to the last.

    ``op_seconds`` are the times of all stages by op; None if an engine does not measure them.
    ``steps`` are the computed steps. ``num_accepted`` of the ``num_drafted`` drafts were right.
    """

    num_tokens: int
    seconds: float
    op_seconds: Mapping[str, float] | None
    steps: tuple[Step, ...]
    num_drafted: int = 0
    num_accepted: int = 0

    @property
    def tokens_per_second(self) -> float:
        """The rate of all sequences together."""
        return self.num_tokens / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Prefill, greedy decode after it, and then the same decode with ``SAMPLED``.

    ``drafted`` is the greedy decode again, with drafts that are right; None if not requested.
    """

    prefill: PhaseRun
    decode: PhaseRun
    sampled: PhaseRun
    drafted: PhaseRun | None = None


class Measurement:
    """Measures ``model``, which must not compute anything else meanwhile, and is not owned.

    ``model`` must have the cache and context that ``workload`` requires. Raise ``ParameterError``
    if the model has no head, and the errors of the stages. Close it before the model.
    """

    def __init__(self, model: Model, workload: Workload) -> None:
        if not model.description.config.has_logits:
            raise ParameterError(
                "model",
                "the model is not a text generation model, so there is nothing to measure",
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
        self._decoded: Mapping[SequenceId, Sequence[int]] = {}  # the tokens of the last decode
        self._outcomes: SimpleQueue[StepOutcome] = SimpleQueue()
        self._pipeline = LocalPipeline(self._engines, self._outcomes.put)

    def close(self) -> None:
        """End the threads and close the engines. Idempotent."""
        self._pipeline.close()

    def fill(self, on_progress: Callable[[float], None]) -> None:
        """Compute the context before the measured tokens. Called once, before the first run."""
        steps = [self._step(parts) for parts in self._chunks(0, self._workload.depth_tokens)]
        for number, step in enumerate(steps, 1):
            self._pipeline.submit(step)
            self._outcome()
            on_progress(number / len(steps))

    def run(self, *, drafts: bool = False) -> Run:
        """Prefill once and decode twice, or three times with ``drafts``."""
        prefill = self._prefill()
        decode = self._decode(_GREEDY)
        known = self._decoded if drafts else None
        return Run(
            prefill=prefill,
            decode=decode,
            sampled=self._decode(SAMPLED),
            drafted=None if known is None else self._decode(_GREEDY, known),
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

    def _decode(
        self,
        sampling: SamplingParams,
        known: Mapping[SequenceId, Sequence[int]] | None = None,
    ) -> PhaseRun:
        """Decode every sequence, with drafts if the resulting tokens are ``known``."""
        workload = self._workload
        first, end = workload.depth_tokens, workload.decode_end
        waiting = deque(self._groups())
        tokens = {
            SequenceId(index): list(each[: first + 1]) for index, each in enumerate(self._tokens)
        }
        computing: dict[StepId, tuple[SequenceId, ...]] = {}
        steps: list[Step] = []
        before = self._op_seconds()
        started = time.perf_counter()
        while waiting or computing:
            while waiting and len(computing) < len(self._engines):
                group = waiting.popleft()
                # The number of tokens of each sequence for which a step has room.
                room = self._max_step_tokens // len(group)
                parts = [self._decoding(each, tokens[each], known, room) for each in group]
                steps.append(self._decode_step(parts, sampling, can_close=known is None))
                computing[steps[-1].step_id] = group
                self._pipeline.submit(steps[-1])
            outcome = self._outcome()
            for sampled in outcome.sampled:
                tokens[sampled.sequence_id].append(sampled.token)
            group = computing.pop(outcome.step.step_id)
            if live := tuple(each for each in group if len(tokens[each]) <= end):
                waiting.append(live)
        seconds = time.perf_counter() - started
        self._decoded = {sequence: given[first + 1 :] for sequence, given in tokens.items()}
        num_verified = sum(len(part.tokens) for step in steps for part in step.slices)
        num_slices = sum(len(step.slices) for step in steps)
        run = self._phase(workload.num_sequences * workload.decode_tokens, seconds, before, steps)
        if known is None:
            return run
        self._pipeline.submit(self._step((), closed=tuple(tokens)))
        self._outcome()
        return replace(
            run, num_drafted=num_verified - num_slices, num_accepted=run.num_tokens - num_slices
        )

    def _decoding(
        self,
        sequence: SequenceId,
        tokens: Sequence[int],
        known: Mapping[SequenceId, Sequence[int]] | None,
        room: int,
    ) -> SequenceSlice:
        """Return a slice with the last of ``tokens`` and the known next tokens as drafts, ``room``
        tokens in total.
        """
        first, end = self._workload.depth_tokens, self._workload.decode_end
        position = len(tokens) - 1
        drafts: Sequence[int] = ()
        if known is not None:
            most = min(DRAFTS_PER_STEP, end - 1 - position, room - 1)
            drafts = known[sequence][position - first : position - first + most]
        return SequenceSlice(
            sequence_id=sequence,
            tokens=(tokens[-1], *drafts),
            start_position=position,
            block_table=self._block_table(sequence, position + 1 + len(drafts)),
            sample=True,
            num_drafts=len(drafts),
            state=self._slot(sequence),
        )

    def _decode_step(
        self, parts: Sequence[SequenceSlice], sampling: SamplingParams, *, can_close: bool
    ) -> Step:
        first, last = self._workload.depth_tokens, self._workload.decode_end - 1
        return self._step(
            parts,
            opened=tuple(
                _opening(part.sequence_id, sampling)
                for part in parts
                if part.start_position == first
            ),
            closed=tuple(
                part.sequence_id for part in parts if can_close and part.start_position == last
            ),
        )

    def _groups(self) -> Iterator[tuple[SequenceId, ...]]:
        """Yield the sequences that decode together, one group per stage, as in the scheduler."""
        num_sequences = self._workload.num_sequences
        share = -(-num_sequences // len(self._engines))
        share = min(share, sequences_in_step(self._max_step_tokens))
        for start in range(0, num_sequences, share):
            indices = range(start, min(start + share, num_sequences))
            yield tuple(SequenceId(index) for index in indices)

    def _chunks(self, start: int, end: int) -> Iterator[list[SequenceSlice]]:
        """Yield positions ``[start, end)`` of every sequence in steps; ends of prompts sample."""
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
        """Return the state slot of a sequence, or the one with its state after its context."""
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
