"""Count what the ops of a program read and compute, by op.

Only what limits the speed of a step is counted: bytes of weights, of the key-value cache and of
states, and multiply-adds of products with weights and with states. An embedding's rows, norms and
activations are small in comparison.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from potluck.engines.native.engine import loaded_bytes
from potluck.engines.native.products import Operands
from potluck.models.work import (
    cache_bytes_per_position,
    num_visible,
    share_of_experts,
    state_multiply_adds,
)
from potluck.types.program import (
    Attention,
    CausalConv,
    GatedDelta,
    Head,
    HeadLinear,
    Linear,
    Moe,
    Program,
    StateScan,
)
from potluck.types.step import Step
from potluck.types.tensor import TensorFormat, TensorInfo


@dataclass(slots=True, kw_only=True)
class Work:
    """Sums over steps: bytes by op, and multiply-adds by op and operands."""

    read_bytes: Counter[str] = field(default_factory=Counter)
    multiply_adds: Counter[tuple[str, Operands]] = field(default_factory=Counter)

    def add(self, other: Work) -> None:
        """Add the work of another stage."""
        self.read_bytes.update(other.read_bytes)
        self.multiply_adds.update(other.multiply_adds)


def work_of(
    program: Program,
    labels: Sequence[str],
    weights: Mapping[str, TensorInfo],
    steps: Iterable[Step],
    operands: Mapping[TensorFormat, Operands],
) -> Work:
    """Return what ``program`` reads and computes in ``steps``.

    ``labels`` are those of its ops, by which they are summed; ``weights`` maps names to weights as
    loaded; ``operands`` maps each of their formats to an operand type. In every step each weight is
    read once (for experts, the fraction expected if tokens choose at random), and each token reads
    the part of the cache that it sees. A state is read once per sequence; writes are not counted.
    """
    work = Work()
    for step in steps:
        for op, label in zip(program.ops, labels, strict=True):
            match op:
                case Linear() | HeadLinear() | Head():
                    num_tokens = step.num_wanted if isinstance(op, Head) else step.num_tokens
                    if num_tokens == 0 or op.weight is None:
                        continue
                    info = weights[op.weight]
                    work.read_bytes[label] += loaded_bytes(info)
                    key = (label, operands[info.format])
                    work.multiply_adds[key] += info.num_rows * info.num_columns * num_tokens
                case Moe():
                    chosen = step.num_tokens * op.num_experts_per_token
                    share = share_of_experts(
                        op.num_experts_per_token, op.num_experts, step.num_tokens
                    )
                    for name in filter(None, (op.gate, op.up, op.down)):
                        info = weights[name]
                        work.read_bytes[label] += round(loaded_bytes(info) * share)
                        key = (label, operands[info.format])
                        per_expert = info.num_rows * info.num_columns // op.num_experts
                        work.multiply_adds[key] += per_expert * chosen
                case Attention():
                    per_position = cache_bytes_per_position(op)
                    work.read_bytes[label] += per_position * _num_visible(step, op.window)
                case CausalConv() | GatedDelta() | StateScan():
                    state = program.states[op.state_index]
                    work.read_bytes[label] += state.num_bytes * len(step.slices)
                    key = (label, Operands.F32)
                    work.multiply_adds[key] += state_multiply_adds(op, state) * step.num_tokens
                case _:
                    pass
    return work


def _num_visible(step: Step, window: int | None) -> int:
    """Return the sum of the numbers of positions that the tokens of ``step`` see."""
    return sum(
        num_visible(part.start_position, part.start_position + len(part.tokens), window)
        for part in step.slices
    )
