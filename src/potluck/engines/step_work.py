"""What the ops of a program read and compute, by op.

Only what bounds a step is counted: bytes of weights and of the key-value cache, and multiply-adds
of products with weights. An embedding's rows, norms and activations are small beside them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from potluck.engines.native import loaded_bytes
from potluck.engines.op_labels import op_label
from potluck.engines.products import Arithmetic
from potluck.types.program import Attention, Head, Linear, Program
from potluck.types.step import Step
from potluck.types.tensor import TensorFormat, TensorInfo

_F16_BYTES = 2


@dataclass(slots=True, kw_only=True)
class Work:
    """Sums over steps: bytes by op, and multiply-adds by op and arithmetic."""

    read_bytes: Counter[str] = field(default_factory=Counter)
    multiply_adds: Counter[tuple[str, Arithmetic]] = field(default_factory=Counter)

    def add(self, other: Work) -> None:
        """Add what another stage reads and computes."""
        self.read_bytes.update(other.read_bytes)
        self.multiply_adds.update(other.multiply_adds)


def work_of(
    program: Program,
    weights: Mapping[str, TensorInfo],
    steps: Iterable[Step],
    arithmetic: Mapping[TensorFormat, Arithmetic],
) -> Work:
    """What ``program`` reads and computes in ``steps``.

    ``weights`` as they are loaded, by name; ``arithmetic`` of each of their formats. In every step
    each weight is read once, and by every token the part of the cache that it sees.
    """
    work = Work()
    for step in steps:
        num_sampled = sum(part.sample for part in step.slices)
        for op in program.ops:
            label = op_label(op)
            match op:
                case Linear() | Head():
                    num_tokens = num_sampled if isinstance(op, Head) else step.num_tokens
                    if num_tokens == 0:
                        continue
                    info = weights[op.weight]
                    work.read_bytes[label] += loaded_bytes(info)
                    key = (label, arithmetic[info.format])
                    work.multiply_adds[key] += info.num_rows * info.num_columns * num_tokens
                case Attention():
                    # f16 keys, and values whose rows are filled up to whole lanes of 16.
                    width = op.head_dim + -(-op.head_dim // 16) * 16
                    per_position = op.num_kv_heads * width * _F16_BYTES
                    work.read_bytes[label] += per_position * _num_visible(step, op.window)
                case _:
                    pass
    return work


def _num_visible(step: Step, window: int | None) -> int:
    """Positions that the tokens of ``step`` see, added up."""
    total = 0
    for part in step.slices:
        start, end = part.start_position, part.start_position + len(part.tokens)
        # Up to here a token sees all that is before it, and itself.
        whole_end = end if window is None else min(max(window, start), end)
        total += (whole_end * (whole_end + 1) - start * (start + 1)) // 2
        total += (end - whole_end) * (window or 0)
    return total
