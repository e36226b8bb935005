// Partials of spans, and how those of a row become its result. Included by body.h, after the lanes.
#pragma once

#include "kernels/attention/span.h"

namespace potluck {
namespace POTLUCK_ISA {
namespace {

// What a span has for every row, where it lies: attention_partial_floats(...) floats, up to `end`.
struct Partial {
  float* weighted;  // [rows][padded head_dim]: sum of exp(score - largest) * value
  float* largest;   // [rows]: the largest score
  float* total;     // [rows]: sum of exp(score - largest)
  float* end;
};
POTLUCK_LANES Partial partial_at(const AttentionArgs& args, float* floats) {
  float* largest = floats + attention_rows(args) * padded_head_dim(args.head_dim);
  float* total = largest + attention_rows(args);
  return {floats, largest, total, total + attention_rows(args)};
}

// One row of a span after those before it; the first that the row sees is taken as it is.
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

// Spans are merged in ascending order; each row only those that it sees.
inline void merge_span(const AttentionArgs& args, int64_t span, const Partial& next,
                       const Partial& merged) {
  for (int64_t row = 0; row < attention_rows(args); ++row) {
    const int64_t token = token_of(args, row);
    const Range range = visible(args, token, span);
    if (range.begin >= range.end) continue;
    const bool is_first = span == first_position(args, token) / kSpanTokens;
    merge_row(next, row, padded_head_dim(args.head_dim), is_first, merged);
  }
}

inline void divide_by_total(const AttentionArgs& args, const Partial& merged) {
  for (int64_t row = 0; row < attention_rows(args); ++row) {
    float* out = args.out + query_offset(args, row);
    const float* sums = merged.weighted + row * padded_head_dim(args.head_dim);
    for (int64_t d = 0; d < args.head_dim; d += kNumLanes)
      store_partial(out + d, div(load(sums + d), splat(merged.total[row])),
                    smaller(args.head_dim - d, kNumLanes));
  }
}

}  // namespace
}  // namespace POTLUCK_ISA
}  // namespace potluck
