"""Count what an op reads and computes, as far as it limits the speed of a step: weights, caches,
multiply-adds.
"""

from __future__ import annotations

from potluck.types.model import ModelConfig
from potluck.types.program import Attention, CausalConv, GatedDelta, StateScan, StateSpec

_F16_BYTES = 2
_LANES = 16


def cache_bytes_per_position(op: Attention) -> int:
    """Return the bytes of keys and values that a token reads per visible position.

    They are f16, and rows of values are padded to 16 lanes. Values that are columns of the keys are
    read together with them.
    """
    width = op.head_dim
    if op.value_start is None:
        width += -(-_value_dim(op) // _LANES) * _LANES
    return op.num_kv_heads * width * _F16_BYTES


def attention_multiply_adds(op: Attention) -> int:
    """Return the multiply-adds of a token per visible position."""
    return op.num_heads * (op.head_dim + _value_dim(op))


def _value_dim(op: Attention) -> int:
    return op.head_dim if op.value_dim is None else op.value_dim


StateOp = CausalConv | GatedDelta | StateScan
"""Ops with a state that every token reads and updates."""


def state_multiply_adds(op: StateOp, state: StateSpec) -> int:
    """Return the multiply-adds of a token with the state of its sequence.

    The gated delta rule decays, reads, updates and reads each element of its matrix; the scan of
    Mamba-2 reads it once. A multiplication alone counts as much as a multiply-add.
    """
    match op:
        case CausalConv():
            return op.kernel * state.width
        case GatedDelta():
            return 4 * state.rows * state.width
        case StateScan():
            return 3 * state.rows * state.width


def rope_table_bytes(config: ModelConfig, context_tokens: int) -> int:
    """Return the bytes of the rope tables: a float32 cosine and sine for each pair."""
    return sum(context_tokens * rope.rotary_dim * 4 for rope in config.ropes)


def num_visible(start: int, end: int, window: int | None) -> int:
    """Return the sum over the tokens at positions ``[start, end)`` of their visible positions."""
    # Up to here a token sees itself and all preceding positions.
    whole_end = end if window is None else min(max(window, start), end)
    total = (whole_end * (whole_end + 1) - start * (start + 1)) // 2
    return total + (end - whole_end) * (window or 0)


def share_of_experts(num_chosen: int, num_experts: int, num_tokens: int) -> float:
    """Return the expected fraction of the experts that at least one of ``num_tokens`` tokens
    selects.

    It assumes that each token selects ``num_chosen`` of ``num_experts`` at random.
    """
    return 1.0 - (1.0 - num_chosen / num_experts) ** num_tokens
