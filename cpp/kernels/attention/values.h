// Weighted values of a span. Included by body.h, after the lanes.
//
// Values are read at visible positions only: the cache may hold anything at the others, and where a
// term is 0, an infinite value would still spoil a sum.
#pragma once

#include "kernels/attention/span.h"

namespace potluck {
namespace POTLUCK_ISA {
namespace {

// Rows and lanes of values that share one pass over the positions, bounded by the registers.
constexpr int kValueRows = 6;
constexpr int kValueLanes = kNumRegisters >= 32 ? 4 : 1;
constexpr int kValueUnroll = kUnroll == 1 ? 1 : kValueRows;
// Positions whose values stay in the first cache (8 KiB at 64 columns) while all rows of a head
// pass. With several heads, whose values lie side by side, it is better to read along: 27 GB/s
// instead of 24 (one core of a Zen 5, 8 heads of 64 columns; with one block it is as much, but of
// what comes from a cache 34 GB/s instead of 39).
constexpr int64_t kValueTokens = 4 * kBlockTokens;
constexpr int64_t kManyHeadsTokens = 2 * kBlockTokens;
static_assert(kBlocksAhead * kBlockTokens >= kValueTokens, "what is asked for is yet to come");

// Where the values of one head of the tile lie, and those that are asked for meanwhile.
struct HeadValues {
  int64_t first_block;  // of the span, which the pointers begin with
  const uint16_t* const* blocks;
  const uint16_t* const* ahead_blocks;
  int64_t offset, ahead_offset;         // of the head in a block, in halves
  int64_t stride;                       // halves of a position
};

// Adds to kRows rows of kLanes x 16 columns, from column `start`: one fma per position of the
// range, ascending.
template <int kRows, int kLanes>
inline void weigh_tile(const HeadValues& head, Range range, int64_t start, const float* terms,
                       float* weighted) {
  const int64_t stride = head.stride;
  F32x16 acc[kRows][kLanes];
#pragma GCC unroll kValueUnroll
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll kValueUnroll
    for (int i = 0; i < kLanes; ++i)
      acc[r][i] = load(weighted + r * stride + start + i * kNumLanes);
  for (int64_t position = range.begin; position < range.end;) {
    const int64_t block = position / kBlockTokens - head.first_block;
    const int64_t offset = position % kBlockTokens;
    const int64_t end = smaller(position - offset + kBlockTokens, range.end);
    const int64_t column = offset * stride + start;
    const uint16_t* values = head.blocks[block] + head.offset + column;
    const uint16_t* ahead = head.ahead_blocks[block] + head.ahead_offset + column;
    for (; position < end; ++position, values += stride, ahead += stride) {
#pragma GCC unroll kValueUnroll
      for (int i = 0; i < kLanes; i += 2) __builtin_prefetch(ahead + i * kNumLanes);
      F32x16 value[kLanes];
#pragma GCC unroll kValueUnroll
      for (int i = 0; i < kLanes; ++i) value[i] = load_f16(values + i * kNumLanes);
#pragma GCC unroll kValueUnroll
      for (int r = 0; r < kRows; ++r) {
        const F32x16 term = splat(terms[r * kScoreStride + position]);
#pragma GCC unroll kValueUnroll
        for (int i = 0; i < kLanes; ++i) acc[r][i] = fma(term, value[i], acc[r][i]);
      }
    }
  }
#pragma GCC unroll kValueUnroll
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll kValueUnroll
    for (int i = 0; i < kLanes; ++i)
      store(weighted + r * stride + start + i * kNumLanes, acc[r][i]);
}

// weigh_tile over all columns for `rows` rows, which is at most kRows.
template <int kRows>
inline void weigh_rows(int64_t rows, const HeadValues& head, Range range, const float* terms,
                       float* weighted) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return weigh_rows<kRows - 1>(rows, head, range, terms, weighted);
  }
  int64_t start = 0;
  for (; start + kValueLanes * kNumLanes <= head.stride; start += kValueLanes * kNumLanes)
    weigh_tile<kRows, kValueLanes>(head, range, start, terms, weighted);
  for (; start < head.stride; start += kNumLanes)
    weigh_tile<kRows, 1>(head, range, start, terms, weighted);
}

POTLUCK_LANES Range common_part(Range a, Range b) {
  return {larger(a.begin, b.begin), smaller(a.end, b.end)};
}

// Rows [first, first + rows) of a head over a part of the span: together where all of them see, one
// by one before and after. `terms` and `weighted` are those of the first.
inline void weigh_part(const Tile& tile, const HeadValues& head, int64_t span, Range part,
                       int64_t first, int64_t rows, const float* terms, float* weighted) {
  const int64_t first_token = tile.token(first), last_token = tile.token(first + rows - 1);
  Range common;
  common.begin = smaller(larger(tile.visible(last_token, span).begin, part.begin), part.end);
  common.end = larger(smaller(tile.visible(first_token, span).end, part.end), common.begin);
  const auto weigh_alone = [&](Range where) {
    for (int64_t i = 0; i < rows; ++i) {
      const Range own = common_part(tile.visible(tile.token(first + i), span), where);
      if (own.begin < own.end)
        weigh_rows<1>(1, head, own, terms + i * kScoreStride, weighted + i * tile.stride);
    }
  };
  if (first_token < last_token) weigh_alone({part.begin, common.begin});
  if (common.begin < common.end) weigh_rows<kValueRows>(rows, head, common, terms, weighted);
  if (first_token < last_token) weigh_alone({common.end, part.end});
}

// weighted [rows][padded head_dim].
inline void weigh_span(const Tile& tile, const Span& blocks, int64_t span, const float* terms,
                       float* weighted) {
  for (int64_t i = 0; i < tile.num_rows * tile.stride; i += kNumLanes)
    store(weighted + i, splat(0.0f));
  const RowSteps steps(tile, kValueRows);
  const int64_t begin = blocks.first_block * kBlockTokens;
  const int64_t end = begin + blocks.num_blocks * kBlockTokens;
  const int64_t num_together = tile.num_kv_heads > 1 ? kManyHeadsTokens : kValueTokens;
  const int64_t step_blocks = num_together / kBlockTokens;
  const int64_t steps_ahead = kBlocksAhead / step_blocks;
  for (int64_t position = begin; position < end; position += num_together) {
    const Range part = {position, smaller(position + num_together, end)};
    for (int64_t h = 0, row = 0; h < tile.num_kv_heads; ++h) {
      const Ahead next(tile, h, steps_ahead);
      const HeadValues head = {blocks.first_block,    blocks.values(),
                               blocks.values() + next.blocks * step_blocks, h * tile.values_size,
                               next.h * tile.values_size,     tile.stride};
      for (int64_t step = 0, i = 0; step < steps.count; ++step) {
        const int64_t rows = steps.rows(step);
        weigh_part(tile, head, span, part, i, rows, terms + row * kScoreStride,
                   weighted + row * tile.stride);
        i += rows;
        row += rows;
      }
    }
  }
}

}  // namespace
}  // namespace POTLUCK_ISA
}  // namespace potluck
