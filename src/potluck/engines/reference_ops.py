"""What every op means, in plain NumPy float32: one function per op.

``x``, ``q``, ``k`` and ``v`` have one row per token; heads lie one after another within a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Ints = NDArray[np.int64]


def embed(weight: Floats, tokens: Ints) -> Floats:
    """The rows of ``weight`` ``[vocab, hidden]`` that belong to ``tokens``."""
    return weight[tokens]


def rms_norm(x: Floats, weight: Floats, group: int, epsilon: float) -> Floats:
    """``x / sqrt(mean(x²) + epsilon) * weight`` over every ``group`` columns (Zhang and Sennrich
    2019); ``weight`` is ``[group]``.
    """
    groups = x.reshape(len(x), x.shape[1] // group, group)
    mean_square = np.mean(np.square(groups), axis=-1, keepdims=True, dtype=np.float32)
    root: Floats = np.sqrt(mean_square + np.float32(epsilon))
    return (groups / root * weight).reshape(x.shape)


def linear(x: Floats, weight: Floats, bias: Floats | None) -> Floats:
    """``weight @ x[t] + bias`` for every token; ``weight`` is ``[rows, columns]``."""
    out = x @ weight.T
    return out if bias is None else out + bias


def rope(x: Floats, cos: Floats, sin: Floats, num_heads: int) -> Floats:
    """Every pair ``(i, i + head_dim / 2)`` of every head turned by angle ``i`` of its token.

    ``cos`` and ``sin`` are ``[num_tokens, head_dim / 2]``, gathered at the tokens' positions.
    """
    heads = x.reshape(len(x), num_heads, x.shape[1] // num_heads)
    first, second = np.split(heads, 2, axis=-1)
    cos, sin = cos[:, None], sin[:, None]
    turned = np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.reshape(x.shape)


def attention(
    q: Floats,
    keys: Floats,
    values: Floats,
    positions: Ints,
    scale: float,
    window: int | None,
) -> Floats:
    """Causal grouped-query attention of one sequence (Ainslie et al. 2023).

    ``q`` is ``[num_tokens, num_heads, head_dim]``, of the tokens at ``positions``; ``keys`` and
    ``values`` are ``[num_positions, num_kv_heads, head_dim]``, from position 0 on. A token sees
    itself and what is before it, with a ``window`` only the last ``window`` of them. Query heads
    share key-value heads in order: of 6 and 2, heads 0 to 2 share the first.
    """
    distance = positions[:, None] - np.arange(len(keys))
    visible = (distance >= 0) & (distance < (window or len(keys)))
    heads_per_kv_head = q.shape[1] // keys.shape[1]
    out = np.empty_like(q)
    for head in range(q.shape[1]):
        kv_head = head // heads_per_kv_head
        scores = np.float32(scale) * (q[:, head] @ keys[:, kv_head].T)
        out[:, head] = softmax(np.where(visible, scores, -np.inf)) @ values[:, kv_head]
    return out


def softmax(scores: Floats) -> Floats:
    """Over the last axis; minus infinity has no share."""
    weights: Floats = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: Floats = weights / weights.sum(axis=-1, keepdims=True, dtype=np.float32)
    return shares


def silu_gate(gate: Floats, up: Floats) -> Floats:
    """``gate / (1 + exp(-gate)) * up`` (Shazeer 2020, SwiGLU)."""
    with np.errstate(over="ignore"):  # exp(-gate) = inf gives the right limit, 0
        gated: Floats = gate / (1 + np.exp(-gate)) * up
    return gated


def choose_experts(logits: Floats, num_experts_per_token: int) -> Ints:
    """Indices ``[num_tokens, num_experts_per_token]`` of the largest logits, ascending.

    ``logits`` is ``[num_tokens, num_experts]``; of equal ones those with lower indices are chosen.
    """
    by_size = np.argsort(-logits, axis=-1, kind="stable")
    return np.sort(by_size[:, :num_experts_per_token], axis=-1)


def moe(
    x: Floats,
    logits: Floats,
    gate: Floats,
    up: Floats,
    down: Floats,
    num_experts_per_token: int,
    *,
    normalize_shares: bool,
) -> Floats:
    """The experts that each token's router chose, added by their shares in ascending order.

    ``logits`` is ``[num_tokens, num_experts]``, ``gate`` and ``up`` are ``[num_experts,
    expert_width, columns]``, ``down`` is ``[num_experts, rows, expert_width]``. Shares are those of
    the softmax over all experts; normalized, those of a token's chosen add up to 1 (Shazeer et al.
    2017, and ``transformers``' ``Qwen3MoeTopKRouter``). A token with a logit that is NaN, or whose
    largest is infinite, is NaN.
    """
    chosen = choose_experts(logits, num_experts_per_token)
    with np.errstate(invalid="ignore"):  # infinity minus infinity is the NaN that is meant
        shares = np.take_along_axis(softmax(logits), chosen, axis=-1)
    if normalize_shares:
        shares = shares / shares.sum(axis=-1, keepdims=True, dtype=np.float32)
    out = np.zeros((len(x), down.shape[1]), dtype=np.float32)
    for expert in range(len(gate)):
        tokens, places = np.nonzero(chosen == expert)
        mine = x[tokens]
        inner = silu_gate(linear(mine, gate[expert], None), linear(mine, up[expert], None))
        out[tokens] += shares[tokens, places, None] * linear(inner, down[expert], None)
    return out


def add(x: Floats, y: Floats) -> Floats:
    """``x + y``."""
    return x + y


def head(x: Floats, weight: Floats, wanted: Ints) -> Floats:
    """Logits ``[len(wanted), vocab]`` of the tokens at the rows ``wanted`` of ``x``."""
    return x[wanted] @ weight.T
