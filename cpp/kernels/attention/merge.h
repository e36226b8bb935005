// Partials of spans, and how those of a row are merged into its result. Included by body.h, after
// the lanes.
#pragma once

#include "kernels/attention/span.h"

namespace potluck {
namespace POTLUCK_ISA {
namespace {

// The partials of a span for all rows: attention_partial_floats(...) floats, up to `end`.
struct Partial {
  float* weighted;  // [rows][padded value_dim]: sum of exp(score - largest) * value
  float* largest;   // [rows]: the largest score
  float* total;     // [rows]: sum of exp(score - largest)
  float* end;
};
POTLUCK_LANES Partial partial_at(const Tile& tile, float* floats) {
  float* largest = floats + tile.num_rows * tile.stride;
  float* total = largest + tile.num_rows;
  return {floats, largest, total, total + tile.num_rows};
}

// Merges one row of a span into the preceding spans; the first span that the row sees is copied.
inline void merge_row(const Partial& next, int64_t row, int64_t stride, bool is_first,
                      const Partial& merged) {
  const float* weighted = next.weighted + row * stride;
  float* sums = merged.weighted + row * stride;
  if (is_first) {
    merged.largest[row] = next.largest[row];
    merged.total[row] = next.total[row];
    for (int64_t d = 0; d < stride; d += kNumLanes) store(sums + d, load(weighted + d));
    return;
  }
  const F32x16 before = splat(merged.largest[row]);
  const F32x16 after = splat(next.largest[row]);
  const F32x16 largest = max(before, after);
  const F32x16 keep = exp(sub(before, largest));
  const F32x16 take = exp(sub(after, largest));
  const F32x16 total = fma(splat(next.total[row]), take, mul(splat(merged.total[row]), keep));
  store_partial(merged.largest + row, largest, 1);
  store_partial(merged.total + row, total, 1);
  for (int64_t d = 0; d < stride; d += kNumLanes)
    store(sums + d, fma(load(weighted + d), take, mul(load(sums + d), keep)));
}

// Spans are merged in ascending order; each row merges only those that it sees.
inline void merge_span(const Tile& tile, int64_t span, const Partial& next,
                       const Partial& merged) {
  for (int64_t h = 0, row = 0; h < tile.num_kv_heads; ++h)
    for (int64_t i = 0; i < tile.rows_per_head; ++i, ++row) {
      const int64_t token = tile.token(i);
      const Range range = tile.visible(token, span);
      if (range.begin >= range.end) continue;
      const bool is_first = span == first_position(tile.args, token) / kSpanTokens;
      merge_row(next, row, tile.stride, is_first, merged);
    }
}

// A sink is merged as a last span with one score and no value.
inline void merge_sink(float sink, int64_t row, int64_t stride, const Partial& merged) {
  const F32x16 before = splat(merged.largest[row]);
  const F32x16 largest = max(before, splat(sink));
  const F32x16 keep = exp(sub(before, largest));
  const F32x16 total = fma(splat(merged.total[row]), keep, exp(sub(splat(sink), largest)));
  store_partial(merged.total + row, total, 1);
  float* sums = merged.weighted + row * stride;
  for (int64_t d = 0; d < stride; d += kNumLanes) store(sums + d, mul(load(sums + d), keep));
}

inline void divide_by_total(const Tile& tile, const Partial& merged) {
  const int64_t value_dim = tile.args.value_dim;
  for (int64_t h = 0, row = 0; h < tile.num_kv_heads; ++h)
    for (int64_t i = 0; i < tile.rows_per_head; ++i, ++row) {
      if (tile.args.sinks)
        merge_sink(tile.args.sinks[tile.head(h, i)], row, tile.stride, merged);
      float* out = tile.args.out + tile.query_row(h, i) * value_dim;
      const float* sums = merged.weighted + row * tile.stride;
      for (int64_t d = 0; d < value_dim; d += kNumLanes)
        store_partial(out + d, div(load(sums + d), splat(merged.total[row])),
                      smaller(value_dim - d, kNumLanes));
    }
}

}  // namespace
}  // namespace POTLUCK_ISA
}  // namespace potluck
