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

// The values of key-value head `h` of the tile.
struct HeadValues {
  const Span& blocks;
  int64_t stride;     // halves of a position
  int64_t offset;     // where the head's values begin in each block, in halves
  int64_t ahead;      // how many blocks before they are read they are asked for,
  int64_t ahead_offset;  // and where in these, in halves
};

// Adds to kRows rows of kLanes x 16 columns, from column `start`: one fma per position of the range,
// ascending.
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
    const int64_t block = position / kBlockTokens - head.blocks.first_block;
    const int64_t offset = position % kBlockTokens;
    const int64_t end = smaller(position - offset + kBlockTokens, range.end);
    const int64_t column = offset * stride + start;
    const uint16_t* values = head.blocks.values()[block] + head.offset + column;
    const uint16_t* ahead = head.blocks.values()[block + head.ahead] + head.ahead_offset + column;
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

// A tile of rows of one head over a part of the span: together where all of them see, one by one
// before and after.
inline void weigh_part(const AttentionArgs& args, const HeadValues& head, int64_t span, Range part,
                       int64_t first_row, int64_t rows, const float* terms, float* weighted) {
  const int64_t first_token = token_of(args, first_row);
  const int64_t last_token = token_of(args, first_row + rows - 1);
  Range common;
  common.begin = smaller(larger(visible(args, last_token, span).begin, part.begin), part.end);
  common.end = larger(smaller(visible(args, first_token, span).end, part.end), common.begin);
  const auto weigh_alone = [&](Range where) {
    for (int64_t i = 0; i < rows; ++i) {
      const Range own = common_part(visible(args, token_of(args, first_row + i), span), where);
      if (own.begin < own.end)
        weigh_rows<1>(1, head, own, terms + i * kScoreStride, weighted + i * head.stride);
    }
  };
  if (first_token < last_token) weigh_alone({part.begin, common.begin});
  if (common.begin < common.end) weigh_rows<kValueRows>(rows, head, common, terms, weighted);
  if (first_token < last_token) weigh_alone({common.end, part.end});
}

// weighted [rows][padded head_dim].
inline void weigh_span(const AttentionArgs& args, const Span& blocks, int64_t span,
                       const float* terms, float* weighted) {
  const int64_t per_head = rows_per_head(args);
  const int64_t num_kv_heads = tile_kv_heads(args);
  const int64_t stride = padded_head_dim(args.head_dim);
  const int64_t num_floats = attention_rows(args) * stride;
  for (int64_t i = 0; i < num_floats; i += kNumLanes) store(weighted + i, splat(0.0f));
  const int64_t begin = blocks.first_block * kBlockTokens;
  const int64_t end = begin + blocks.num_blocks * kBlockTokens;
  const int64_t step = num_kv_heads > 1 ? kBlockTokens : kValueTokens;
  for (int64_t position = begin; position < end; position += step) {
    const Range part = {position, smaller(position + step, end)};
    for (int64_t h = 0; h < num_kv_heads; ++h) {
      const int64_t next = h + kMaxBlocksAhead;
      const HeadValues head = {blocks, stride, h * values_size(args), next / num_kv_heads,
                               next % num_kv_heads * values_size(args)};
      for (int64_t row = h * per_head; row < (h + 1) * per_head;) {
        const int64_t rows = next_tile((h + 1) * per_head - row, kValueRows);
        weigh_part(args, head, span, part, row, rows, terms + row * kScoreStride,
                   weighted + row * stride);
        row += rows;
      }
    }
  }
}

}  // namespace
}  // namespace POTLUCK_ISA
}  // namespace potluck
