"""The tinygrad engine: programs on a GPU, or any other device that tinygrad supports.

Results are deterministic, but not bit-identical across buckets or with other engines
(docs/adr/0013).
"""

from __future__ import annotations

import gc
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from potluck.engines.native.pool import make_pool
from potluck.engines.native.sampler import StepSampler
from potluck.engines.pooling import StepPooler, is_pooled
from potluck.engines.step_checks import check_masks, check_step
from potluck.engines.tinygrad.calls import Calls
from potluck.engines.tinygrad.compiled import open_device
from potluck.engines.tinygrad.pieces import padding_piece, pieces_of
from potluck.engines.tinygrad.weights import DeviceWeights
from potluck.errors import DEFECT_HINT, EngineError, UnitFaultError
from potluck.types.engine import NO_EXPERTS, NO_MASKS, ExpertUse, StepResult
from potluck.types.unit import Fault

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from potluck.engines.native.pool import ThreadPool
    from potluck.engines.tinygrad.pieces import Piece
    from potluck.types.engine import Exchange, TokenMasks
    from potluck.types.program import Program
    from potluck.types.step import SampledToken, Step
    from potluck.types.tensor import TensorSink

    Floats = NDArray[np.float32]


class TinygradEngine:
    """One stage (see ``Engine``) on ``device``, or on the device that ``DEV`` names.

    Caches of ``num_blocks`` blocks, and the inputs and outputs of calls, are allocated here,
    weights as they arrive. ``pool`` is used for sampling; if it is None, the calling thread is
    used. Any thread may call it, one at a time: every call makes the driver's context current.
    Driver and device failures raise ``UnitFaultError``, after which the engine cannot be used.
    """

    def __init__(
        self,
        program: Program,
        *,
        num_blocks: int,
        max_step_tokens: int,
        device: str | None = None,
        pool: ThreadPool | None = None,
    ) -> None:
        self._program = program
        self._num_blocks = num_blocks
        self._max_step_tokens = max_step_tokens
        self._device = open_device(device)
        self._weights = DeviceWeights(program, self._device.name, self._device.has_f16)
        self._calls: Calls | None = Calls(
            program, self._weights, self._device, num_blocks=num_blocks, max_rows=max_step_tokens
        )
        self._sampler = StepSampler(program, pool or make_pool(1))
        self._pooler = StepPooler()

    @property
    def weights_bytes(self) -> int:
        """The device memory of the weights received so far."""
        return self._weights.num_bytes

    def sink(self) -> TensorSink:
        """Return a sink for every format."""
        return self._weights

    def warm_up(self) -> None:
        """Compile everything that steps can need, after the weights are loaded. The caches do not
        change.

        Otherwise the first steps compile it, which takes seconds.
        """
        calls = self._ready_calls()
        calls.copy_block(self._num_blocks, self._num_blocks)
        for bucket in calls.buckets:
            piece = padding_piece(bucket, self._num_blocks)
            shape = (bucket, self._program.hidden_size)
            calls.run(piece, None if self._has_embedding else np.zeros(shape, np.float32))
            if self._program.has_logits:
                calls.read_logits(piece, self._new_logits(bucket))
            elif not self._has_head:
                calls.read_rows(np.empty(shape, np.float32))

    def step(self, step: Step, hidden: Floats | None, masks: TokenMasks = NO_MASKS) -> StepResult:
        """Run the program once (see ``Engine``).

        Raises ``ParameterError`` for invalid sampling parameters, and ``UnitFaultError``, with the
        step's tokens in the cache, if the results are not finite.
        """
        calls = self._check(step, hidden)
        if not self._has_head:
            check_masks(self._program, step, masks)
            return StepResult(hidden=self._run(calls, step, hidden), sampled=())
        self._sampler.check(step, masks, samples=True)
        self._pooler.check(step)
        self._sampler.open(step.opened)
        shape = (step.num_tokens, calls.row_width)
        rows = np.empty(shape, np.float32) if is_pooled(step) else None
        wanted = ((part, index) for part in step.slices for index in part.wanted)
        sampled: list[SampledToken] = []
        for logits in self._logits_of_pieces(calls, step, hidden, rows):
            # Not as many as were sampled before: there are no results after a wrong draft.
            now = list(islice(wanted, len(logits)))
            sampled += self._sampler.sample(now, logits, masks)
        if rows is not None:
            _check_finite(rows)
            sampled += self._pooler.pool(step, rows)
        self._sampler.close(step.closed)
        self._pooler.close(step.closed)
        return StepResult(hidden=None, sampled=tuple(sampled))

    def logits(self, step: Step, hidden: Floats | None) -> Floats:
        """Like ``step`` without sampling, so that sequences need not have been opened."""
        calls = self._check(step, hidden)
        if not self._program.has_logits:
            raise EngineError(
                "this stage has no head, so it has no logits",
                hint="get the logits from the last stage",
            )
        self._sampler.check(step, samples=False)
        self._sampler.open(step.opened)
        pieces = list(self._logits_of_pieces(calls, step, hidden))
        self._sampler.close(step.closed)
        return np.concatenate([self._new_logits(0), *pieces])

    @property
    def block_format(self) -> None:
        """See ``LoadableEngine``: blocks stay on the device."""
        return

    def read_blocks(self, blocks: Sequence[int]) -> NDArray[np.uint8]:
        """See ``LoadableEngine``."""
        raise _no_block_format()

    def write_blocks(self, blocks: Sequence[int], data: NDArray[np.uint8]) -> None:
        """See ``LoadableEngine``."""
        raise _no_block_format()

    def read_states(self, states: Sequence[int]) -> NDArray[np.uint8]:
        """See ``LoadableEngine``."""
        raise _no_block_format()

    def write_states(self, states: Sequence[int], data: NDArray[np.uint8]) -> None:
        """See ``LoadableEngine``."""
        raise _no_block_format()

    def join_group(self, exchange: Exchange | None) -> None:
        """See ``LoadableEngine``: programs of groups are not supported."""

    @property
    def expert_use(self) -> ExpertUse:
        """See ``LoadableEngine``: mapped weights are not supported."""
        return NO_EXPERTS

    def reset(self) -> None:
        """See ``Engine``: only the sampler and the pooler have per-sequence data."""
        self._sampler.reset()
        self._pooler.reset()

    def close(self) -> None:
        """Free weights and cache."""
        if self._calls is None:
            return
        self._calls = None
        gc.collect()  # the calls' graphs refer to one another
        self._weights.clear()

    @property
    def _has_embedding(self) -> bool:
        return self._program.shard.has_embedding

    @property
    def _has_head(self) -> bool:
        return self._program.shard.has_head

    def _ready_calls(self) -> Calls:
        if self._calls is None:
            raise EngineError("the engine is closed", hint="create a new one")
        if missing := self._weights.missing():
            raise EngineError(
                f"{len(missing)} weights are not loaded, among them {missing[0]}",
                hint="load the weights before the first step",
            )
        return self._calls

    def _check(self, step: Step, hidden: Floats | None) -> Calls:
        calls = self._ready_calls()
        check_step(self._program, self._num_blocks, 0, step, hidden)
        if step.num_tokens > self._max_step_tokens:
            raise EngineError(
                f"a step of {step.num_tokens} tokens exceeds the stage's limit of"
                f" {self._max_step_tokens}",
                hint=DEFECT_HINT,
            )
        return calls

    def _run(self, calls: Calls, step: Step, hidden: Floats | None) -> Floats:
        """Return the residual stream, on a stage without the head."""
        out = np.empty((step.num_tokens, self._program.hidden_size), np.float32)
        for _, rows in self._computed_pieces(calls, step, hidden):
            calls.read_rows(out[rows])
        _check_finite(out)
        return out

    def _logits_of_pieces(
        self, calls: Calls, step: Step, hidden: Floats | None, rows: Floats | None = None
    ) -> Iterator[Floats]:
        """Return the requested logits of each piece, never of more rows than a call computes.

        ``rows`` receives the input of the head for all tokens.
        """
        for piece, of_piece in self._computed_pieces(calls, step, hidden):
            if rows is not None:
                calls.read_rows(rows[of_piece])
            if len(piece.wanted):
                out = self._new_logits(len(piece.wanted))
                calls.read_logits(piece, out)
                _check_finite(out)
                yield out

    def _computed_pieces(
        self, calls: Calls, step: Step, hidden: Floats | None
    ) -> Iterator[tuple[Piece, slice]]:
        """Copy blocks, then yield the pieces of a step with their rows, computing each before."""
        for copy in step.copies:
            calls.copy_block(copy.source, copy.target)
        pieces = pieces_of(step, trash_block=self._num_blocks, has_cache=bool(self._program.caches))
        for piece in pieces:
            rows = slice(piece.first_row, piece.first_row + piece.num_rows)
            calls.run(piece, None if hidden is None else hidden[rows])
            yield piece, rows

    def _new_logits(self, num_rows: int) -> Floats:
        return np.empty((num_rows, self._program.vocab_size), np.float32)


def _no_block_format() -> EngineError:
    return EngineError(
        "the tinygrad engine cannot read or write cache blocks",
        hint=DEFECT_HINT,
    )


def _check_finite(out: Floats) -> None:
    if not np.isfinite(out).all():
        raise UnitFaultError(
            Fault.NOT_FINITE.value,
            "the device computed a value that is not finite (NaN or infinity)",
            hint="the device or its driver is faulty, or the weights are damaged",
        )
