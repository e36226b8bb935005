"""Attention over the paged cache, as kernels that read block tables on the device.

tinygrad would gather the keys of every token into a separate copy; these kernels load each key in
place. They are written in tinygrad's intermediate language, so that every backend supports them,
and tinygrad chooses how to spread their ranges over a device. In all of them, ``T`` rows are the
tokens of a call; a token's table has the cache block of every 16 of its sequence's positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from potluck.engines.tinygrad.adapter import AxisType, Ops, Tensor, UOp, dtypes, own_kernel
from potluck.types.step import KV_BLOCK_TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable

    from potluck.types.program import Attention, CacheSpec

_LAST_BLOCK = "last_block"


def bound_last_block(num_blocks: int, most: int) -> UOp:
    """Return the index of the last table block that a call reads, as a bound variable of its graph.

    The variable is not the number of blocks, because tinygrad 0.14.0 records a CUDA graph with all
    variables 0, and CUDA rejects a kernel whose grid has a size of 0.
    """
    return UOp.variable(_LAST_BLOCK, 0, most - 1).bind(num_blocks - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTensors:
    """Keys and values of one attention op, each ``[num_slots * num_kv_heads * head_dim]``."""

    keys: Tensor
    values: Tensor


def append(
    cache: CacheTensors, spec: CacheSpec, k: Tensor, v: Tensor, slots: Tensor
) -> CacheTensors:
    """Return the cache with ``k`` and ``v`` ``[T, num_kv_heads * head_dim]`` at ``slots``."""
    width = spec.num_kv_heads * spec.head_dim

    def kernel(keys: UOp, values: UOp, k: UOp, v: UOp, slots: UOp) -> UOp:
        row, column = UOp.range(k.shape[0], 0), UOp.range(width, 1)
        place = _index(slots[row]) * width + column
        stores = [
            store[place].store(given[row, column].load().cast(store.dtype))
            for store, given in ((keys, k), (values, v))
        ]
        return own_kernel("kv_append", cache.keys.device, UOp.group(*stores).end(row, column))

    keys, values, *_ = Tensor.custom_kernel(cache.keys, cache.values, k, v, slots, fxn=kernel)
    return CacheTensors(keys=keys, values=values)


def copy_block(cache: CacheTensors, spec: CacheSpec, blocks: Tensor) -> CacheTensors:
    """Return the cache after copying block ``blocks[0]`` to block ``blocks[1]``, which differs."""
    size = KV_BLOCK_TOKENS * spec.num_kv_heads * spec.head_dim

    def kernel(keys: UOp, values: UOp, blocks: UOp) -> UOp:
        place = UOp.range(size, 0)
        source, target = (_index(blocks[i]) * size + place for i in range(2))
        stores = [store[target].store(store[source].load()) for store in (keys, values)]
        return own_kernel("kv_copy_block", cache.keys.device, UOp.group(*stores).end(place))

    keys, values, *_ = Tensor.custom_kernel(cache.keys, cache.values, blocks, fxn=kernel)
    return CacheTensors(keys=keys, values=values)


def attend(
    op: Attention,
    q: Tensor,
    cache: CacheTensors,
    *,
    tables: Tensor,
    positions: Tensor,
    last_block: UOp,
) -> Tensor:
    """Return ``[T, num_heads * head_dim]`` float32 for ``q`` of the same shape (see ``Attention``).

    ``tables`` holds ``[T, last_block + 1]`` without gaps at its beginning, ``positions`` ``[T]``.
    """
    num_rows, most = q.shape[0], int(last_block.vmax) + 1
    blocks = UOp.variable(_LAST_BLOCK, 0, most - 1, param=True) + 1
    num_positions = most * KV_BLOCK_TOKENS
    scores = _new(q, num_rows, op.num_heads, num_positions).custom_kernel(
        q, cache.keys, tables, positions, fxn=_scores(op, blocks, q.device)
    )[0]
    in_blocks = scores.reshape(num_rows, op.num_heads, most, KV_BLOCK_TOKENS)[
        :, :, : last_block + 1
    ]
    largest = in_blocks.max((2, 3), keepdim=True)
    total = (in_blocks - largest).exp().sum((2, 3))
    out = _new(q, num_rows, op.num_heads * op.head_dim)
    return out.custom_kernel(
        scores,
        largest.reshape(total.shape),
        total,
        cache.values,
        tables,
        fxn=_mix(op, blocks, q.device),
    )[0]


def _scores(op: Attention, blocks: UOp, device: str) -> Callable[..., UOp]:
    """Return ``scale * q·key`` for every position, or minus infinity where the token does not see
    it.
    """
    group = op.num_heads // op.num_kv_heads

    def kernel(scores: UOp, q: UOp, keys: UOp, tables: UOp, positions: UOp) -> UOp:
        row = UOp.range(q.shape[0], 0)
        kv_head, member = UOp.range(op.num_kv_heads, 1), UOp.range(group, 2)
        block, offset = UOp.range(blocks, 3), UOp.range(KV_BLOCK_TOKENS, 4)
        i = UOp.range(op.head_dim, 5, AxisType.REDUCE)
        head = kv_head * group + member
        key = keys[_cached(op, tables, row, block, blocks, offset, kv_head, i)].load()
        factor = q[row, head * op.head_dim + i].load()
        dot = (factor.cast(dtypes.float) * key.cast(dtypes.float)).reduce(i, arg=Ops.ADD)
        at = (block * KV_BLOCK_TOKENS + offset).cast(dtypes.int)
        own = positions[row].load()
        visible = at <= own
        if op.window is not None:
            visible = visible & (at > own - op.window)
        score = dot * op.scale
        if op.softcap is not None:
            score = _tanh(score / op.softcap) * op.softcap
        score = visible.where(score, dot.const_like(float("-inf")))
        store = scores[row, head, block * KV_BLOCK_TOKENS + offset].store(score)
        return own_kernel(
            "attention_scores", device, store.end(row, kv_head, member, block, offset)
        )

    return kernel


def _mix(op: Attention, blocks: UOp, device: str) -> Callable[..., UOp]:
    """Return the values, weighted by ``exp(score - largest)`` and divided by ``total``, the
    weights' sum.

    Adding up the weights here as well would save a kernel, but tinygrad 0.14.0 does not spread a
    kernel with two sums over a device's threads correctly.
    """
    group = op.num_heads // op.num_kv_heads

    def kernel(out: UOp, scores: UOp, largest: UOp, total: UOp, values: UOp, tables: UOp) -> UOp:
        row = UOp.range(out.shape[0], 0)
        kv_head, member = UOp.range(op.num_kv_heads, 1), UOp.range(group, 2)
        i = UOp.range(op.head_dim, 3)
        block = UOp.range(blocks, 4, AxisType.REDUCE)
        offset = UOp.range(KV_BLOCK_TOKENS, 5, AxisType.REDUCE)
        head = kv_head * group + member
        score = scores[row, head, block * KV_BLOCK_TOKENS + offset].load()
        weight = (score - largest[row, head].load()).exp()
        value = values[_cached(op, tables, row, block, blocks, offset, kv_head, i)].load()
        # Positions that are not visible can contain anything, including NaN.
        seen = score > float("-inf")
        product = seen.where(weight * value.cast(dtypes.float), weight.const_like(0.0))
        mixed = product.reduce(block, offset, arg=Ops.ADD) / total[row, head].load()
        store = out[row, head * op.head_dim + i].store(mixed)
        return own_kernel("attention_mix", device, store.end(row, kv_head, member, i))

    return kernel


def _cached(
    op: Attention, tables: UOp, row: UOp, block: UOp, blocks: UOp, offset: UOp, head: UOp, i: UOp
) -> UOp:
    """Return the index of element ``i`` of a key-value head at a position of the row's sequence."""
    slot = _index(tables[row * blocks + block]) * KV_BLOCK_TOKENS + offset
    return (slot * op.num_kv_heads + head) * op.head_dim + i


def _tanh(x: UOp) -> UOp:
    return 1 - 2 / ((2 * x).exp() + 1)


def _index(element: UOp) -> UOp:
    return element.load().cast(dtypes.weakint)


def _new(like: Tensor, *shape: int) -> Tensor:
    return Tensor.empty(*shape, dtype=dtypes.float, device=like.device)
