"""What is demanded of every kernel, as functions that raise ``AssertionError``.

The scalar kernels are compared with NumPy in float64, to a tolerance derived from the norms of what
is summed and the rounding errors of each operation; where an operation is exact or rounds once, bit
for bit. The other instruction sets are compared with the scalar kernels bit for bit. The shapes are
ragged on purpose; inputs are misaligned and surrounded by NaN, outputs guarded.

``U`` is the unit roundoff of float32: one rounding changes a result by at most ``U`` times itself, a
chain of n roundings by n U times the sum of the magnitudes (Higham, Accuracy and Stability of
Numerical Algorithms, 2002, section 3.1; n U is far below 1 here).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from support.kernel_inputs import (
    F32,
    F64,
    FORMATS,
    StoredWeights,
    guarded,
    guarded_output,
    make_weights,
    same_bits,
)

from potluck.kernels import Kernels
from potluck.types.tensor import TensorFormat

U = 2.0**-24
ROWS = (1, 3, 15, 16, 17, 33)
TOKENS = (1, 2, 3, 7, 8, 9, 17)
FLOAT_COLUMNS = (1, 7, 8, 24, 31, 33, 257)
LENGTHS = (1, 3, 7, 15, 16, 17, 31, 32, 33, 250)
KERNELS_OF_FORMATS = ("linear", "embed")


def assert_close(actual: F32, expected: F64, tolerance: F64 | float) -> None:
    """Every element within its own tolerance; NaN never is."""
    assert (np.abs(actual - expected) <= tolerance).all(), np.nanmax(np.abs(actual - expected))


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantized:
    """What ``quantize`` makes of activations."""

    q: NDArray[np.int8]
    scales: F32
    sums: NDArray[np.int32]


def run_quantize(kernels: Kernels, x: F32) -> Quantized:
    tokens, columns = x.shape
    q = guarded_output(tokens, columns, dtype=np.int8)
    scales = guarded_output(tokens, columns // 32, dtype=np.float32)
    sums = guarded_output(tokens, columns // 32, dtype=np.int32)
    kernels.quantize(guarded(x), q.array, scales.array, sums.array)
    for output in (q, scales, sums):
        output.assert_intact()
    return Quantized(q=q.array, scales=scales.array, sums=sums.array)


def check_quantize(kernels: Kernels, scalar: Kernels) -> None:
    rng = np.random.default_rng(1)
    for tokens, columns in ((1, 32), (3, 96), (17, 256)):
        x = rng.standard_normal((tokens, columns)).astype(np.float32)
        x *= 10.0 ** rng.integers(-20, 20, (tokens, 1)).astype(np.float32)
        x[0, -32:] *= rng.integers(0, 2, 32).astype(np.float32)
        made = run_quantize(kernels, x)
        groups = x.reshape(tokens, -1, 32)
        largest = np.abs(groups).max(axis=2)
        assert same_bits(made.scales, largest / np.float32(127))
        # Two roundings, of 127 / max and of the product, before that to an integer.
        exact = groups.astype(np.float64) * 127 / largest[..., None]
        q = made.q.reshape(groups.shape)
        assert (np.abs(q - exact) <= 0.5 + 2 * 127 * U).all()
        assert (made.sums == q.sum(axis=2, dtype=np.int32)).all()
        reference = run_quantize(scalar, x)
        assert same_bits(made.q, reference.q)
        assert same_bits(made.scales, reference.scales)
        assert same_bits(made.sums, reference.sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearCase:
    """A weight, activations in both forms, and a bias."""

    weights: StoredWeights
    x: F32
    quantized: Quantized | None
    bias: F32

    @classmethod
    def make(
        cls,
        scalar: Kernels,
        format: TensorFormat,
        num_columns: int,
        num_rows: int = ROWS[-1],
        num_tokens: int = TOKENS[-1],
    ) -> LinearCase:
        rng = np.random.default_rng(num_columns)
        x = rng.standard_normal((num_tokens, num_columns)).astype(np.float32)
        return cls(
            weights=make_weights(format, num_rows, num_columns, rng),
            x=x,
            quantized=run_quantize(scalar, x) if format.is_quantized else None,
            bias=rng.standard_normal(num_rows).astype(np.float32),
        )

    def run(
        self,
        kernels: Kernels,
        num_rows: int,
        num_tokens: int,
        *,
        with_bias: bool = True,
        panel_ranges: tuple[tuple[int, int], ...] | None = None,
    ) -> F32:
        """The product for the first rows and tokens, checked for writes outside of it."""
        format = self.weights.format.label
        panels = guarded(self.weights.panels(num_rows))
        bias = guarded(self.bias[:num_rows]) if with_bias else None
        # Rows of the output lie apart: what is between them must stay as it is.
        output = guarded_output(num_tokens, num_rows + 5, dtype=np.float32)
        out = output.array[:, :num_rows]
        for first, end in panel_ranges or ((0, -(-num_rows // 16)),):
            if self.quantized is None:
                x = guarded(self.x[:num_tokens])
                kernels.linear_float(format, panels, x, bias, out, first, end)
            else:
                q = guarded(self.quantized.q[:num_tokens])
                scales = guarded(self.quantized.scales[:num_tokens])
                sums = guarded(self.quantized.sums[:num_tokens])
                kernels.linear_quantized(format, panels, q, scales, sums, bias, out, first, end)
        output.assert_intact()
        assert np.isnan(output.array[:, num_rows:]).all()
        return np.ascontiguousarray(out)

    def oracle(self) -> tuple[F64, F64]:
        """The product with bias in float64, and the tolerance of each element."""
        values = self.weights.values.astype(np.float64)
        magnitudes = np.abs(values)
        if self.quantized is None:
            activations = self.x.astype(np.float64)
            # One rounding per column.
            num_roundings = self.weights.num_columns
        else:
            scales = np.repeat(self.quantized.scales.astype(np.float64), 32, axis=1)
            activations = self.quantized.q * scales
            # |scale * v| <= |w| + |minimum|, and the minimum's own term. Per group an fma for each of
            # the two and a rounding in each factor (scale * scale, scale * sum).
            magnitudes = magnitudes + 2 * self.weights.minimums
            num_roundings = 4 * (self.weights.num_columns // 32)
        norms = np.abs(activations) @ magnitudes.T + np.abs(self.bias)
        return activations @ values.T + self.bias, (num_roundings + 1) * U * norms


def columns_for(format: TensorFormat) -> tuple[int, ...]:
    if not format.is_quantized:
        return FLOAT_COLUMNS
    return tuple(format.block_elements * num_blocks for num_blocks in (1, 2, 3))


def check_linear(kernels: Kernels, scalar: Kernels, format: TensorFormat) -> None:
    for num_columns in columns_for(format):
        case = LinearCase.make(scalar, format, num_columns)
        expected, tolerance = case.oracle()
        reference = case.run(scalar, ROWS[-1], TOKENS[-1])
        if kernels.isa == "scalar":
            assert_close(reference, expected, tolerance)
        # However many rows and tokens there are, an element has the same bits.
        for num_rows in ROWS:
            for num_tokens in TOKENS:
                made = case.run(kernels, num_rows, num_tokens)
                assert same_bits(made, np.ascontiguousarray(reference[:num_tokens, :num_rows]))


def check_embed(kernels: Kernels, scalar: Kernels, format: TensorFormat) -> None:
    del scalar  # exact, so that all have the oracle's bits
    rng = np.random.default_rng(3)
    for num_columns in columns_for(format):
        weights = make_weights(format, 33, num_columns, rng)
        for num_rows in (1, 17, 33):
            panels = guarded(weights.panels(num_rows))
            for row in {0, num_rows // 2, num_rows - 1}:
                out = guarded_output(num_columns, dtype=np.float32)
                kernels.embed(format.label, panels, num_rows, row, out.array)
                out.assert_intact()
                assert (out.array == weights.values[row]).all()


def check_rms_norm(kernels: Kernels, scalar: Kernels) -> None:
    rng = np.random.default_rng(4)
    epsilon = 1e-5
    for num_tokens, num_groups, group in (
        (1, 1, 1),
        (3, 2, 8),
        (2, 3, 24),
        (7, 1, 33),
        (2, 1, 2048),
    ):
        x = rng.standard_normal((num_tokens, num_groups * group)).astype(np.float32)
        x[:, -1] = 1.5
        weight = rng.uniform(0.5, 1.5, group).astype(np.float32)

        def run(which: Kernels, x: F32 = x, weight: F32 = weight) -> F32:
            out = guarded_output(*x.shape, dtype=np.float32)
            which.rms_norm(guarded(x), guarded(weight), out.array, epsilon)
            out.assert_intact()
            return out.array

        made = run(kernels)
        wide = x.reshape(num_tokens, num_groups, group).astype(np.float64)
        root = np.sqrt((wide**2).mean(axis=2, keepdims=True) + epsilon)
        expected = (wide / root * weight).reshape(x.shape)
        # Half the error of the mean (a chain of group / 16, a tree of 4, a division, an addition),
        # then a root, a division and two products.
        assert_close(made, expected, ((group / 16 + 7) / 2 + 4) * U * np.abs(expected))
        assert same_bits(made, run(scalar))
        in_place = np.array(x)
        kernels.rms_norm(in_place, weight, in_place, epsilon)
        assert same_bits(in_place, np.ascontiguousarray(made))


def check_rope(kernels: Kernels, scalar: Kernels) -> None:
    del scalar  # three roundings in a given order: all have NumPy's bits
    rng = np.random.default_rng(5)
    for num_heads, head_dim in ((1, 8), (3, 24), (2, 40), (5, 64), (2, 128)):
        x = rng.standard_normal((num_heads, head_dim)).astype(np.float32)
        angles = rng.uniform(0.1, 6.0, head_dim // 2)
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        a, b = np.split(x, 2, axis=1)
        expected = np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=1)
        output = guarded_output(num_heads, head_dim, dtype=np.float32)
        output.array[...] = x
        kernels.rope(output.array, guarded(cos), guarded(sin))
        output.assert_intact()
        assert same_bits(output.array, expected)


def check_silu_gate(kernels: Kernels, scalar: Kernels) -> None:
    rng = np.random.default_rng(6)
    for length in LENGTHS:
        gate = (rng.standard_normal(length) * 4).astype(np.float32)
        gate[: length // 8] *= 8
        up = rng.uniform(0.5, 2.0, length).astype(np.float32)
        out = guarded_output(length, dtype=np.float32)
        kernels.silu_gate(guarded(gate), guarded(up), out.array)
        out.assert_intact()
        expected = gate.astype(np.float64) / (1 + np.exp(-gate.astype(np.float64))) * up
        # exp within 2 ulp (4 U), then a sum, a quotient and a product. Where exp(-gate) is
        # infinite the result is 0 instead of less than 89 exp(-88.7) < 3e-37.
        assert_close(out.array, expected, 7 * U * np.abs(expected) + 3e-37 * up)
        reference = np.empty_like(gate)
        scalar.silu_gate(gate, up, reference)
        assert same_bits(out.array, reference)


def check_add(kernels: Kernels, scalar: Kernels) -> None:
    del scalar  # one rounding: all have NumPy's bits
    rng = np.random.default_rng(7)
    for length in LENGTHS:
        x = rng.standard_normal(length).astype(np.float32)
        y = rng.standard_normal(length).astype(np.float32)
        output = guarded_output(length, dtype=np.float32)
        output.array[...] = x
        kernels.add(output.array, guarded(y))
        output.assert_intact()
        assert same_bits(output.array, x + y)


def check_append_kv(kernels: Kernels, scalar: Kernels) -> None:
    del scalar  # one rounding: all have NumPy's bits
    rng = np.random.default_rng(8)
    for num_kv_heads, head_dim in ((1, 8), (3, 24), (2, 64)):
        padded = -(-head_dim // 16) * 16
        keys = guarded_output(3, num_kv_heads, head_dim, 16, dtype=np.uint16)
        values = guarded_output(3, num_kv_heads, 16, padded, dtype=np.uint16)
        expected_keys, expected_values = keys.array.copy(), values.array.copy()
        for block, offset in ((0, 0), (2, 15), (1, 6)):
            k = rng.standard_normal((num_kv_heads, head_dim)).astype(np.float32)
            v = rng.standard_normal((num_kv_heads, head_dim)).astype(np.float32)
            kernels.append_kv(guarded(k), guarded(v), keys.array, values.array, block, offset)
            expected_keys[block, :, :, offset] = k.astype(np.float16).view(np.uint16)
            expected_values[block, :, offset, :head_dim] = v.astype(np.float16).view(np.uint16)
            expected_values[block, :, offset, head_dim:] = 0
            keys.assert_intact()
            values.assert_intact()
        assert same_bits(keys.array, expected_keys)
        assert same_bits(values.array, expected_values)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCase:
    """A cache in shuffled blocks, NaN wherever the sequence has no position, and a query."""

    q: F32
    keys: NDArray[np.uint16]
    values: NDArray[np.uint16]
    block_table: NDArray[np.int32]
    plain_keys: F64  # [positions, kv_heads, head_dim]
    plain_values: F64
    scale: float

    @classmethod
    def make(
        cls, num_heads: int, num_kv_heads: int, head_dim: int, first_position: int, position: int
    ) -> AttentionCase:
        rng = np.random.default_rng(position + head_dim)
        num_blocks = position // 16 + 1
        padded = -(-head_dim // 16) * 16
        table = rng.permutation(num_blocks + 2)[:num_blocks].astype(np.int32)
        shape = (num_blocks * 16, num_kv_heads, head_dim)
        k = rng.standard_normal(shape).astype(np.float16)
        v = rng.standard_normal(shape).astype(np.float16)
        k[:first_position] = v[:first_position] = np.nan
        k[position + 1 :] = v[position + 1 :] = np.nan
        keys = np.full((num_blocks + 2, num_kv_heads, head_dim, 16), np.nan, np.float16)
        values = np.full((num_blocks + 2, num_kv_heads, 16, padded), np.nan, np.float16)
        keys[table] = k.reshape(num_blocks, 16, num_kv_heads, head_dim).transpose(0, 2, 3, 1)
        values[table, ..., :head_dim] = v.reshape(num_blocks, 16, num_kv_heads, head_dim).transpose(
            0, 2, 1, 3
        )
        return cls(
            q=rng.standard_normal((num_heads, head_dim)).astype(np.float32),
            keys=keys.view(np.uint16),
            values=values.view(np.uint16),
            block_table=table,
            plain_keys=k.astype(np.float64),
            plain_values=v.astype(np.float64),
            scale=head_dim**-0.5,
        )

    def run(self, kernels: Kernels, first_position: int, position: int) -> F32:
        out = guarded_output(*self.q.shape, dtype=np.float32)
        kernels.attention(
            guarded(self.q),
            guarded(self.keys),
            guarded(self.values),
            guarded(self.block_table),
            first_position,
            position,
            self.scale,
            out.array,
        )
        out.assert_intact()
        return out.array

    def oracle(self, first_position: int, position: int) -> tuple[F64, F64]:
        visible = slice(first_position, position + 1)
        heads_per_kv = self.q.shape[0] // self.plain_keys.shape[1]
        keys = np.repeat(self.plain_keys[visible], heads_per_kv, axis=1)
        values = np.repeat(self.plain_values[visible], heads_per_kv, axis=1)
        q = self.q.astype(np.float64)
        scores = np.einsum("hd,phd->hp", q, keys) * self.scale
        terms = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights = terms / terms.sum(axis=1, keepdims=True)
        out = np.einsum("hp,phd->hd", weights, values)
        # A score's error: one rounding per element and the scale's. It and the largest one's are in
        # each exponent, and once more in the sum. Then exp (2 ulp), two chains over the positions.
        norms = np.einsum("hd,phd->hp", np.abs(q), np.abs(keys)) * self.scale
        score_error = (q.shape[1] + 2) * U * norms.max(axis=1)
        num_positions = position + 1 - first_position
        relative = 4 * score_error + (2 * num_positions + 16) * U
        spread = np.einsum("hp,phd->hd", weights, np.abs(values))
        return out, relative[:, None] * spread


def check_attention(kernels: Kernels, scalar: Kernels) -> None:
    shapes = ((1, 1, 8), (4, 2, 24), (8, 2, 64), (7, 1, 40), (6, 6, 128))
    ranges = ((0, 0), (0, 5), (0, 15), (0, 16), (0, 50), (3, 9), (17, 40), (31, 47), (30, 30))
    for num_heads, num_kv_heads, head_dim in shapes:
        for first_position, position in ranges:
            case = AttentionCase.make(num_heads, num_kv_heads, head_dim, first_position, position)
            made = case.run(kernels, first_position, position)
            assert_close(made, *case.oracle(first_position, position))
            assert same_bits(made, case.run(scalar, first_position, position))


def check_exp_sum(kernels: Kernels, scalar: Kernels) -> None:
    rng = np.random.default_rng(10)
    for length in LENGTHS:
        x = (rng.standard_normal(length) * 3).astype(np.float32)
        largest = float(x.max())
        out = guarded_output(length, dtype=np.float32)
        total = kernels.exp_sum(guarded(x), largest, out.array)
        out.assert_intact()
        expected = np.exp((x - x.max()).astype(np.float64))
        assert_close(out.array, expected, 4 * U * expected)
        # Besides, a chain of length / 16 and a tree of 4.
        assert abs(total - expected.sum()) <= (length / 16 + 5 + 4) * U * expected.sum()
        reference = np.empty_like(x)
        assert total == scalar.exp_sum(x, largest, reference)
        assert same_bits(out.array, reference)


_PLAIN_CHECKS: dict[str, Callable[[Kernels, Kernels], None]] = {
    "quantize": check_quantize,
    "rms_norm": check_rms_norm,
    "rope": check_rope,
    "silu_gate": check_silu_gate,
    "add": check_add,
    "append_kv": check_append_kv,
    "attention": check_attention,
    "exp_sum": check_exp_sum,
}
_FORMAT_CHECKS: dict[str, Callable[[Kernels, Kernels, TensorFormat], None]] = {
    "linear": check_linear,
    "embed": check_embed,
}
KERNEL_NAMES = (
    *_PLAIN_CHECKS,
    *(f"{kernel}.{format.label}" for kernel in _FORMAT_CHECKS for format in FORMATS),
)


def check_kernel(name: str, kernels: Kernels, scalar: Kernels) -> None:
    """Run the check of ``kernel`` or ``kernel.format`` on ``kernels``."""
    kernel, _, label = name.partition(".")
    if kernel in _PLAIN_CHECKS:
        _PLAIN_CHECKS[kernel](kernels, scalar)
    else:
        format = next(format for format in FORMATS if format.label == label)
        _FORMAT_CHECKS[kernel](kernels, scalar, format)
