"""Each op against its formula, written out with Python floats and loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from support.reference import ops

from potluck.types.program import Activation, Moe

Floats = NDArray[np.float32]


def floats(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_embed() -> None:
    weight = floats(5, 3)
    out = ops.embed(weight, np.array([4, 0, 4]))
    np.testing.assert_array_equal(out, [weight[4], weight[0], weight[4]])


@pytest.mark.parametrize("group", [12, 4])
def test_rms_norm(group: int) -> None:
    x, weight = floats(2, 12), floats(group, seed=1)
    out = ops.rms_norm(x, weight, group, 0.1)
    for row in range(2):
        for column in range(12):
            start = column // group * group
            members = [float(x[row, start + i]) for i in range(group)]
            root = math.sqrt(sum(value * value for value in members) / group + 0.1)
            expected = float(x[row, column]) / root * float(weight[column % group])
            assert out[row, column] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("with_bias", [False, True])
def test_linear(with_bias: bool) -> None:
    x, weight = floats(2, 3), floats(4, 3, seed=1)
    bias = floats(4, seed=2) if with_bias else None
    out = ops.linear(x, weight, bias)
    for token in range(2):
        for row in range(4):
            expected = sum(float(x[token, i]) * float(weight[row, i]) for i in range(3))
            expected += float(bias[row]) if bias is not None else 0.0
            assert out[token, row] == pytest.approx(expected, rel=1e-5)


def test_rope_turns_pairs_that_lie_half_a_head_apart() -> None:
    x = floats(2, 3 * 4)
    angles = np.array([[0.1, 0.2], [0.3, 0.4]])
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    out = ops.rope(x, cos, sin, num_heads=3)
    for token in range(2):
        for head in range(3):
            for i in range(2):
                a, b = x[token, head * 4 + i], x[token, head * 4 + i + 2]
                turned = complex(a, b) * np.exp(1j * angles[token, i])
                assert out[token, head * 4 + i] == pytest.approx(turned.real, abs=1e-6)
                assert out[token, head * 4 + i + 2] == pytest.approx(turned.imag, abs=1e-6)


@pytest.mark.parametrize("window", [None, 1, 3])
def test_attention(window: int | None) -> None:
    num_heads, num_kv_heads, head_dim, num_positions = 6, 2, 4, 7
    q = floats(2, num_heads, head_dim)
    keys = floats(num_positions, num_kv_heads, head_dim, seed=1)
    values = floats(num_positions, num_kv_heads, head_dim, seed=2)
    positions = np.array([4, 6])
    out = ops.attention(q, keys, values, positions, 0.7, window)
    for token, position in enumerate((4, 6)):
        first = 0 if window is None else max(0, position - window + 1)
        for head in range(num_heads):
            kv_head = head // 3
            scores = [
                0.7 * float(np.dot(q[token, head], keys[p, kv_head]))
                for p in range(first, position + 1)
            ]
            weights = [math.exp(score) for score in scores]
            for i in range(head_dim):
                expected = sum(
                    weight * float(values[first + p, kv_head, i])
                    for p, weight in enumerate(weights)
                ) / sum(weights)
                assert out[token, head, i] == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_softmax_survives_large_scores() -> None:
    shares = ops.softmax(np.array([[1e4, 1e4 - math.log(3), -np.inf]], dtype=np.float32))
    np.testing.assert_allclose(shares, [[0.75, 0.25, 0]], rtol=1e-3)


def test_silu_gate() -> None:
    gate = np.array([[-200.0, -1.0, 0.0, 2.0]], dtype=np.float32)
    up = np.array([[3.0, 2.0, 5.0, -1.5]], dtype=np.float32)
    expected = [0.0, -2 / (1 + math.e), 0.0, -3 / (1 + math.exp(-2))]
    np.testing.assert_allclose(
        ops.gated_activation(gate, up, Activation.SILU)[0], expected, rtol=1e-6
    )


@pytest.mark.parametrize("norm_topk_prob", [True, False])
def test_moe(norm_topk_prob: bool) -> None:
    num_tokens, num_experts, width, columns = 3, 4, 5, 6
    x, logits = floats(num_tokens, columns), floats(num_tokens, num_experts, seed=1)
    gate, up = (floats(num_experts, width, columns, seed=seed) for seed in (2, 3))
    down = floats(num_experts, columns, width, seed=4)
    op = Moe(
        x="x",
        logits="logits",
        gate="gate",
        up="up",
        down="down",
        out="x",
        num_experts=num_experts,
        num_experts_per_token=2,
        expert_width=width,
        norm_topk_prob=norm_topk_prob,
    )
    out = ops.moe(op, x, logits, gate, up, down, ops.ExpertVectors())
    for token in range(num_tokens):
        exps = [math.exp(logit) for logit in logits[token]]
        chosen = sorted(range(num_experts), key=lambda e: exps[e])[-2:]
        total = sum(exps[e] for e in chosen) if norm_topk_prob else sum(exps)
        expected = np.zeros(columns)
        for expert in chosen:
            a = gate[expert].astype(float) @ x[token]
            inner = a / (1 + np.exp(-a)) * (up[expert].astype(float) @ x[token])
            expected += exps[expert] / total * (down[expert].astype(float) @ inner)
        np.testing.assert_allclose(out[token], expected, rtol=1e-4, atol=1e-5)


def test_experts_are_chosen_by_size_and_then_by_index() -> None:
    logits = np.array([[0, 0, 0, 0], [1, 3, 2, 3], [1, 2, 2, 2], [-1, -2, -3, -4]], np.float32)
    assert ops.choose_experts(logits, 2).tolist() == [[0, 1], [1, 3], [1, 2], [0, 1]]


def test_add() -> None:
    x, y = floats(2, 3), floats(2, 3, seed=1)
    out = ops.add(x, y, 1.0)
    assert out[1, 2] == x[1, 2] + y[1, 2]


def test_head_computes_wanted_rows_only() -> None:
    x, weight = floats(4, 3), floats(5, 3, seed=1)
    out = ops.head(x, weight, np.array([1, 3]), 1.0, None)
    assert out.shape == (2, 5)
    assert out[1, 4] == pytest.approx(float(np.dot(x[3], weight[4])), rel=1e-5)
