// Scaled scores of a span, and the softmax terms computed from them. Included by body.h, after the
// lanes.
#pragma once

#include "kernels/attention/span.h"

namespace potluck {
namespace POTLUCK_ISA {
namespace {

// Rows and blocks of keys that share a pass over the head's columns: their sums, the keys and one
// query fill the registers, and there are enough of them to hide the latency of an fma (8 to 10 in
// flight).
constexpr int kScoreRows = kNumRegisters >= 32 ? 12 : 6;
constexpr int kScoreBlocks = kNumRegisters >= 32 ? 2 : 1;
constexpr int kScoreUnroll = kUnroll == 1 ? 1 : kScoreRows;
// How many steps ahead keys are prefetched; a step is one head of kScoreBlocks blocks.
constexpr int64_t kStepsAhead = kBlocksAhead / kScoreBlocks;

// Packs the queries, step by step of a head's rows: [head_dim][rows of the step].
inline void pack_queries(const Tile& tile, float* packed) {
  const RowSteps steps(tile, kScoreRows);
  const int64_t head_dim = tile.args.head_dim;
  for (int64_t h = 0; h < tile.num_kv_heads; ++h)
    for (int64_t step = 0, i = 0; step < steps.count; ++step) {
      const int64_t rows = steps.rows(step);
      for (int64_t r = 0; r < rows; ++r, ++i) {
        const float* q = tile.args.q + tile.query_row(h, i) * head_dim;
        for (int64_t d = 0; d < head_dim; ++d) packed[d * rows + r] = q[d];
      }
      packed += rows * head_dim;
    }
}

// For kBlocks blocks: lanes are positions, with one fma per column of the head, ascending.
template <int kRows, int kBlocks>
inline void score_tile(const AttentionArgs& args, const float* q, const uint16_t* const* keys,
                       const uint16_t* const* ahead, float* scores) {
  constexpr int kColumns = 2;  // of keys in a cache line
  F32x16 acc[kRows][kBlocks];
#pragma GCC unroll kScoreUnroll
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll kScoreUnroll
    for (int b = 0; b < kBlocks; ++b) acc[r][b] = splat(0.0f);
  for (int64_t column = 0; column < args.head_dim; column += kColumns) {
#pragma GCC unroll kScoreUnroll
    for (int b = 0; b < kBlocks; ++b) __builtin_prefetch(ahead[b] + column * kBlockTokens);
#pragma GCC unroll kScoreUnroll
    for (int c = 0; c < kColumns; ++c) {
      F32x16 key[kBlocks];
#pragma GCC unroll kScoreUnroll
      for (int b = 0; b < kBlocks; ++b) key[b] = load_f16(keys[b] + (column + c) * kBlockTokens);
#pragma GCC unroll kScoreUnroll
      for (int r = 0; r < kRows; ++r) {
        const F32x16 x = splat(q[(column + c) * kRows + r]);
#pragma GCC unroll kScoreUnroll
        for (int b = 0; b < kBlocks; ++b) acc[r][b] = fma(key[b], x, acc[r][b]);
      }
    }
  }
#pragma GCC unroll kScoreUnroll
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll kScoreUnroll
    for (int b = 0; b < kBlocks; ++b)
      store(scores + r * kScoreStride + b * kNumLanes, mul(acc[r][b], splat(args.scale)));
}

// score_tile for `rows` rows, at most kRows.
template <int kRows, int kBlocks>
inline void score_rows(int64_t rows, const AttentionArgs& args, const float* q,
                       const uint16_t* const* keys, const uint16_t* const* ahead, float* scores) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return score_rows<kRows - 1, kBlocks>(rows, args, q, keys, ahead, scores);
  }
  score_tile<kRows, kBlocks>(args, q, keys, ahead, scores);
}

// The scores of blocks [i, i + kBlocks) for head `h` of the tile, for the rows that see any of
// them; those of other rows are not used.
template <int kBlocks>
inline void score_blocks(const Tile& tile, const Span& blocks, int64_t span, int64_t i, int64_t h,
                         const RowSteps& steps, const float* q, float* scores) {
  const int64_t begin = (blocks.first_block + i) * kBlockTokens;
  const int64_t end = begin + kBlocks * kBlockTokens;
  const Ahead next(tile, h, kStepsAhead);
  const uint16_t *keys[kBlocks], *ahead[kBlocks];
  for (int b = 0; b < kBlocks; ++b) {
    keys[b] = blocks.reads[i + b] + h * tile.keys_size;
    ahead[b] = blocks.reads[i + next.blocks * kBlocks + b] + next.h * tile.keys_size;
  }
  q += h * tile.rows_per_head * tile.args.head_dim;
  scores += h * tile.rows_per_head * kScoreStride + begin;
  for (int64_t step = 0, row = 0; step < steps.count; ++step) {
    const int64_t rows = steps.rows(step);
    const bool is_seen = tile.visible(tile.token(row), span).begin < end &&
                         tile.visible(tile.token(row + rows - 1), span).end > begin;
    if (is_seen) score_rows<kScoreRows, kBlocks>(rows, tile.args, q, keys, ahead, scores);
    q += rows * tile.args.head_dim;
    scores += rows * kScoreStride;
    row += rows;
  }
}

// scores[row * kScoreStride + position - the span's first].
inline void score_span(const Tile& tile, const Span& blocks, int64_t span, const float* q,
                       float* scores) {
  const RowSteps steps(tile, kScoreRows);
  int64_t i = 0;
  for (; i + kScoreBlocks <= blocks.num_blocks; i += kScoreBlocks)
    for (int64_t h = 0; h < tile.num_kv_heads; ++h)
      score_blocks<kScoreBlocks>(tile, blocks, span, i, h, steps, q, scores);
  for (; i < blocks.num_blocks; ++i)
    for (int64_t h = 0; h < tile.num_kv_heads; ++h)
      score_blocks<1>(tile, blocks, span, i, h, steps, q, scores);
}

// Sets those of 16 scores that are outside of the range to -inf.
POTLUCK_LANES void hide_outside(float* scores, Range range) {
  const int64_t begin = larger(range.begin, 0);
  const int64_t end = smaller(range.end, kNumLanes);
  store(scores, keep_range(load(scores), begin, end, -__builtin_inff()));
}

// Replaces scores by exp(score - largest) in place, over the visible positions of one row; computes
// their maximum and sum. Lanes are positions modulo 16; positions that are not visible, which may
// contain anything, count as -inf.
struct Softmax {
  float largest, total;
};
inline Softmax softmax_terms(float* scores, Range range, float softcap) {
  const int64_t begin = range.begin / kNumLanes * kNumLanes;
  const int64_t last = (range.end - 1) / kNumLanes * kNumLanes;
  if (softcap != 0.0f)
    for (int64_t i = begin; i <= last; i += kNumLanes)
      store(scores + i, capped(load(scores + i), softcap));
  hide_outside(scores + begin, {range.begin - begin, range.end - begin});
  hide_outside(scores + last, {range.begin - last, range.end - last});
  F32x16 lanes = load(scores + begin);
  for (int64_t i = begin + kNumLanes; i <= last; i += kNumLanes)
    lanes = max(lanes, load(scores + i));
  const float largest = max_lane(lanes);
  F32x16 total = splat(0.0f);
  for (int64_t i = begin; i <= last; i += kNumLanes) {
    const F32x16 term = exp(sub(load(scores + i), splat(largest)));
    store(scores + i, term);
    total = add(total, term);
  }
  return {largest, sum(total)};
}

}  // namespace
}  // namespace POTLUCK_ISA
}  // namespace potluck
