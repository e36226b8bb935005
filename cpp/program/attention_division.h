// Divides attention over a batch among threads.
//
// The unit of division is a tile of consecutive tokens, which share the keys and values that they
// read, times key-value heads: one head at a time for many tokens, and several for few, as their
// keys and values are contiguous. If very many query heads share a key-value head, a part has some
// of them. If that yields too few parts to keep all threads busy, as in decoding one long sequence,
// parts are cut into ranges of spans, whose partials are kept and merged when all are complete. No
// result depends on any of this (see AttentionArgs in kernels.h).
#pragma once

#include <cstdint>
#include <vector>

#include "program/batch.h"

namespace potluck {

struct AttentionShape {
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t value_dim;
  bool has_values;  // in addition to the keys
  int64_t window;   // kNoWindow for none
};
bool operator==(const AttentionShape& a, const AttentionShape& b);

struct AttentionLimits {
  int64_t max_step_tokens;
  int64_t context_tokens;
  int num_threads;
};

// Rows [first_row, first_row + num_tokens) of the batch: consecutive tokens of one sequence.
struct AttentionTile {
  int64_t first_row;
  int64_t num_tokens;
  int64_t position;  // of the first
};

// Key-value heads [first_kv_head, end_kv_head), and of the query heads that share each of them,
// those with indices [first_in_group, end_in_group).
struct AttentionHeads {
  int64_t first_kv_head;
  int64_t end_kv_head;
  int64_t first_in_group;
  int64_t end_in_group;
};

// Spans [first_span, end_span) of a tile and some of its heads: all of them, or part of a cut.
struct AttentionPart {
  int64_t tile;
  AttentionHeads heads;
  int64_t first_span;
  int64_t end_span;
  int64_t partials;  // offset of its spans' partials, in floats; kNoPartials if it has all spans
  int64_t work;      // in multiply-adds, or work that takes as long
};
constexpr int64_t kNoPartials = -1;

// A tile and heads whose partials have to be merged.
struct AttentionCut {
  int64_t tile;
  AttentionHeads heads;
  int64_t partials;
};

struct AttentionDivision {
  std::vector<AttentionTile> tiles;
  std::vector<AttentionPart> parts;  // the most expensive first
  std::vector<AttentionCut> cuts;
  // Parts [chunks[i], chunks[i + 1]) are assigned together.
  std::vector<int64_t> chunks;

  int64_t num_chunks() const { return static_cast<int64_t>(chunks.size()) - 1; }
};

// Maximum number of rows of one part: tokens times query heads.
int64_t attention_part_rows(const AttentionShape& shape, const AttentionLimits& limits);
// Memory for the partials of cuts, in floats; 0 with one thread.
int64_t attention_cut_floats(const AttentionShape& shape, const AttentionLimits& limits);

// `slices` are within `limits`.
AttentionDivision divide_attention(const std::vector<BatchSlice>& slices,
                                   const AttentionShape& shape, const AttentionLimits& limits);

}  // namespace potluck
