"""The calls of a program: compiled once for each bucket of rows, and then run repeatedly.

Everything that a call reads and writes has a fixed location on the device: inputs are copied there
before the call, and outputs from there after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from potluck.engines.tinygrad.adapter import Tensor, UOp, dtypes, own_kernel, tinygrad_errors
from potluck.engines.tinygrad.attention import (
    CacheTensors,
    append,
    attend,
    bound_last_block,
    copy_block,
)
from potluck.engines.tinygrad.compiled import Compiled, new_tensor, read, write
from potluck.engines.tinygrad.pieces import bucket_for, buckets_up_to, num_table_blocks
from potluck.errors import EngineError
from potluck.types.program import (
    HIDDEN,
    Activation,
    Add,
    Attention,
    Embed,
    GatedActivation,
    Head,
    LayerNorm,
    Linear,
    Multiply,
    RmsNorm,
    Rope,
    Scale,
    SigmoidGate,
)
from potluck.types.step import KV_BLOCK_TOKENS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from potluck.engines.tinygrad.compiled import OpenDevice
    from potluck.engines.tinygrad.pieces import Piece
    from potluck.engines.tinygrad.weights import DeviceWeights
    from potluck.types.program import Program

    Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallInputs:
    """The inputs of a call of ``T`` rows: int32 ``[T]``, but float32 for ``angles`` and ``hidden``.

    ``tables``: see ``attention.attend``. ``angles`` ``[T, 2, rotary_dim / 2]`` are cosines and
    sines, for each of the program's rope tables; ``hidden`` ``[T, hidden_size]`` is None on the
    stage with the embedding.

    Registers are lazy tensors; a register that must exist in memory, rather than be recomputed in
    every kernel that reads it, is made contiguous.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    tables: Tensor
    angles: tuple[Tensor, ...]
    hidden: Tensor | None


def run_ops(
    program: Program,
    weights: DeviceWeights,
    caches: tuple[CacheTensors, ...],
    inputs: CallInputs,
    last_block: UOp,
) -> Tensor:
    """Compute the program's ops except ``Head``: the register that the head reads or the stage
    outputs.

    Float32 ``[T, width]``, not yet realized. The caches are written when it is.
    """
    registers: dict[str, Tensor] = {} if inputs.hidden is None else {HIDDEN: inputs.hidden}
    filled = dict(enumerate(caches))
    for op in program.ops:
        match op:
            case Embed():
                registers[op.out] = weights.matrix(op.weight).rows(inputs.tokens).contiguous()
            case RmsNorm():
                weight = None if op.weight is None else weights.vector(op.weight)
                registers[op.out] = rms_norm(registers[op.x], weight, op)
            case LayerNorm():
                registers[op.out] = layer_norm(registers[op.x], weights.vector(op.weight), op)
            case Linear():
                out = weights.matrix(op.weight).linear(registers[op.x])
                registers[op.out] = out if op.bias is None else out + weights.vector(op.bias)
            case Rope():
                registers[op.x] = rope(registers[op.x], inputs.angles[op.table], op)
            case Attention():
                index = op.cache_index
                if op.k is not None and op.v is not None:
                    k, v = registers[op.k], registers[op.v]
                    filled[index] = append(caches[index], program.caches[index], k, v, inputs.slots)
                registers[op.out] = attend(
                    op,
                    registers[op.q],
                    filled[index],
                    tables=inputs.tables,
                    positions=inputs.positions,
                    last_block=last_block,
                )
            case GatedActivation(gate=str(gate), activation=Activation.SILU | Activation.GELU_TANH):
                registers[op.out] = gated_activation(registers[gate], registers[op.up], op)
            case SigmoidGate():
                registers[op.x] = registers[op.x] * registers[op.gate].sigmoid()
            case Scale():
                registers[op.x] = registers[op.x] * op.factor
            case Multiply():
                registers[op.x] = registers[op.x] * weights.vector(op.weight)
            case Add():
                y = registers[op.y] if op.scale == 1 else registers[op.y] * op.scale
                # Otherwise every later op would recompute the sum of all branches.
                registers[op.x] = (registers[op.x] + y).contiguous()
            case Head():
                return registers[op.x]
            case _:
                raise EngineError(
                    f"tinygrad does not support {type(op).__name__}", hint="use --backend native"
                )  # the planner avoids this, because it knows the abilities
    return registers[HIDDEN]


