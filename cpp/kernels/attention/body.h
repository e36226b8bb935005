// Attention of one token over the paged cache, and what appends to it. Included once per
// instruction set, after its lanes.
//
// Everything goes by absolute position, in ascending order, so that a token's result depends on its
// own sequence alone. Positions outside [first_position, position] are never read as values, and as
// keys they are masked after the dot product: the cache may hold anything there.
#pragma once

#include "kernels/variants.h"

POTLUCK_DECLARE_KERNELS(POTLUCK_ISA)

namespace potluck {
namespace POTLUCK_ISA {
namespace {

// Heads that share one pass over the keys, and lanes of value rows that share one over the values.
constexpr int kHeadTile = 4;
constexpr int kValueTile = 4;

// The visible offsets [begin, end) within a block of positions.
POTLUCK_LANES int64_t begin_offset(const AttentionArgs& args, int64_t block) {
  const int64_t offset = args.first_position - block * kBlockTokens;
  return offset > 0 ? offset : 0;
}
POTLUCK_LANES int64_t end_offset(const AttentionArgs& args, int64_t block) {
  const int64_t offset = args.position + 1 - block * kBlockTokens;
  return offset < kBlockTokens ? offset : kBlockTokens;
}

// Counts the [block][kv_head] parts of the cache up to that of a block of positions.
POTLUCK_LANES int64_t cache_row(const AttentionArgs& args, int64_t block, int64_t kv_head) {
  return args.block_table[block] * args.num_kv_heads + kv_head;
}

// Scaled scores of kHeads query heads, into rows of the scratch: lanes are positions, one fma per
// element of the head, ascending. Masked positions get -inf.
template <int kHeads>
inline void score_heads(const AttentionArgs& args, int64_t kv_head, const float* q, float* scores,
                        int64_t score_stride) {
  const int64_t head_dim = args.head_dim;
  const int64_t first_block = args.first_position / kBlockTokens;
  const int64_t end_block = args.position / kBlockTokens + 1;
  for (int64_t block = first_block; block < end_block; ++block, scores += kBlockTokens) {
    const uint16_t* keys =
        args.keys + cache_row(args, block, kv_head) * head_dim * kBlockTokens;
    F32x16 acc[kHeads];
#pragma GCC unroll kUnroll
    for (int h = 0; h < kHeads; ++h) acc[h] = splat(0.0f);
    for (int64_t d = 0; d < head_dim; ++d) {
      const F32x16 key = load_f16(keys + d * kBlockTokens);
#pragma GCC unroll kUnroll
      for (int h = 0; h < kHeads; ++h) acc[h] = fma(key, splat(q[h * head_dim + d]), acc[h]);
    }
    const int64_t begin = begin_offset(args, block);
    const int64_t end = end_offset(args, block);
#pragma GCC unroll kUnroll
    for (int h = 0; h < kHeads; ++h) {
      const F32x16 scaled = mul(acc[h], splat(args.scale));
      store(scores + h * score_stride, keep_range(scaled, begin, end, -__builtin_inff()));
    }
  }
}

// scores -> exp(score - max) in place; returns their sum. Lanes are positions modulo 16.
inline float softmax_terms(float* scores, int64_t count) {
  F32x16 largest = load(scores);
  for (int64_t i = kNumLanes; i < count; i += kNumLanes) largest = max(largest, load(scores + i));
  const F32x16 peak = splat(max_lane(largest));
  F32x16 total = splat(0.0f);
  for (int64_t i = 0; i < count; i += kNumLanes) {
    const F32x16 e = exp(sub(load(scores + i), peak));
    store(scores + i, e);
    total = add(total, e);
  }
  return sum(total);
}

// kTile x 16 output dimensions of one head, from dimension `start`: one fma per visible position.
template <int kTile>
inline void weigh_values(const AttentionArgs& args, int64_t kv_head, const float* terms,
                         float total, int64_t start, float* out) {
  const int64_t stride = padded_head_dim(args.head_dim);
  const int64_t first_block = args.first_position / kBlockTokens;
  const int64_t end_block = args.position / kBlockTokens + 1;
  F32x16 acc[kTile];
#pragma GCC unroll kUnroll
  for (int i = 0; i < kTile; ++i) acc[i] = splat(0.0f);
  for (int64_t block = first_block; block < end_block; ++block, terms += kBlockTokens) {
    const uint16_t* values =
        args.values + cache_row(args, block, kv_head) * kBlockTokens * stride + start;
    const int64_t end = end_offset(args, block);
    for (int64_t offset = begin_offset(args, block); offset < end; ++offset) {
      const F32x16 term = splat(terms[offset]);
#pragma GCC unroll kUnroll
      for (int i = 0; i < kTile; ++i)
        acc[i] = fma(term, load_f16(values + offset * stride + i * kNumLanes), acc[i]);
    }
  }
#pragma GCC unroll kUnroll
  for (int i = 0; i < kTile; ++i) {
    const int64_t rest = args.head_dim - start - i * kNumLanes;
    store_partial(out + start + i * kNumLanes, div(acc[i], splat(total)),
                  rest < kNumLanes ? rest : kNumLanes);
  }
}

}  // namespace

void append_kv(const float* k, const float* v, uint16_t* keys, uint16_t* values, int64_t block,
               int64_t offset, int64_t num_kv_heads, int64_t head_dim) {
  const int64_t stride = padded_head_dim(head_dim);
  for (int64_t h = 0; h < num_kv_heads; ++h) {
    uint16_t* key = keys + (block * num_kv_heads + h) * head_dim * kBlockTokens + offset;
    uint16_t* value = values + ((block * num_kv_heads + h) * kBlockTokens + offset) * stride;
    for (int64_t d = 0; d < head_dim; d += kNumLanes) {
      const int64_t count = head_dim - d < kNumLanes ? head_dim - d : kNumLanes;
      uint16_t halves[kNumLanes];
      store_f16(halves, load_partial(k + h * head_dim + d, count));
      for (int64_t i = 0; i < count; ++i) key[(d + i) * kBlockTokens] = halves[i];
      store_f16(value + d, load_partial(v + h * head_dim + d, count));
    }
  }
}

void attention(const AttentionArgs& args, int64_t kv_head) {
  const int64_t group_heads = args.num_heads / args.num_kv_heads;
  const int64_t first_head = kv_head * group_heads;
  const int64_t num_blocks =
      args.position / kBlockTokens + 1 - args.first_position / kBlockTokens;
  const int64_t count = num_blocks * kBlockTokens;
  const float* q = args.q + first_head * args.head_dim;
  float* out = args.out + first_head * args.head_dim;

  int64_t h = 0;
  for (; h + kHeadTile <= group_heads; h += kHeadTile)
    score_heads<kHeadTile>(args, kv_head, q + h * args.head_dim, args.scratch + h * count, count);
  for (; h < group_heads; ++h)
    score_heads<1>(args, kv_head, q + h * args.head_dim, args.scratch + h * count, count);

  for (h = 0; h < group_heads; ++h) {
    float* terms = args.scratch + h * count;
    const float total = softmax_terms(terms, count);
    int64_t d = 0;
    for (; d + (kValueTile - 1) * kNumLanes < args.head_dim; d += kValueTile * kNumLanes)
      weigh_values<kValueTile>(args, kv_head, terms, total, d, out + h * args.head_dim);
    for (; d < args.head_dim; d += kNumLanes)
      weigh_values<1>(args, kv_head, terms, total, d, out + h * args.head_dim);
  }
}

}  // namespace POTLUCK_ISA
}  // namespace potluck
