"""A model cut into stages that run one after another in this process, with any engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from support.engines.pools import pool_of
from support.engines.proofs import PROOFS
from support.reference.engine import ReferenceEngine

from potluck.engines.dequantize import dequantize
from potluck.engines.native.engine import NativeEngine
from potluck.models.names import FileKind
from potluck.models.program import build_program
from potluck.models.registry import stored_weights
from potluck.models.rope import rope_tables
from potluck.types.engine import NO_MASKS, Engine, StepResult
from potluck.types.model import ModelConfig
from potluck.types.program import Program, Shard
from potluck.types.step import (
    KV_BLOCK_TOKENS,
    SequenceId,
    SequenceOpening,
    SequenceSlice,
    StateCopy,
    Step,
    StepId,
)
from potluck.types.tensor import StoredTensor, TensorSource
from potluck.weights.canonical import CanonicalSource

if TYPE_CHECKING:
    from potluck.types.engine import TokenMasks

NUM_STATES = 16
"""Slots for states: more than any test has sequences, so that some can hold checkpoints."""

EngineFactory = Callable[[Program, int], Engine]
"""Makes an engine for a program and a number of cache blocks, with ``NUM_STATES`` slots."""


def reference_engine(program: Program, num_blocks: int) -> Engine:
    """The factory of the reference engine."""
    return ReferenceEngine(program, num_blocks=num_blocks, num_states=NUM_STATES)


def native_engine(program: Program, num_blocks: int) -> Engine:
    """The native engine in this thread."""
    return NativeEngine(
        program,
        num_blocks=num_blocks,
        num_states=NUM_STATES,
        max_step_tokens=64,
        pool=pool_of(1),
    )


def cut(num_layers: int, boundaries: Sequence[int]) -> list[Shard]:
    """Shards that begin at 0 and at every boundary: ``cut(4, [0, 3])`` is ``[0,0) [0,3) [3,4)``."""
    starts, ends = [0, *boundaries], [*boundaries, num_layers]
    last = len(boundaries)
    return [
        Shard(
            start_layer=start,
            end_layer=end,
            num_layers=num_layers,
            has_embedding=index == 0,
            has_head=index == last,
        )
        for index, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def load_weights(
    engine: Engine, tensors: Sequence[StoredTensor], source: TensorSource, *, rows_at_once: int = 7
) -> None:
    """Feed an engine a few rows at a time."""
    sink, canonical = engine.sink(), CanonicalSource(source, tensors, dequantize=dequantize)
    for tensor in tensors:
        name = tensor.canonical_name
        info = canonical.info(name)
        sink.begin(info)
        for start in range(0, info.num_rows, rows_at_once):
            end = min(start + rows_at_once, info.num_rows)
            data = bytearray((end - start) * info.row_bytes)
            canonical.read_rows(name, start, end, memoryview(data))
            sink.write_rows(name, start, end, memoryview(data))
        sink.finish(name)


def _engine_name(engine: Engine) -> str:
    return type(engine).__name__.removesuffix("Engine").lower()


class Stages:
    """The stages of one model, and blocks for several sequences.

    Blocks are handed out in a scattered order, so that an engine which ignores block tables fails.
    """

    def __init__(
        self,
        config: ModelConfig,
        source: TensorSource,
        *,
        boundaries: Sequence[int] = (),
        context_tokens: int = 256,
        num_sequences: int = 8,
        file_kind: FileKind = FileKind.HUGGING_FACE,
        engine_factory: EngineFactory = reference_engine,
        rows_at_once: int = 45,
    ) -> None:
        self._blocks_per_sequence = -(-context_tokens // KV_BLOCK_TOKENS)
        num_blocks = num_sequences * self._blocks_per_sequence
        self._block_order = np.random.default_rng(7).permutation(num_blocks).tolist()
        self._num_steps = 0
        self._has_states = any(layer.recurrence is not None for layer in config.layers)
        self._engines: list[Engine] = []
        rope = rope_tables(config, context_tokens)
        for shard in cut(config.num_layers, boundaries):
            program = build_program(config, shard, context_tokens=context_tokens, ropes=rope)
            engine = engine_factory(program, num_blocks)
            tensors = stored_weights(config, program.weights, file_kind)
            load_weights(engine, tensors, source, rows_at_once=rows_at_once)
            self._engines.append(engine)
            PROOFS.note(config, file_kind, _engine_name(engine))

    def __enter__(self) -> Stages:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for engine in self._engines:
            engine.close()

    def slice(
        self, sequence: int, tokens: Sequence[int], start_position: int = 0, *, sample: bool = True
    ) -> SequenceSlice:
        """New tokens of sequence number ``sequence`` (from 0), in its own blocks and slot."""
        first = sequence * self._blocks_per_sequence
        return SequenceSlice(
            sequence_id=SequenceId(sequence),
            tokens=tuple(tokens),
            start_position=start_position,
            block_table=tuple(self._block_order[first : first + self._blocks_per_sequence]),
            sample=sample,
            state=sequence if self._has_states else None,
        )

    def logits(
        self, *slices: SequenceSlice, state_copies: Sequence[StateCopy] = ()
    ) -> NDArray[np.float32]:
        """``[num_sampled, vocab]`` of one step through all stages."""
        step, hidden = self._before_last(slices, (), state_copies)
        return self._engines[-1].logits(step, hidden)

    def step(
        self,
        *slices: SequenceSlice,
        opened: Sequence[SequenceOpening] = (),
        masks: TokenMasks = NO_MASKS,
    ) -> StepResult:
        """One step through all stages."""
        step, hidden = self._before_last(slices, opened)
        return self._engines[-1].step(step, hidden, masks)

    def logits_at_all_positions(
        self, tokens: Sequence[int], *, sequence: int = 0
    ) -> NDArray[np.float32]:
        """``[len(tokens), vocab]``, one token a step."""
        rows = [
            self.logits(self.slice(sequence, [token], position))
            for position, token in enumerate(tokens)
        ]
        return np.concatenate(rows)

    def greedy(self, prompt: Sequence[int], num_tokens: int, *, sequence: int = 0) -> list[int]:
        """The most likely continuation of a prompt that is prefilled in one step."""
        tokens = list(prompt)
        start = 0
        for _ in range(num_tokens):
            logits = self.logits(self.slice(sequence, tokens[start:], start))
            start = len(tokens)
            tokens.append(int(logits[0].argmax()))
        return tokens[len(prompt) :]

    def _before_last(
        self,
        slices: Sequence[SequenceSlice],
        opened: Sequence[SequenceOpening],
        state_copies: Sequence[StateCopy] = (),
    ) -> tuple[Step, NDArray[np.float32] | None]:
        step = Step(
            step_id=StepId(self._num_steps),
            slices=tuple(slices),
            opened=tuple(opened),
            state_copies=tuple(state_copies),
        )
        self._num_steps += 1
        hidden: NDArray[np.float32] | None = None
        for engine in self._engines[:-1]:
            hidden = engine.step(step, hidden).hidden
        return step, hidden
