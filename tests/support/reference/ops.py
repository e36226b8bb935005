"""The specification of every op, in plain NumPy float32: one function per op.

``x``, ``q``, ``k`` and ``v`` have one row per token; heads are concatenated within a row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from potluck.types.program import Activation, ExpertScore

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from potluck.types.program import GatedDelta, Moe, StateScan

    Floats = NDArray[np.float32]
    Ints = NDArray[np.int64]
    Product = Callable[[Floats, Floats], Floats]
    Exchanged = Callable[[Floats], Floats]


def embed(weight: Floats, tokens: Ints) -> Floats:
    """Return the rows of ``weight`` ``[vocab, hidden]`` for ``tokens``."""
    return weight[tokens]


def rms_norm(x: Floats, weight: Floats | None, group: int, epsilon: float) -> Floats:
    """``x / sqrt(mean(x²) + epsilon) * weight`` over every ``group`` columns (Zhang and Sennrich
    2019); ``weight`` is ``[group]``, or None for ones.
    """
    groups = x.reshape(len(x), x.shape[1] // group, group)
    mean_square = np.mean(np.square(groups), axis=-1, keepdims=True, dtype=np.float32)
    root: Floats = np.sqrt(mean_square + np.float32(epsilon))
    normed = groups / root
    return (normed if weight is None else normed * weight).reshape(x.shape)


def layer_norm(x: Floats, weight: Floats, epsilon: float) -> Floats:
    """``(x - mean(x)) / sqrt(variance(x) + epsilon) * weight`` (Ba et al. 2016)."""
    centered = x - x.mean(axis=-1, keepdims=True, dtype=np.float32)
    variance = np.mean(np.square(centered), axis=-1, keepdims=True, dtype=np.float32)
    normed: Floats = centered / np.sqrt(variance + np.float32(epsilon)) * weight
    return normed


def product(x: Floats, weight: Floats) -> Floats:
    """Return ``weight @ x[t]`` for every token, computed by NumPy's library."""
    return x @ weight.T


def row_wise_product(x: Floats, weight: Floats) -> Floats:
    """Like ``product``; each result only depends on its row of ``weight`` and on ``x[t]``, bit for
    bit.

    It is much slower.
    """
    weight = np.ascontiguousarray(weight)
    out = np.empty((len(x), len(weight)), dtype=np.float32)
    for index, row in enumerate(x):
        out[index] = (weight * row).sum(axis=-1, dtype=np.float32)
    return out


def linear(x: Floats, weight: Floats, bias: Floats | None, multiply: Product = product) -> Floats:
    """Return ``weight @ x[t] + bias`` for every token; ``weight`` is ``[rows, columns]``."""
    out = multiply(x, weight)
    return out if bias is None else out + bias


def rope(x: Floats, cos: Floats, sin: Floats, num_heads: int) -> Floats:
    """Rotate every pair ``(i, i + rotary_dim / 2)`` of every head by angle ``i`` of its token.

    ``cos`` and ``sin`` are ``[num_tokens, rotary_dim / 2]``, gathered at the tokens' positions.
    Columns of a head beyond ``rotary_dim`` are unchanged.
    """
    heads = x.reshape(len(x), num_heads, x.shape[1] // num_heads)
    half = cos.shape[1]
    first, second, rest = np.split(heads, [half, 2 * half], axis=-1)
    cos, sin = cos[:, None], sin[:, None]
    turned = np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)
    return turned.reshape(x.shape)


