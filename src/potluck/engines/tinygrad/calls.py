"""The calls of a program: compiled once for each bucket of rows, and then run repeatedly.

Everything that a call reads and writes has a fixed location on the device: inputs are copied there
before the call, and outputs from there after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from potluck.engines.tinygrad.adapter import Tensor, UOp, dtypes, tinygrad_errors
from potluck.engines.tinygrad.attention import CacheTensors, bound_last_block, copy_block
from potluck.engines.tinygrad.compiled import Compiled
from potluck.engines.tinygrad.device import new_tensor, read, write
from potluck.engines.tinygrad.graph import CallInputs, keep, pick, run_ops, scaled_logits
from potluck.engines.tinygrad.pieces import bucket_for
from potluck.engines.tinygrad.sizes import BUCKETS, num_table_blocks
from potluck.types.step import KV_BLOCK_TOKENS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from potluck.engines.tinygrad.device import OpenDevice
    from potluck.engines.tinygrad.pieces import Piece
    from potluck.engines.tinygrad.weights import DeviceWeights
    from potluck.types.program import Program

    Floats = NDArray[np.float32]


class Calls:
    """A program with its caches on a device. Only one thread may use it."""

    def __init__(
        self,
        program: Program,
        weights: DeviceWeights,
        device: OpenDevice,
        *,
        num_blocks: int,
        max_rows: int,
    ) -> None:
        self._program = program
        self._device = device
        self._weights = weights
        self._head = program.head
        self.buckets = tuple(size for size in BUCKETS if size == 1 or max_rows > 1)
        cache_dtype = dtypes.half if device.has_f16 else dtypes.float
        num_slots = (num_blocks + 1) * KV_BLOCK_TOKENS
        self._caches = tuple(
            CacheTensors(
                **{
                    name: new_tensor(
                        device, cache_dtype, num_slots * spec.num_kv_heads * spec.head_dim
                    )
                    for name in ("keys", "values")
                }
            )
            for spec in program.caches
        )
        most = self.buckets[-1]
        width = program.hidden_size if self._head is None else program.width(self._head.x)
        self._rows = new_tensor(device, dtypes.float, most, width)
        if self._head is not None and self._head.weight is not None:
            self._logits = new_tensor(device, dtypes.float, most, self._head.vocab_size)
        self._inputs = {bucket: self._new_inputs(bucket) for bucket in self.buckets}
        self._wanted = {bucket: new_tensor(device, dtypes.int, bucket) for bucket in self.buckets}
        self._copied = new_tensor(device, dtypes.int, 2)
        self._copy_block = Compiled(self._copy_in_all_caches, device)
        self._run_ops = {bucket: self._compiled_ops(bucket) for bucket in self.buckets}
        self._run_head = {bucket: self._compiled_head(bucket) for bucket in self.buckets}

    def copy_block(self, source: int, target: int) -> None:
        """Copy the cache block ``source`` to ``target``, which differs, in every cache."""
        if self._caches:
            with tinygrad_errors():
                write(self._copied, np.array((source, target), np.int32))
                self._copy_block()

    def run(self, piece: Piece, hidden: Floats | None) -> None:
        """Compute the piece with ``hidden`` as its rows of the residual stream."""
        inputs = self._inputs[piece.bucket]
        with tinygrad_errors():
            write(inputs.tokens, piece.tokens)
            write(inputs.positions, piece.positions)
            write(inputs.slots, piece.slots)
            write(inputs.tables, piece.tables)
            for table, place in zip(self._program.ropes, inputs.angles, strict=True):
                angles = (table.cos[piece.positions], table.sin[piece.positions])
                write(place, np.stack(angles, axis=1))
            if inputs.hidden is not None:
                assert hidden is not None
                write(inputs.hidden, hidden)
            self._run_ops[piece.bucket](
                bound_last_block(piece.num_blocks, num_table_blocks(self._program))
            )

    def read_rows(self, out: Floats) -> None:
        """Copy the last piece's rows to ``out`` ``[num_rows, width]``.

        They are rows of the residual stream or, with the head, of its input.
        """
        with tinygrad_errors():
            read(self._rows, out)

    def read_logits(self, piece: Piece, out: Floats) -> None:
        """Compute the logits of the last piece's wanted rows: ``[num_wanted, vocab]``."""
        if not len(piece.wanted):
            return
        bucket = bucket_for(len(piece.wanted))
        wanted = np.zeros(bucket, np.int32)
        wanted[: len(piece.wanted)] = piece.wanted
        with tinygrad_errors():
            write(self._wanted[bucket], wanted)
            self._run_head[bucket]()
            read(self._logits, out)

    def _new_inputs(self, bucket: int) -> CallInputs:
        program = self._program
        num_table = num_table_blocks(program)
        tokens, positions, slots = (new_tensor(self._device, dtypes.int, bucket) for _ in range(3))
        return CallInputs(
            tokens=tokens,
            positions=positions,
            slots=slots,
            tables=new_tensor(self._device, dtypes.int, bucket * num_table),
            angles=tuple(
                new_tensor(self._device, dtypes.float, bucket, 2, table.cos.shape[1])
                for table in program.ropes
            ),
            hidden=None
            if program.shard.has_embedding
            else new_tensor(self._device, dtypes.float, bucket, program.hidden_size),
        )

    def _copy_in_all_caches(self) -> None:
        specs = self._program.caches
        copied = (
            copy_block(cache, spec, self._copied)
            for cache, spec in zip(self._caches, specs, strict=True)
        )
        Tensor.realize(*(tensor for cache in copied for tensor in (cache.keys, cache.values)))

    def _compiled_ops(self, bucket: int) -> Compiled:
        def ops(last_block: UOp) -> None:
            out = run_ops(
                self._program, self._weights, self._caches, self._inputs[bucket], last_block
            )
            keep(self._rows, out).realize()

        return Compiled(ops, self._device)

    def _compiled_head(self, bucket: int) -> Compiled:
        def head() -> None:
            assert self._head is not None
            assert self._head.weight is not None
            picked = pick(self._rows, self._wanted[bucket])
            logits = self._weights.matrix(self._head.weight).linear(picked)
            keep(self._logits, scaled_logits(logits, self._head)).realize()

        return Compiled(head, self._device)
