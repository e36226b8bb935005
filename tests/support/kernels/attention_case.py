"""Cases for the attention kernels, with what they must give."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from support.kernels.inputs import F32, F64, U, guarded, guarded_output

from potluck.kernels import Kernels

SPAN_TOKENS = 256
"""Positions that have a maximum and a sum of their own (``kSpanTokens`` in the core)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCase:
    """Neighbouring tokens of a sequence, the first at ``position``, and a cache in shuffled blocks
    that is NaN wherever none of them sees anything.

    With a ``value_start`` the values are columns of the keys.
    """

    q: F32  # [tokens, heads, head_dim]
    position: int
    window: int | None
    keys: NDArray[np.uint16]
    values: NDArray[np.uint16] | None
    block_table: NDArray[np.int32]
    plain_keys: F64  # [positions, kv_heads, head_dim]
    plain_values: F64
    scale: float
    value_start: int | None = None
    softcap: float = 0.0
    sinks: F32 | None = None

    @classmethod
    def make(
        cls,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        position: int,
        num_tokens: int = 1,
        window: int | None = None,
        value_dim: int | None = None,
        value_start: int | None = None,
    ) -> AttentionCase:
        """Values are as wide as keys, unless ``value_dim`` says otherwise."""
        rng = np.random.default_rng(position + head_dim)
        num_positions = -(-(position + num_tokens) // 16) * 16
        shape = (num_positions, num_kv_heads)
        q = rng.standard_normal((num_tokens, num_heads, head_dim)).astype(np.float32)
        keys = rng.standard_normal((*shape, head_dim)).astype(np.float16)
        if value_start is None:
            values = rng.standard_normal((*shape, value_dim or head_dim)).astype(np.float16)
        else:
            values = keys[..., value_start : value_start + (value_dim or head_dim)]
        return cls._of(
            q=q,
            position=position,
            window=window,
            plain_keys=keys,
            plain_values=values,
            value_start=value_start,
        )

    @classmethod
    def _of(
        cls,
        *,
        q: F32,
        position: int,
        window: int | None,
        plain_keys: NDArray[np.float16],
        plain_values: NDArray[np.float16],
        value_start: int | None,
    ) -> AttentionCase:
        num_tokens, _, head_dim = q.shape
        _, num_kv_heads, value_dim = plain_values.shape
        first, _ = visible(position, window)
        k, v = plain_keys.copy(), plain_values.copy()
        k[:first] = v[:first] = np.nan
        k[position + num_tokens :] = v[position + num_tokens :] = np.nan
        num_blocks = len(k) // 16
        padded = -(-value_dim // 16) * 16
        rng = np.random.default_rng(num_blocks)
        table = rng.permutation(num_blocks + 2)[:num_blocks].astype(np.int32)
        keys = np.full((num_blocks + 2, num_kv_heads, head_dim, 16), np.nan, np.float16)
        values = np.full((num_blocks + 2, num_kv_heads, 16, padded), np.nan, np.float16)
        keys[table] = k.reshape(num_blocks, 16, num_kv_heads, head_dim).transpose(0, 2, 3, 1)
        values[table, ..., :value_dim] = v.reshape(
            num_blocks, 16, num_kv_heads, value_dim
        ).transpose(0, 2, 1, 3)
        return cls(
            q=q,
            position=position,
            window=window,
            keys=keys.view(np.uint16),
            values=values.view(np.uint16) if value_start is None else None,
            block_table=table,
            plain_keys=plain_keys.astype(np.float64),
            plain_values=plain_values.astype(np.float64),
            scale=head_dim**-0.5,
            value_start=value_start,
        )

    def alone(self, token: int) -> AttentionCase:
        """One of the tokens, with NaN wherever it sees nothing, and blocks in another order."""
        position = self.position + token
        num_positions = -(-(position + 1) // 16) * 16
        case = self._of(
            q=self.q[token : token + 1],
            position=position,
            window=self.window,
            plain_keys=self.plain_keys[:num_positions].astype(np.float16),
            plain_values=self.plain_values[:num_positions].astype(np.float16),
            value_start=self.value_start,
        )
        return replace(case, softcap=self.softcap, sinks=self.sinks)

    def with_stored_values(self) -> AttentionCase:
        """The same with values that lie beside the keys."""
        return self._of(
            q=self.q,
            position=self.position,
            window=self.window,
            plain_keys=self.plain_keys.astype(np.float16),
            plain_values=self.plain_values.astype(np.float16),
            value_start=None,
        )

    def run(self, kernels: Kernels, *, in_parts: bool = False) -> F32:
        num_tokens, num_heads, _ = self.q.shape
        value_dim = self.plain_values.shape[2]
        out = guarded_output(num_tokens, num_heads, value_dim, dtype=np.float32)
        attention = kernels.attention_in_parts if in_parts else kernels.attention
        attention(
            guarded(self.q),
            guarded(self.keys),
            None if self.values is None else guarded(self.values),
            guarded(self.block_table),
            self.position,
            self.window,
            self.scale,
            out.array,
            self.softcap,
            None if self.sinks is None else guarded(self.sinks),
            self.value_start or 0,
        )
        out.assert_intact()
        return out.array

    def oracle(self) -> tuple[F64, F64]:
        """The result in float64, and how far the kernels' may be from it."""
        results = [self._oracle_of(token) for token in range(len(self.q))]
        return np.stack([out for out, _ in results]), np.stack([limit for _, limit in results])

    def _oracle_of(self, token: int) -> tuple[F64, F64]:
        first, end = visible(self.position + token, self.window)
        q = self.q[token].astype(np.float64)
        heads_per_kv = len(q) // self.plain_keys.shape[1]
        keys = np.repeat(self.plain_keys[first:end], heads_per_kv, axis=1)
        values = np.repeat(self.plain_values[first:end], heads_per_kv, axis=1)
        scores = np.einsum("hd,phd->hp", q, keys) * self.scale
        if self.softcap:
            scores = self.softcap * np.tanh(scores / self.softcap)
        terms = np.exp(scores)
        sink = 0.0 if self.sinks is None else np.exp(self.sinks.astype(np.float64))[:, None]
        weights = terms / (terms.sum(axis=1, keepdims=True) + sink)
        out = np.einsum("hp,phd->hd", weights, values)
        # A score's error: one rounding per element and the scale's. It and the largest one's are in
        # each exponent, and once more in the sum; a cap adds 8 U of its own. Then exp (1 ulp), two
        # chains over the positions, and per further span, as which a sink counts, two more exps and
        # two operations in each chain.
        norms = np.einsum("hd,phd->hp", np.abs(q), np.abs(keys)) * self.scale
        score_error = (q.shape[1] + 2) * U * norms.max(axis=1) + 8 * U * self.softcap
        num_merges = (end - 1) // SPAN_TOKENS - first // SPAN_TOKENS + (self.sinks is not None)
        relative = 4 * score_error + (2 * (end - first) + 8 + 12 * num_merges) * U
        spread = np.einsum("hp,phd->hd", weights, np.abs(values))
        return out, relative[:, None] * spread


def visible(position: int, window: int | None) -> tuple[int, int]:
    """The half-open range of positions that a token sees."""
    return max(0, position + 1 - (window or position + 1)), position + 1