def attention(
    q: Floats,
    keys: Floats,
    values: Floats,
    positions: Ints,
    scale: float,
    window: int | None,
    softcap: float | None = None,
    sinks: Floats | None = None,
    multiply: Product = product,
) -> Floats:
    """Return the causal grouped-query attention of one sequence (Ainslie et al. 2023).

    ``q`` is ``[num_tokens, num_heads, head_dim]``, for the tokens at ``positions``; ``keys`` are
    ``[num_positions, num_kv_heads, head_dim]``, from position 0 on, and ``values`` likewise, with a
    possibly different width. A token sees itself and everything before it, or with a ``window``
    only the last ``window`` of these positions. Query heads share key-value heads in order: of 6
    and 2, heads 0 to 2 share the first. ``softcap`` bounds the scores, and ``sinks``
    ``[num_heads]`` are scores without a value (see ``Attention``).
    """
    distance = positions[:, None] - np.arange(len(keys))
    visible = (distance >= 0) & (distance < (window or len(keys)))
    heads_per_kv_head = q.shape[1] // keys.shape[1]
    out = np.empty((*q.shape[:2], values.shape[2]), dtype=np.float32)
    for head in range(q.shape[1]):
        kv_head = head // heads_per_kv_head
        scores: Floats = multiply(q[:, head], keys[:, kv_head])
        scores = cap(np.float32(scale) * scores, softcap)
        scores[~visible] = -np.inf
        if sinks is not None:
            sink = np.full((len(scores), 1), sinks[head], dtype=np.float32)
            scores = np.concatenate([scores, sink], axis=-1)
        out[:, head] = multiply(softmax(scores)[:, : len(keys)], values[:, kv_head].T)
    return out


def softmax(scores: Floats) -> Floats:
    """Return the softmax over the last axis; minus infinity has a share of 0."""
    weights: Floats = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: Floats = weights / weights.sum(axis=-1, keepdims=True, dtype=np.float32)
    return shares


def cap(x: Floats, softcap: float | None) -> Floats:
    """Return ``softcap * tanh(x / softcap)``; ``x`` unchanged if ``softcap`` is None."""
    if softcap is None:
        return x
    capped: Floats = np.float32(softcap) * np.tanh(x / np.float32(softcap))
    return capped


def sigmoid(x: Floats) -> Floats:
    """Return ``1 / (1 + exp(-x))``."""
    with np.errstate(over="ignore"):  # exp(-x) = inf gives the right limit, 0
        denominator: Floats = 1 + np.exp(-x)
    result: Floats = np.reciprocal(denominator)
    return result


def softplus(x: Floats) -> Floats:
    """Return ``log(1 + exp(x))``; above 20, ``x`` itself."""
    result: Floats = np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, np.float32(20)))))
    return result


def gated_activation(gate: Floats | None, up: Floats, activation: Activation) -> Floats:
    """Return the result of an ``Activation``; ``gate`` is None for those without one."""
    if activation is Activation.RELU_SQUARED:
        squared: Floats = np.square(np.maximum(up, np.float32(0)))
        return squared
    if gate is None:
        raise ValueError(f"{activation} requires a gate")
    match activation:
        case Activation.PRODUCT:
            return gate * up
        case Activation.SILU:
            return gate * sigmoid(gate) * up
        case Activation.GELU_TANH:
            inner = np.float32(math.sqrt(2 / math.pi)) * (gate + np.float32(0.044715) * gate**3)
            gelu: Floats = np.float32(0.5) * gate * (1 + np.tanh(inner)) * up
            return gelu
        case Activation.CLAMPED_SWIGLU:
            bounded = np.minimum(gate, np.float32(7))
            swish = bounded * sigmoid(np.float32(1.702) * bounded)
            clamped: Floats = swish * (np.clip(up, np.float32(-7), np.float32(7)) + 1)
            return clamped


def choose_experts(
    preferences: Floats, num_experts_per_token: int, num_groups: int = 1, num_groups_used: int = 1
) -> Ints:
    """Return indices ``[num_tokens, num_experts_per_token]`` of the largest preferences, ascending.

    ``preferences`` is ``[num_tokens, num_experts]``; ties go to lower indices. Only the groups with
    the largest sums of their two largest preferences are considered.
    """
    if num_groups > 1:
        groups = preferences.reshape(len(preferences), num_groups, -1)
        sums = np.sort(groups, axis=-1)[:, :, -2:].sum(axis=-1, dtype=np.float32)
        used = np.argsort(-sums, axis=-1, kind="stable")[:, :num_groups_used]
        is_used = np.zeros_like(sums, dtype=bool)
        np.put_along_axis(is_used, used, values=True, axis=-1)
        groups = np.where(is_used[:, :, None], groups, np.float32(-np.inf))
        preferences = groups.reshape(preferences.shape)
    by_size = np.argsort(-preferences, axis=-1, kind="stable")
    return np.sort(by_size[:, :num_experts_per_token], axis=-1)


