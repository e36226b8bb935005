// Attention over the paged cache, and what appends to it. Included once per instruction set, after
// its lanes.
//
// Everything goes by absolute position, in ascending order, and per row in an order of its own, so
// that a token's result depends on its own sequence alone, whatever tile it is in. Positions that a
// token does not see are never read as its values, and their scores are not used: the cache may hold
// anything there.
#pragma once

#include "kernels/attention/merge.h"
#include "kernels/attention/scores.h"
#include "kernels/attention/values.h"
#include "kernels/variants.h"

POTLUCK_DECLARE_KERNELS(POTLUCK_ISA)

namespace potluck {
namespace POTLUCK_ISA {
namespace {

// A span's partial. `q` is packed (pack_queries), `scores` is [rows][kScoreStride] of scratch.
inline void attend_span(const AttentionArgs& args, int64_t span, const float* q, float* scores,
                        const Partial& partial) {
  const Span blocks = find_span(args, span);
  score_span(args, blocks, span, q, scores);
  for (int64_t row = 0; row < attention_rows(args); ++row) {
    const Range range = visible(args, token_of(args, row), span);
    if (range.begin >= range.end) continue;
    const Softmax softmax = softmax_terms(scores + row * kScoreStride, range);
    partial.largest[row] = softmax.largest;
    partial.total[row] = softmax.total;
  }
  weigh_span(args, blocks, span, scores, partial.weighted);
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

void attention(const AttentionArgs& args) {
  float* q = args.scratch;
  float* scores = q + attention_rows(args) * args.head_dim;
  const Partial of_span = partial_at(args, scores + attention_rows(args) * kScoreStride);
  const Partial merged = partial_at(args, of_span.end);
  pack_queries(args, q);
  for (int64_t span = first_span(args); span < end_span(args); ++span) {
    attend_span(args, span, q, scores, of_span);
    merge_span(args, span, of_span, merged);
  }
  divide_by_total(args, merged);
}

void attention_span(const AttentionArgs& args, int64_t span, float* partial) {
  float* q = args.scratch;
  pack_queries(args, q);
  attend_span(args, span, q, q + attention_rows(args) * args.head_dim, partial_at(args, partial));
}

void attention_merge(const AttentionArgs& args, float* partials) {
  const Partial merged = partial_at(args, args.scratch);
  for (int64_t span = first_span(args); span < end_span(args); ++span) {
    const Partial of_span = partial_at(args, partials);
    merge_span(args, span, of_span, merged);
    partials = of_span.end;
  }
  divide_by_total(args, merged);
}

}  // namespace POTLUCK_ISA
}  // namespace potluck
