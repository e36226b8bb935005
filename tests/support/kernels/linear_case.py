"""Cases for the linear kernels, with what they must give."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from support.kernels.inputs import (
    F32,
    F64,
    StoredWeights,
    U,
    guarded,
    guarded_output,
    make_weights,
)

from potluck.kernels import Kernels
from potluck.types.tensor import TensorFormat


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


def run_round_bf16(kernels: Kernels, x: F32) -> NDArray[np.uint16]:
    out = guarded_output(x.size, dtype=np.uint16)
    kernels.round_bf16(guarded(x.reshape(-1)), out.array)
    out.assert_intact()
    return out.array.reshape(x.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearCase:
    """A weight, activations as numbers and as integers, and a bias."""

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
        num_rows: int,
        num_tokens: int,
    ) -> LinearCase:
        rng = np.random.default_rng(num_columns)
        x = rng.standard_normal((num_tokens, num_columns)).astype(np.float32)
        return cls(
            weights=make_weights(format, num_rows, num_columns, rng),
            x=x,
            quantized=run_quantize(scalar, x) if format.is_quantized else None,
            bias=rng.standard_normal(num_rows).astype(np.float32),
        )

    def with_bf16_activations(self) -> LinearCase:
        """With activations that a kernel does not round, as they are bf16 already."""
        bits = self.x.view(np.uint32) & 0xFFFF0000
        return replace(self, x=bits.astype(np.uint32).view(np.float32))

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

    def run_fast(self, kernels: Kernels, num_rows: int, num_tokens: int) -> F32:
        """The product that is not exact, for the first rows and tokens, checked as ``run`` does."""
        label = self.weights.format.label
        panels = guarded(self.weights.panels(num_rows))
        output = guarded_output(num_tokens, num_rows + 5, dtype=np.float32)
        out = output.array[:, :num_rows]
        x = guarded(run_round_bf16(kernels, self.x[:num_tokens]))
        bias = guarded(self.bias[:num_rows])
        kernels.linear_fast(label, panels, x, bias, out, 0, -(-num_rows // 16))
        output.assert_intact()
        assert np.isnan(output.array[:, num_rows:]).all()
        return np.ascontiguousarray(out)

    def fast_oracle(self, values: F32) -> tuple[F64, F64]:
        """As ``oracle`` for activations as numbers and weights that are worth ``values``."""
        weights = values.astype(np.float64)
        norms = np.abs(self.x.astype(np.float64)) @ np.abs(weights).T + np.abs(self.bias)
        expected = self.x.astype(np.float64) @ weights.T + self.bias
        return expected, (self.weights.num_columns + 1) * U * norms

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
            # |scale * v| <= |w| + |minimum|, and the minimum's own term. Per group an fma for each
            # of the two and a rounding in each factor (scale * scale, scale * sum).
            magnitudes = magnitudes + 2 * self.weights.minimums
            num_roundings = 4 * (self.weights.num_columns // 32)
        norms = np.abs(activations) @ magnitudes.T + np.abs(self.bias)
        return activations @ values.T + self.bias, (num_roundings + 1) * U * norms
