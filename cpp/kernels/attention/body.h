// Attention over the paged cache, and appending to it. Included once per instruction set, after its
// lanes.
//
// Everything is ordered by absolute position, ascending, and each row is computed independently, so
// that a token's result depends on its own sequence alone, whatever tile it is in. Values at
// positions that a token does not see are never read, and the scores there are not used: the cache
// may contain anything.
#pragma once

#include "kernels/attention/merge.h"
#include "kernels/attention/scores.h"
#include "kernels/attention/values.h"
#include "kernels/variants.h"

POTLUCK_DECLARE_KERNELS(POTLUCK_ISA)

namespace potluck {
namespace POTLUCK_ISA {
namespace {

// The scratch memory of a tile.
struct Scratch {
  float* q;       // packed (pack_queries)
  float* scores;  // [rows][kScoreStride]
  float* transposed;  // kTransposedFloats, unless there are values
  float* end;

  Scratch(const Tile& tile)
      : q(tile.args.scratch),
        scores(q + tile.num_rows * tile.args.head_dim),
        transposed(scores + tile.num_rows * kScoreStride),
        end(transposed + (tile.args.values ? 0 : kTransposedFloats)) {}
};

// The partial of a span.
inline void attend_span(const Tile& tile, int64_t span, const Scratch& scratch,
                        const Partial& partial) {
  const Span blocks = find_span(tile, span);
  float* scores = scratch.scores;
  score_span(tile, blocks, span, scratch.q, scores);
  for (int64_t h = 0, row = 0; h < tile.num_kv_heads; ++h)
    for (int64_t i = 0; i < tile.rows_per_head; ++i, ++row) {
      const Range range = tile.visible(tile.token(i), span);
      if (range.begin >= range.end) continue;
      const Softmax softmax = softmax_terms(scores + row * kScoreStride, range, tile.args.softcap);
      partial.largest[row] = softmax.largest;
      partial.total[row] = softmax.total;
    }
  if (tile.args.values)
    weigh_span(tile, blocks, span, scores, partial.weighted);
  else
    weigh_keys(tile, blocks, span, scores, scratch.transposed, partial.weighted);
}

}  // namespace

void append_kv(const float* k, const float* v, uint16_t* keys, uint16_t* values, int64_t block,
               int64_t offset, int64_t num_kv_heads, int64_t head_dim, int64_t value_dim) {
  const int64_t stride = padded_value_dim(value_dim);
  for (int64_t h = 0; h < num_kv_heads; ++h) {
    uint16_t* key = keys + (block * num_kv_heads + h) * head_dim * kBlockTokens + offset;
    for (int64_t d = 0; d < head_dim; d += kNumLanes) {
      const int64_t count = smaller(head_dim - d, kNumLanes);
      uint16_t halves[kNumLanes];
      store_f16(halves, load_partial(k + h * head_dim + d, count));
      for (int64_t i = 0; i < count; ++i) key[(d + i) * kBlockTokens] = halves[i];
    }
    uint16_t* value = values + ((block * num_kv_heads + h) * kBlockTokens + offset) * stride;
    for (int64_t d = 0; d < value_dim; d += kNumLanes)
      store_f16(value + d,
                load_partial(v + h * value_dim + d, smaller(value_dim - d, kNumLanes)));
  }
}

void attention(const AttentionArgs& args) {
  const Tile tile(args);
  const Scratch scratch(tile);
  const Partial of_span = partial_at(tile, scratch.end);
  const Partial merged = partial_at(tile, of_span.end);
  pack_queries(tile, scratch.q);
  for (int64_t span = first_span(args); span < end_span(args); ++span) {
    attend_span(tile, span, scratch, of_span);
    merge_span(tile, span, of_span, merged);
  }
  divide_by_total(tile, merged);
}

void attention_span(const AttentionArgs& args, int64_t span, float* partial) {
  const Tile tile(args);
  const Scratch scratch(tile);
  pack_queries(tile, scratch.q);
  attend_span(tile, span, scratch, partial_at(tile, partial));
}

void attention_merge(const AttentionArgs& args, float* partials) {
  const Tile tile(args);
  const Partial merged = partial_at(tile, args.scratch);
  for (int64_t span = first_span(args); span < end_span(args); ++span) {
    const Partial of_span = partial_at(tile, partials);
    merge_span(tile, span, of_span, merged);
    partials = of_span.end;
  }
  divide_by_total(tile, merged);
}

}  // namespace POTLUCK_ISA
}  // namespace potluck