def expert_shares(op: Moe, logits: Floats, vectors: ExpertVectors) -> tuple[Ints, Floats]:
    """Return the experts of each token, ascending, and their shares (see ``Moe``).

    A token with a NaN logit, or whose largest logit is infinite, has NaN shares.
    """
    with np.errstate(invalid="ignore"):  # infinity minus infinity gives the intended NaN
        scores = softmax(logits) if op.score is ExpertScore.SOFTMAX else sigmoid(logits)
    preferences = logits if op.score is ExpertScore.SOFTMAX else scores
    if vectors.e_score_correction_bias is not None:
        preferences = scores + vectors.e_score_correction_bias
    chosen = choose_experts(
        preferences, op.num_experts_per_token, op.num_groups, op.num_groups_used
    )
    shares = np.take_along_axis(scores, chosen, axis=-1)
    if op.norm_topk_prob:
        shares = shares / shares.sum(axis=-1, keepdims=True, dtype=np.float32)
    if op.share_scale != 1:
        shares = shares * np.float32(op.share_scale)
    if vectors.expert_scale is not None:
        shares = shares * vectors.expert_scale[chosen]
    is_bad = np.isnan(logits).any(axis=-1) | ~np.isfinite(logits.max(axis=-1))
    shares[is_bad] = np.nan
    return chosen, shares


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertVectors:
    """The small weights of a ``Moe`` op, if it has them."""

    e_score_correction_bias: Floats | None = None
    expert_scale: Floats | None = None
    gate_bias: Floats | None = None
    up_bias: Floats | None = None
    down_bias: Floats | None = None


def moe(
    op: Moe,
    x: Floats,
    logits: Floats,
    gate: Floats | None,
    up: Floats,
    down: Floats,
    vectors: ExpertVectors,
    *,
    multiply: Product = product,
    exchanged: Exchanged = lambda inner: inner,
) -> Floats:
    """Return the outputs of the experts that each token's router selects, added by their shares in
    ascending order.

    ``logits`` is ``[num_tokens, num_experts]``, ``gate`` and ``up`` are ``[num_experts,
    expert_width, columns]``, ``down`` is ``[num_experts, rows, expert_width]`` (Shazeer et al. 2017
    and ``transformers``' routers). ``exchanged`` returns all columns of activations of which a
    member of a group computes some.
    """
    chosen, shares = expert_shares(op, logits, vectors)
    out = np.zeros((len(x), down.shape[1]), dtype=np.float32)

    def of(biases: Floats | None, expert: int) -> Floats | None:
        return None if biases is None else biases[expert]

    def project(rows: Floats, weight: Floats, biases: Floats | None, expert: int) -> Floats:
        return linear(rows, weight[expert], of(biases, expert), multiply)

    places = [np.nonzero(chosen == expert) for expert in range(len(up))]
    inner = [np.empty((0, up.shape[1]), dtype=np.float32)]
    for expert, (tokens, _) in enumerate(places):
        gates = None if gate is None else project(x[tokens], gate, vectors.gate_bias, expert)
        ups = project(x[tokens], up, vectors.up_bias, expert)
        inner.append(gated_activation(gates, ups, op.activation))
    whole = exchanged(np.concatenate(inner))
    first = 0
    for expert, (tokens, which) in enumerate(places):
        mine = whole[first : first + len(tokens)]
        first += len(tokens)
        made = project(mine, down, vectors.down_bias, expert)
        out[tokens] += shares[tokens, which, None] * made
    return out


def columns_of(x: Floats, num_groups: int, count: int, start: int, stride: int) -> Floats:
    """Return the view ``[num_tokens, num_groups, count]`` of ``x`` from column ``start`` on."""
    groups = np.lib.stride_tricks.sliding_window_view(x, count, axis=1, writeable=True)
    return groups[:, start : start + (num_groups - 1) * stride + 1 : stride]


def head_linear(x: Floats, weight: Floats, multiply: Product = product) -> Floats:
    """Return ``weight[h] @ x[t, h]``: ``[heads, rows, columns]`` and ``[num_tokens, heads,
    columns]``.
    """
    out = np.empty((*x.shape[:2], weight.shape[1]), dtype=np.float32)
    for head, matrix in enumerate(weight):
        out[:, head] = multiply(x[:, head], matrix)
    return out


