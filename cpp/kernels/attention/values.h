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
// Positions whose values stay in the first cache (8 KiB at 64 columns) while all rows pass.
constexpr int64_t kValueTokens = 4 * kBlockTokens;

// Adds to kRows rows of kLanes x 16 columns, from column `start`: one fma per position of the range,
// ascending.
template <int kRows, int kLanes>
inline void weigh_tile(const Span& blocks, Range range, int64_t stride, int64_t start,
                       const float* terms, float* weighted) {
  F32x16 acc[kRows][kLanes];
#pragma GCC unroll kValueUnroll
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll kValueUnroll
    for (int i = 0; i < kLanes; ++i)
      acc[r][i] = load(weighted + r * stride + start + i * kNumLanes);
  for (int64_t position = range.begin; position < range.end;) {
    const int64_t block = position / kBlockTokens - blocks.first_block;
    const int64_t offset = position % kBlockTokens;
    const int64_t end = smaller(position - offset + kBlockTokens, range.end);
    const uint16_t* values = blocks.values[block] + offset * stride + start;
    const uint16_t* ahead =
        blocks.reads[blocks.num_blocks + block + kBlocksAhead] + offset * stride + start;
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
inline void weigh_rows(int64_t rows, const Span& blocks, Range range, int64_t stride,
                       const float* terms, float* weighted) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return weigh_rows<kRows - 1>(rows, blocks, range, stride, terms, weighted);
  }
  int64_t start = 0;
  for (; start + kValueLanes * kNumLanes <= stride; start += kValueLanes * kNumLanes)
    weigh_tile<kRows, kValueLanes>(blocks, range, stride, start, terms, weighted);
  for (; start < stride; start += kNumLanes)
    weigh_tile<kRows, 1>(blocks, range, stride, start, terms, weighted);
}

// What a token sees of a part of the span.
POTLUCK_LANES Range visible_part(const AttentionArgs& args, int64_t token, int64_t span,
                                 Range part) {
  const Range range = visible(args, token, span);
  return {larger(range.begin, part.begin), smaller(range.end, part.end)};
}

// A tile of rows over a part of the span: together where all of them see, one by one before and
// after.
inline void weigh_part(const AttentionArgs& args, const Span& blocks, int64_t span, Range part,
                       int64_t first_row, int64_t rows, const float* terms, float* weighted) {
  const int64_t group = group_heads(args);
  const int64_t stride = padded_head_dim(args.head_dim);
  const int64_t first_token = first_row / group;
  const int64_t last_token = (first_row + rows - 1) / group;
  Range common = {visible_part(args, last_token, span, part).begin,
                  visible_part(args, first_token, span, part).end};
  if (common.end < common.begin) common.end = common.begin;
  const auto weigh_alone = [&](bool is_before) {
    for (int64_t i = 0; i < rows; ++i) {
      const Range own = visible_part(args, (first_row + i) / group, span, part);
      const Range range = is_before ? Range{own.begin, smaller(own.end, common.begin)}
                                    : Range{larger(own.begin, common.end), own.end};
      if (range.begin < range.end)
        weigh_rows<1>(1, blocks, range, stride, terms + (first_row + i) * kScoreStride,
                      weighted + (first_row + i) * stride);
    }
  };
  if (first_token < last_token) weigh_alone(true);
  if (common.begin < common.end)
    weigh_rows<kValueRows>(rows, blocks, common, stride, terms + first_row * kScoreStride,
                           weighted + first_row * stride);
  if (first_token < last_token) weigh_alone(false);
}

// weighted [rows][padded head_dim].
inline void weigh_span(const AttentionArgs& args, const Span& blocks, int64_t span,
                       const float* terms, float* weighted) {
  const int64_t end_row = num_rows(args);
  const int64_t num_floats = end_row * padded_head_dim(args.head_dim);
  for (int64_t i = 0; i < num_floats; i += kNumLanes) store(weighted + i, splat(0.0f));
  const int64_t begin = blocks.first_block * kBlockTokens;
  const int64_t end = begin + blocks.num_blocks * kBlockTokens;
  for (int64_t position = begin; position < end; position += kValueTokens) {
    const Range part = {position, smaller(position + kValueTokens, end)};
    for (int64_t row = 0; row < end_row;) {
      const int64_t rows = next_tile(end_row - row, kValueRows);
      weigh_part(args, blocks, span, part, row, rows, terms, weighted);
      row += rows;
    }
  }
}

}  // namespace
}  // namespace POTLUCK_ISA
}  // namespace potluck
