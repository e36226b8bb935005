"""Build the tinygrad graph of a program: the ops of a call with a fixed number of rows.

Registers are lazy tensors; a register that must exist in memory, rather than be recomputed in every
kernel that reads it, is made contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from potluck.engines.tinygrad.adapter import Tensor, UOp, dtypes, own_kernel
from potluck.engines.tinygrad.attention import CacheTensors, append, attend
from potluck.errors import EngineError
from potluck.types.program import (
    HIDDEN,
    Activation,
    Add,
    AllGather,
    Attention,
    CausalConv,
    CopyColumns,
    Embed,
    GatedActivation,
    GatedDelta,
    Head,
    HeadLinear,
    LayerNorm,
    Linear,
    Moe,
    Multiply,
    RmsNorm,
    Rope,
    Scale,
    SigmoidGate,
    StateScan,
)

if TYPE_CHECKING:
    from potluck.engines.tinygrad.weights import DeviceWeights
    from potluck.types.program import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class CallInputs:
    """The inputs of a call of ``T`` rows: int32 ``[T]``, but float32 for ``angles`` and ``hidden``.

    ``tables``: see ``attention.attend``. ``angles`` ``[T, 2, rotary_dim / 2]`` are cosines and
    sines, for each of the program's rope tables; ``hidden`` ``[T, hidden_size]`` is None on the
    stage with the embedding.
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
            case (
                Moe()
                | AllGather()
                | GatedActivation()
                | HeadLinear()
                | CopyColumns()
                | CausalConv()
                | GatedDelta()
                | StateScan()
            ):
                raise EngineError(
                    f"tinygrad does not support {type(op).__name__}", hint="use --backend native"
                )  # the planner avoids this, because it knows the abilities
            case Add():
                y = registers[op.y] if op.scale == 1 else registers[op.y] * op.scale
                # Otherwise every later op would recompute the sum of all branches.
                registers[op.x] = (registers[op.x] + y).contiguous()
            case Head():
                return registers[op.x]
            case _:
                assert_never(op)
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