def causal_conv(
    x: Floats, before: Floats, weight: Floats, bias: Floats | None, *, has_silu: bool
) -> Floats:
    """Return the convolution of one sequence (see ``CausalConv``).

    ``before`` is the ``k - 1`` rows that precede those of ``x``; ``weight`` is ``[width, k]``.
    """
    rows = np.concatenate([before, x])
    out = np.zeros_like(x)
    for index in range(weight.shape[1]):
        out += weight[:, index] * rows[index : index + len(x)]
    if bias is not None:
        out += bias
    return out * sigmoid(out) if has_silu else out


def gated_delta(
    op: GatedDelta, x: Floats, decay: Floats, beta: Floats, rate: Floats, bias: Floats, s: Floats
) -> Floats:
    """Return the outputs of one sequence; update ``s`` ``[num_heads, key_dim, value_dim]`` in
    place.
    """
    key_width = op.num_key_heads * op.key_dim
    heads = np.arange(op.num_heads)
    shared = op.num_heads // op.num_key_heads
    key_heads = heads % op.num_key_heads if op.is_tiled else heads // shared

    def normed(part: Floats) -> Floats:
        split = part.reshape(len(x), op.num_key_heads, op.key_dim)[:, key_heads]
        squares = np.square(split).sum(axis=-1, keepdims=True, dtype=np.float32)
        result: Floats = split / np.sqrt(squares + np.float32(op.epsilon))
        return result

    q = normed(x[:, :key_width]) / np.float32(math.sqrt(op.key_dim))
    k = normed(x[:, key_width : 2 * key_width])
    v = x[:, 2 * key_width :].reshape(len(x), op.num_heads, op.value_dim)
    kept: Floats = np.exp(rate * softplus(decay + bias))
    learned = sigmoid(beta)
    out = np.empty_like(v)
    for t in range(len(x)):
        s *= kept[t, :, None, None]
        error = learned[t, :, None] * (v[t] - np.einsum("hk,hkv->hv", k[t], s))
        s += k[t, :, :, None] * error[:, None]
        out[t] = np.einsum("hk,hkv->hv", q[t], s)
    return out.reshape(len(x), -1)


def state_scan(
    op: StateScan, x: Floats, step: Floats, rate: Floats, bias: Floats, skip: Floats, s: Floats
) -> Floats:
    """Return the outputs of one sequence; update ``s`` ``[num_heads, state_dim, head_dim]`` in
    place.
    """
    inner, width = op.num_heads * op.head_dim, op.num_groups * op.state_dim
    groups = np.arange(op.num_heads) // (op.num_heads // op.num_groups)

    def of_heads(part: Floats) -> Floats:
        return part.reshape(len(x), op.num_groups, op.state_dim)[:, groups]

    b, c = of_heads(x[:, inner : inner + width]), of_heads(x[:, inner + width :])
    inputs = x[:, :inner].reshape(len(x), op.num_heads, op.head_dim)
    steps = np.clip(softplus(step + bias), np.float32(op.least_step), op.largest_step)
    kept: Floats = np.exp(rate * steps)
    out = np.empty_like(inputs)
    for t in range(len(x)):
        s *= kept[t, :, None, None]
        s += b[t, :, :, None] * (steps[t, :, None] * inputs[t])[:, None]
        out[t] = np.einsum("hs,hsd->hd", c[t], s) + skip[:, None] * inputs[t]
    return out.reshape(len(x), -1)


def sigmoid_gate(x: Floats, gate: Floats) -> Floats:
    """Return ``x * sigmoid(gate)``; ``gate`` has as many columns as ``x``, or one."""
    return x * sigmoid(gate)


def add(x: Floats, y: Floats, scale: float) -> Floats:
    """Return ``x + scale * y``."""
    return x + y if scale == 1 else x + np.float32(scale) * y


def head(
    x: Floats,
    weight: Floats,
    wanted: Ints,
    scale: float,
    softcap: float | None,
    multiply: Product = product,
) -> Floats:
    """Return logits ``[len(wanted), vocab]`` of the tokens at the rows ``wanted`` of ``x``."""
    logits = multiply(x[wanted], weight)
    return cap(logits if scale == 1 else logits * np.float32(scale), softcap)
