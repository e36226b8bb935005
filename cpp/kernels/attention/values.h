// Weighted values of a span. Included by body.h, after the lanes.
//
// Values are read at visible positions only: the cache may contain anything elsewhere, and even
// with a weight of 0 an infinite value would corrupt a sum.
#pragma once

#include "kernels/attention/span.h"

namespace potluck {
namespace POTLUCK_ISA {
namespace {

// Rows and lanes of values that share a pass over the positions, limited by the registers. Values
// that are converted on the fly use more lanes, so that each conversion is used by more products.
template <class T>
constexpr int kValueRows = 6;
template <class T>
constexpr int kValueLanes = kNumRegisters >= 32 ? 4 : 1;
template <>
constexpr int kValueRows<float> = kNumRegisters >= 32 ? 12 : 6;
template <>
constexpr int kValueLanes<float> = kNumRegisters >= 32 ? 2 : 1;
constexpr int kValueUnroll = kUnroll == 1 ? 1 : 12;
// Number of positions whose values stay in the L1 cache (8 KiB at 64 columns) while all rows of a
// head pass over them. With several heads, whose values are contiguous, it is better to read ahead:
// 27 GB/s instead of 24 (one core of a Zen 5, 8 heads of 64 columns; with one block it is the same,
// but data in a cache is read at 34 GB/s instead of 39).
constexpr int64_t kValueTokens = 4 * kBlockTokens;
constexpr int64_t kManyHeadsTokens = 2 * kBlockTokens;
static_assert(kBlocksAhead * kBlockTokens >= kValueTokens, "what is asked for is yet to come");

// The addresses of the values of one head of the tile, as f16 or float32, and of those to prefetch
// meanwhile.
template <class T>
struct HeadValues {
  int64_t first_block;  // of the span at which the pointers start
  const T* const* blocks;
  const T* const* ahead_blocks;
  int64_t offset, ahead_offset;  // of the head in a block, in elements
  int64_t stride;                // elements per position
  int64_t num_columns;           // number of these that are weighted, in whole lanes
  int64_t sums_stride;           // floats of a row's weighted values; also `stride`, unless copied
};
template <class T>
constexpr bool kAreCopied = false;
template <>
constexpr bool kAreCopied<float> = true;

POTLUCK_LANES F32x16 load_values(const uint16_t* p) { return load_f16(p); }
POTLUCK_LANES F32x16 load_values(const float* p) { return load(p); }
// Copied data is in the cache already.
POTLUCK_LANES void ask_for(const uint16_t* p) { __builtin_prefetch(p); }
POTLUCK_LANES void ask_for(const float*) {}

// Adds to kRows rows of kLanes x 16 columns, from column `start` on: one fma per position of the
// range, ascending.
template <int kRows, int kLanes, class T>
inline void weigh_tile(const HeadValues<T>& head, Range range, int64_t start, const float* terms,
                       float* weighted) {
  // In one register if they are equal: saves 5 % of a prefill.
  const int64_t stride = head.stride;
  const int64_t sums_stride = kAreCopied<T> ? head.sums_stride : stride;
  F32x16 acc[kRows][kLanes];
#pragma GCC unroll kValueUnroll
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll kValueUnroll
    for (int i = 0; i < kLanes; ++i)
      acc[r][i] = load(weighted + r * sums_stride + start + i * kNumLanes);
  for (int64_t position = range.begin; position < range.end;) {
    const int64_t block = position / kBlockTokens - head.first_block;
    const int64_t offset = position % kBlockTokens;
    const int64_t end = smaller(position - offset + kBlockTokens, range.end);
    const int64_t column = offset * stride + start;
    const T* values = head.blocks[block] + head.offset + column;
    const T* ahead = head.ahead_blocks[block] + head.ahead_offset + column;
    for (; position < end; ++position, values += stride, ahead += stride) {
#pragma GCC unroll kValueUnroll
      for (int i = 0; i < kLanes; i += 2) ask_for(ahead + i * kNumLanes);
      F32x16 value[kLanes];
#pragma GCC unroll kValueUnroll
      for (int i = 0; i < kLanes; ++i) value[i] = load_values(values + i * kNumLanes);
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
      store(weighted + r * sums_stride + start + i * kNumLanes, acc[r][i]);
}

// weigh_tile over all columns for `rows` rows, at most kRows.
template <int kRows, class T>
inline void weigh_rows(int64_t rows, const HeadValues<T>& head, Range range, const float* terms,
                       float* weighted) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return weigh_rows<kRows - 1>(rows, head, range, terms, weighted);
  }
  constexpr int kLanes = kValueLanes<T>;
  int64_t start = 0;
  for (; start + kLanes * kNumLanes <= head.num_columns; start += kLanes * kNumLanes)
    weigh_tile<kRows, kLanes>(head, range, start, terms, weighted);
  for (; start < head.num_columns; start += kNumLanes)
    weigh_tile<kRows, 1>(head, range, start, terms, weighted);
}

POTLUCK_LANES Range common_part(Range a, Range b) {
  return {larger(a.begin, b.begin), smaller(a.end, b.end)};
}

// Rows [first, first + rows) of a head over part of the span: together where all of them see, and
// one by one before and after that. `terms` and `weighted` are those of the first row.
template <class T>
inline void weigh_part(const Tile& tile, const HeadValues<T>& head, int64_t span, Range part,
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
  if (common.begin < common.end) weigh_rows<kValueRows<T>>(rows, head, common, terms, weighted);
  if (first_token < last_token) weigh_alone({common.end, part.end});
}

// weigh_part for all rows of a head. `terms` and `weighted` are those of its first row.
template <class T>
inline void weigh_head(const Tile& tile, const HeadValues<T>& head, int64_t span, Range part,
                       const float* terms, float* weighted) {
  const RowSteps steps(tile, kValueRows<T>);
  for (int64_t step = 0, i = 0; step < steps.count; ++step) {
    const int64_t rows = steps.rows(step);
    weigh_part(tile, head, span, part, i, rows, terms + i * kScoreStride,
               weighted + i * tile.stride);
    i += rows;
  }
}

inline void clear_weighted(const Tile& tile, float* weighted) {
  for (int64_t i = 0; i < tile.num_rows * tile.stride; i += kNumLanes)
    store(weighted + i, splat(0.0f));
}

// weighted [rows][padded value_dim].
inline void weigh_span(const Tile& tile, const Span& blocks, int64_t span, const float* terms,
                       float* weighted) {
  clear_weighted(tile, weighted);
  const int64_t begin = blocks.first_block * kBlockTokens;
  const int64_t end = begin + blocks.num_blocks * kBlockTokens;
  const int64_t num_together = tile.num_kv_heads > 1 ? kManyHeadsTokens : kValueTokens;
  const int64_t step_blocks = num_together / kBlockTokens;
  const int64_t steps_ahead = kBlocksAhead / step_blocks;
  for (int64_t position = begin; position < end; position += num_together) {
    const Range part = {position, smaller(position + num_together, end)};
    for (int64_t h = 0; h < tile.num_kv_heads; ++h) {
      const Ahead next(tile, h, steps_ahead);
      const HeadValues<uint16_t> head = {
          blocks.first_block,   blocks.values(), blocks.values() + next.blocks * step_blocks,
          h * tile.values_size, next.h * tile.values_size,
          tile.stride,          tile.stride,     tile.stride};
      const int64_t row = h * tile.rows_per_head;
      weigh_head(tile, head, span, part, terms + row * kScoreStride, weighted + row * tile.stride);
    }
  }
}

// Values that are columns of the keys are transposed, so that lanes are columns, some columns at a
// time: then all rows pass over the whole span, with the same results, bit for bit, as for stored
// values. Reading and transposing a span of 512 columns takes as long as 4 of its rows
// (docs/adr/0055).
constexpr int64_t kTransposedColumns = kValueLanes<float> * kNumLanes;
static_assert(kTransposedColumns * kSpanTokens <= kTransposedFloats, "what is transposed fits");

// Converts `keys` [num_columns][16 positions] to float32 [16 positions][kTransposedColumns]. The
// last lanes are padded with 0.
inline void transpose_block(const uint16_t* keys, int64_t num_columns, float* transposed) {
  for (int64_t d = 0; d < num_columns; d += kNumLanes, keys += kNumLanes * kBlockTokens) {
    uint16_t columns[kNumLanes * kBlockTokens], positions[kNumLanes * kBlockTokens];
    const uint16_t* source = keys;
    if (num_columns - d < kNumLanes) {
      const int64_t count = (num_columns - d) * kBlockTokens;
      for (int64_t i = 0; i < kNumLanes * kBlockTokens; ++i) columns[i] = i < count ? keys[i] : 0;
      source = columns;
    }
    transpose_16(source, positions);
    for (int64_t i = 0; i < kBlockTokens; ++i)
      store(transposed + i * kTransposedColumns + d, load_f16(positions + i * kNumLanes));
  }
}

// weigh_span for values that are columns of the keys. `transposed` is kTransposedFloats floats of
// scratch.
inline void weigh_keys(const Tile& tile, const Span& blocks, int64_t span, const float* terms,
                       float* transposed, float* weighted) {
  clear_weighted(tile, weighted);
  const AttentionArgs& args = tile.args;
  const int64_t begin = blocks.first_block * kBlockTokens;
  const Range part = {begin, begin + blocks.num_blocks * kBlockTokens};
  const float* places[kSpanBlocks];
  for (int64_t i = 0; i < blocks.num_blocks; ++i)
    places[i] = transposed + i * kBlockTokens * kTransposedColumns;
  for (int64_t h = 0; h < tile.num_kv_heads; ++h) {
    const int64_t row = h * tile.rows_per_head;
    for (int64_t d = 0; d < args.value_dim; d += kTransposedColumns) {
      const int64_t first = h * tile.keys_size + (args.value_start + d) * kBlockTokens;
      const int64_t num_columns = smaller(args.value_dim - d, kTransposedColumns);
      for (int64_t i = 0; i < blocks.num_blocks; ++i)
        transpose_block(blocks.keys()[i] + first, num_columns,
                        transposed + i * kBlockTokens * kTransposedColumns);
      const HeadValues<float> head = {blocks.first_block, places, places, 0, 0, kTransposedColumns,
                                      padded_value_dim(num_columns), tile.stride};
      weigh_head(tile, head, span, part, terms + row * kScoreStride,
                 weighted + row * tile.stride + d);
    }
  }
}

}  // namespace
}  // namespace POTLUCK_ISA
}  // namespace potluck