def rms_norm(x: Tensor, weight: Tensor | None, op: RmsNorm) -> Tensor:
    """See ``RmsNorm``."""
    groups = x.reshape(x.shape[0], x.shape[1] // op.group, op.group)
    mean_square = groups.square().mean(-1, keepdim=True)
    normed = groups * (mean_square + op.epsilon).rsqrt()
    return (normed if weight is None else normed * weight).reshape(x.shape)


def layer_norm(x: Tensor, weight: Tensor, op: LayerNorm) -> Tensor:
    """See ``LayerNorm``."""
    centered = x - x.mean(-1, keepdim=True)
    variance = centered.square().mean(-1, keepdim=True)
    return centered * (variance + op.epsilon).rsqrt() * weight


def rope(x: Tensor, angles: Tensor, op: Rope) -> Tensor:
    """See ``Rope``."""
    heads = x.reshape(x.shape[0], op.num_heads, op.head_dim)
    halves = heads[:, :, : op.rotary_dim].reshape(x.shape[0], op.num_heads, 2, op.rotary_dim // 2)
    first, second = halves[:, :, 0], halves[:, :, 1]
    cos, sin = angles[:, 0].unsqueeze(1), angles[:, 1].unsqueeze(1)
    turned = Tensor.stack(first * cos - second * sin, second * cos + first * sin, dim=2)
    if op.rotary_dim < op.head_dim:
        turned = turned.reshape(x.shape[0], op.num_heads, op.rotary_dim)
        turned = turned.cat(heads[:, :, op.rotary_dim :], dim=2)
    return turned.reshape(x.shape)


def gated_activation(gate: Tensor, up: Tensor, op: GatedActivation) -> Tensor:
    """See ``Activation``: SILU or GELU_TANH."""
    up = up[:, op.up_start : op.up_start + gate.shape[1]]
    return (gate.silu() if op.activation is Activation.SILU else gate.gelu()) * up


def scaled_logits(logits: Tensor, head: Head) -> Tensor:
    """See ``Head``."""
    if head.scale != 1:
        logits = logits * head.scale
    if head.softcap is not None:
        logits = (logits / head.softcap).tanh() * head.softcap
    return logits


def keep(place: Tensor, x: Tensor) -> Tensor:
    """Return ``place`` ``[at least T, width]`` with its first rows replaced by ``x`` ``[T,
    width]``.
    """

    def kernel(place: UOp, x: UOp) -> UOp:
        row, column = UOp.range(x.shape[0], 0), UOp.range(x.shape[1], 1)
        store = place[row, column].store(x[row, column].load())
        return own_kernel("keep_rows", x.device, store.end(row, column))

    return place.custom_kernel(x, fxn=kernel)[0]


def pick(x: Tensor, rows: Tensor) -> Tensor:
    """Return the rows ``rows`` ``[W]`` of ``x`` ``[T, width]``."""

    def kernel(out: UOp, x: UOp, rows: UOp) -> UOp:
        row, column = UOp.range(out.shape[0], 0), UOp.range(out.shape[1], 1)
        source = rows[row].load().cast(dtypes.weakint)
        store = out[row, column].store(x[source, column].load())
        return own_kernel("pick_rows", x.device, store.end(row, column))

    out = Tensor.empty(rows.shape[0], x.shape[1], dtype=x.dtype, device=x.device)
    return out.custom_kernel(x, rows, fxn=kernel)[0]


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
        self.buckets = buckets_up_to(max_rows)
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
        self.row_width = program.hidden_size if self._head is None else program.width(self._head.x)
        self._rows = new_tensor(device, dtypes.float, most, self.row_width)
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
        """Copy the last piece's rows to ``out`` ``[num_rows, row_width]``.

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
