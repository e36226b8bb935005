"""Cases for the attention kernels, with what they must give."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from support.kernel_inputs import F32, F64, U, guarded, guarded_output

from potluck.kernels import Kernels


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
        # each exponent, and once more in the sum. Then exp (1 ulp), two chains over the positions.
        norms = np.einsum("hd,phd->hp", np.abs(q), np.abs(keys)) * self.scale
        score_error = (q.shape[1] + 2) * U * norms.max(axis=1)
        num_positions = position + 1 - first_position
        relative = 4 * score_error + (2 * num_positions + 8) * U
        spread = np.einsum("hp,phd->hd", weights, np.abs(values))
        return out, relative[:, None] * spread
