"""The native engine: programs on the CPU, in the compiled core.

Its results are bit-identical for any batch size, chunking, number of threads and cut between
stages; in exact arithmetic also for any instruction set (docs/adr/0004, 0026).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

from potluck import kernels
from potluck.engines.dequantize import dequantize
from potluck.engines.native.products import Operands, operands_of
from potluck.engines.native.program import (
    core_errors,
    core_masks,
    core_opening,
    core_program,
    core_slice,
    label_of,
    pooled_token,
    sampled_token,
)
from potluck.engines.step_checks import check_masks
from potluck.errors import DEFECT_HINT, EngineError, ParameterError
from potluck.kernels import runner
from potluck.types.arithmetic import Arithmetic
from potluck.types.engine import NO_MASKS, BlockFormat, ExpertUse, StepResult
from potluck.types.sampling import validate_sampling
from potluck.types.tensor import TensorFormat

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from potluck.engines.native.pool import ThreadPool
    from potluck.types.engine import Exchange, TokenMasks
    from potluck.types.program import Program
    from potluck.types.step import SequenceId, Step
    from potluck.types.tensor import TensorInfo, TensorSink
    from potluck.weights.load import Convert

    Floats = NDArray[np.float32]

_log = logging.getLogger(__name__)

PANEL_ROWS = 16
"""``kPanelRows`` of ``cpp/kernels/kernels.h``."""

BLOCK_LAYOUT = 1
"""Version of the layout of keys and values within a block (``AttentionArgs``) and of states within
a slot (``StateLayout``): incremented when it changes."""

_DECODED_VALUES = 2**18
"""Maximum size of rows converted at once from a format without kernels: 1 MiB of float32, or one
row if that is longer."""


def available_isas() -> tuple[str, ...]:
    """Return the instruction sets that this build has and this machine reports, slowest first."""
    return tuple(kernels.available_isas())


def choose_isa(isa_name: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """Return the instruction set requested by argument or ``POTLUCK_ISA``, or else the fastest.

    An instruction set that is reported but does not work is skipped with a warning. Raises
    ``ParameterError`` if the requested one is not in ``available_isas()`` or does not work.
    """
    if isa := isa_name or environment.get("POTLUCK_ISA"):
        _require_available(isa)
        if problem := _problem(isa):
            raise ParameterError(
                "isa",
                f"the instruction set '{isa}' does not work here: {problem}",
                hint="omit it to use the fastest one that works",
            )
        return isa
    *others, isa = available_isas()
    while others and (problem := _problem(isa)):
        _log.warning(
            "the instruction set %s does not work here, so %s is used: %s",
            isa,
            others[-1],
            problem,
        )
        isa = others.pop()
    return isa


@cache
def _problem(isa: str) -> str:
    """See ``kernels.isa_problem``; cached per process."""
    return kernels.isa_problem(isa)


def _require_available(isa: str) -> None:
    if isa not in available_isas():
        raise ParameterError(
            "isa",
            f"the instruction set '{isa}' is not available here",
            hint=f"available: {', '.join(available_isas())}",
        )


def loaded_bytes(info: TensorInfo) -> int:
    """Return the size of a loaded weight: matrices in panels of rows, vectors as float32."""
    if len(info.shape) == 1:
        return info.num_columns * 4
    num_panels = -(-info.num_rows // PANEL_ROWS)
    return num_panels * kernels.panel_bytes(info.format.label, info.num_columns)


def convert_on(pool: ThreadPool) -> Convert:
    """Convert rows from one format to another, on all threads of ``pool``.

    Formats without kernels are first converted to float32 by ``engines/dequantize``, some rows at a
    time.
    """
    return partial(_convert, pool)


def _convert(
    pool: ThreadPool,
    rows: memoryview,
    stored: TensorFormat,
    out: memoryview,
    loaded: TensorFormat,
    num_rows: int,
    num_columns: int,
) -> None:
    if stored.has_kernels:
        pool.follow_cores()
        with core_errors("the weights are damaged: download or convert the model again"):
            kernels.convert_rows(rows, stored.label, loaded.label, num_rows, num_columns, out, pool)
        return
    step = max(1, _DECODED_VALUES // num_columns)
    read, written = stored.row_bytes(num_columns), loaded.row_bytes(num_columns)
    for start in range(0, num_rows, step):
        num_some = min(step, num_rows - start)
        values = dequantize(rows[start * read :][: num_some * read], stored, num_columns)
        part = out[start * written :][: num_some * written]
        data = values.data.cast("B")
        _convert(pool, data, TensorFormat.F32, part, loaded, num_some, num_columns)


class NativeEngine:
    """One stage (see ``Engine``).

    ``num_blocks`` cache blocks, ``num_states`` state slots and scratch memory for steps of up to
    ``max_step_tokens`` are allocated here, weights as they arrive. ``isa`` is one of
    ``available_isas()``, used without testing it; None means that of ``choose_isa``. A fast
    ``arithmetic`` requires the instruction set that it is named after; ``ParameterError`` is raised
    for another one. A call during another thread's call raises ``EngineError``.
    """

    def __init__(
        self,
        program: Program,
        *,
        num_blocks: int,
        max_step_tokens: int,
        pool: ThreadPool,
        isa: str | None = None,
        arithmetic: Arithmetic = Arithmetic.EXACT,
        num_states: int = 0,
    ) -> None:
        self._program = program
        self.isa = choose_isa(None) if isa is None else isa
        _require_available(self.isa)
        if arithmetic.isa not in (None, self.isa):
            raise ParameterError(
                "arithmetic",
                f"the instruction set {self.isa} does not support {arithmetic.value} arithmetic",
                hint=f"use {arithmetic.value}, or exact arithmetic",
            )
        self.pool = pool
        self.arithmetic = arithmetic
        self.weights: dict[str, TensorInfo] = {}
        """The weights received so far, in the formats in which they are stored."""
        self._exchange: Exchange | None = None
        self._sequences: set[SequenceId] = set()  # that may be open in the core
        with core_errors():
            self._open_stage: runner.Stage | None = runner.Stage(
                program=core_program(program),
                isa=self.isa,
                pool=pool,
                num_blocks=num_blocks,
                num_states=num_states,
                max_step_tokens=max_step_tokens,
                is_fast=arithmetic is not Arithmetic.EXACT,
            )

    @property
    def weights_bytes(self) -> int:
        """The memory of the weights received so far."""
        return self._stage.weights_bytes

    @property
    def mapped_bytes(self) -> int:
        """The size of the weights that are used in place."""
        return self._stage.mapped_bytes

    @property
    def expert_use(self) -> ExpertUse:
        """See ``LoadableEngine``. Any thread may call it."""
        num_used, num_in_memory = self._stage.expert_use
        return ExpertUse(num_used=num_used, num_in_memory=num_in_memory)

    def sink(self) -> TensorSink:
        """Return a sink for matrices in every format, and for vectors in F32, F16 or BF16."""
        return _NativeSink(self)

    def join_group(self, exchange: Exchange | None) -> None:
        """See ``LoadableEngine``."""
        self._exchange = exchange

    def warm_up(self) -> None:
        """See ``LoadableEngine``: kernels are compiled in advance."""

    def map_weight(self, info: TensorInfo, data: NDArray[np.uint8]) -> None:
        """Use ``data`` in place; its address must be a multiple of 64.

        It is the output of ``PackingSink`` for ``info``, of ``loaded_bytes(info)`` bytes. The
        engine refers to it until it is closed, and prefetches it.
        """
        with core_errors("the model's files do not match its configuration: download them again"):
            self._stage.map_weight(info.name, info.shape, info.format.label, data)
        self.weights[info.name] = info

    def time_ops(self) -> None:
        """Start measuring the time of ops. It adds about 25 ns per op to a step."""
        with core_errors():
            self._stage.time_ops()

    def operands(self, *, of_prompts: bool) -> Mapping[TensorFormat, Operands]:
        """Return the arithmetic of products with matrices of each loaded format, for prompts or
        decodes.
        """
        formats = {info.format for info in self.weights.values() if len(info.shape) > 1}
        return {
            each: operands_of(
                each,
                is_fast=each in self.arithmetic.fast_formats
                and (of_prompts or not each.is_quantized),
            )
            for each in formats
        }

    def op_seconds(self) -> Mapping[str, float]:
        """Return the times since ``time_ops``, by the labels of ``op_labels`` and for ``sampling``.

        Work outside of ops is not included. Must not be called while a step runs.
        """
        with core_errors():
            parts, sampling_seconds = self._stage.times()
        seconds: dict[str, float] = {}
        for part in parts:
            label = label_of(self._program.ops[part.first_op : part.end_op])
            seconds[label] = seconds.get(label, 0.0) + part.seconds
        if self._program.shard.has_head:
            seconds["sampling"] = sampling_seconds
        return seconds

    def op_labels(self) -> tuple[str, ...]:
        """Return the label under which ``op_seconds`` counts each op of the program: ops that run
        together are one.
        """
        with core_errors():
            parts, _ = self._stage.times()
        ops = self._program.ops
        labels = [""] * len(ops)
        for part in parts:
            together = slice(part.first_op, part.end_op)
            labels[together] = [label_of(ops[together])] * len(ops[together])
        return tuple(labels)

    def step(self, step: Step, hidden: Floats | None, masks: TokenMasks = NO_MASKS) -> StepResult:
        """Run the program once (see ``Engine``).

        Raises ``ParameterError`` for invalid sampling parameters, and ``EngineError``, with the
        step's tokens in the cache, if the model's logits or vectors are not finite.
        """
        stage = self._stage
        check_masks(self._program, step, masks)
        self._open_sequences(step)
        self.pool.follow_cores()
        out = None
        if not (self._program.shard.has_head or self._program.shard.is_led):
            out = np.empty((step.num_tokens, self._program.hidden_size), dtype=np.float32)
        with core_errors():
            sampled, vectors = stage.step(
                slices=[core_slice(part) for part in step.slices],
                opened=[core_opening(opening) for opening in step.opened],
                closed=step.closed,
                copies=[(copy.source, copy.target) for copy in step.copies],
                state_copies=[(copy.source, copy.target) for copy in step.state_copies],
                masks=core_masks(masks),
                hidden=_as_contiguous_f32(hidden),
                out=out,
                exchange=self._exchange,
            )
        self._sequences.difference_update(step.closed)
        results = (*map(sampled_token, sampled), *map(pooled_token, vectors))
        return StepResult(hidden=out, sampled=results)

    def logits(self, step: Step, hidden: Floats | None) -> Floats:
        """Like ``step`` without sampling, so that sequences need not have been opened.

        All members of a group compute it, but only the leader gets logits.
        """
        stage = self._stage
        self._open_sequences(step)
        self.pool.follow_cores()
        num_rows = 0 if self._program.shard.is_led else step.num_wanted
        out = np.empty((num_rows, self._program.vocab_size), dtype=np.float32)
        with core_errors():
            stage.logits(
                slices=[core_slice(part) for part in step.slices],
                opened=[core_opening(opening) for opening in step.opened],
                closed=step.closed,
                copies=[(copy.source, copy.target) for copy in step.copies],
                state_copies=[(copy.source, copy.target) for copy in step.state_copies],
                hidden=_as_contiguous_f32(hidden),
                out=out,
                exchange=self._exchange,
            )
        self._sequences.difference_update(step.closed)
        return out

    @property
    def block_format(self) -> BlockFormat:
        """See ``LoadableEngine``. In float arithmetic it depends on the instruction set."""
        return BlockFormat(
            name=f"native-{BLOCK_LAYOUT}/{self.isa}/{self.arithmetic.value}",
            num_bytes=self._stage.block_bytes,
            state_bytes=self._stage.state_bytes,
        )

    def read_blocks(self, blocks: Sequence[int]) -> NDArray[np.uint8]:
        """See ``LoadableEngine``."""
        stage = self._stage
        data = np.empty((len(blocks), stage.block_bytes), dtype=np.uint8)
        with core_errors():
            stage.read_blocks(blocks, data.reshape(-1))
        return data

    def write_blocks(self, blocks: Sequence[int], data: NDArray[np.uint8]) -> None:
        """See ``LoadableEngine``."""
        with core_errors():
            self._stage.write_blocks(blocks, np.ascontiguousarray(data).reshape(-1))

    def read_states(self, states: Sequence[int]) -> NDArray[np.uint8]:
        """See ``LoadableEngine``."""
        stage = self._stage
        data = np.empty((len(states), stage.state_bytes), dtype=np.uint8)
        with core_errors():
            stage.read_states(states, data.reshape(-1))
        return data

    def write_states(self, states: Sequence[int], data: NDArray[np.uint8]) -> None:
        """See ``LoadableEngine``."""
        with core_errors():
            self._stage.write_states(states, np.ascontiguousarray(data).reshape(-1))

    def reset(self) -> None:
        """See ``Engine``: only the stage with the head has per-sequence data."""
        stage = self._stage
        if self._sequences:
            no_rows = np.empty((0, self._program.hidden_size), dtype=np.float32)
            with core_errors():
                stage.step(
                    slices=[],
                    opened=[],
                    closed=sorted(self._sequences),
                    copies=[],
                    state_copies=[],
                    masks=(),
                    hidden=None if self._program.shard.has_embedding else no_rows,
                    out=None,
                )
        self._sequences.clear()

    def close(self) -> None:
        """Free weights and cache, after a running call has ended. Idempotent."""
        self._open_stage = None

    @property
    def _stage(self) -> runner.Stage:
        if self._open_stage is None:
            raise EngineError("the engine is closed", hint="create a new one")
        return self._open_stage

    def _open_sequences(self, step: Step) -> None:
        for opening in step.opened:
            validate_sampling(opening.sampling, self._program.vocab_size)
        if self._program.shard.has_head:
            self._sequences.update(opening.sequence_id for opening in step.opened)
            self._sequences.update(part.sequence_id for part in step.slices if part.pooling)


class _NativeSink:
    """See ``TensorSink``. Packs rows into panels as they arrive."""

    def __init__(self, engine: NativeEngine) -> None:
        self._engine = engine  # not its stage, which would then outlive ``close``

    def begin(self, info: TensorInfo) -> None:
        with core_errors("the model's files do not match its configuration: download them again"):
            self._engine._stage.begin_weight(info.name, info.shape, info.format.label)
        self._engine.weights[info.name] = info

    def write_rows(self, name: str, start_row: int, end_row: int, data: memoryview) -> None:
        with core_errors():
            self._engine._stage.write_rows(
                name, start_row, end_row, np.frombuffer(data, dtype=np.uint8)
            )

    def finish(self, name: str) -> None:
        with core_errors():
            self._engine._stage.finish_weight(name)


def _as_contiguous_f32(hidden: Floats | None) -> Floats | None:
    """Return float32 in row order; copy only if it is not in that form already."""
    if hidden is None:
        return None
    if hidden.dtype != np.float32 or hidden.ndim != 2:
        raise EngineError(
            f"hidden states are {hidden.dtype} with {hidden.ndim} dimensions, "
            "but must be a float32 matrix",
            hint=DEFECT_HINT,
        )
    return np.ascontiguousarray(hidden)
