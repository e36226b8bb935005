// The rows of a tile, and one span of the cache as they see it. Included by body.h, after the
// lanes.
//
// The rows of a tile are ordered by head: row r belongs to key-value head r / rows_per_head. Within
// the head, with i = r % rows_per_head, it is token i / heads and the i % heads-th of the tile's
// query heads.
#pragma once

#include "kernels/kernels.h"

namespace potluck {
namespace POTLUCK_ISA {
namespace {

constexpr int64_t kSpanBlocks = kSpanTokens / kBlockTokens;
// How many blocks of one head ahead are prefetched: blocks are not contiguous, so hardware
// prefetchers do not find the next one. 8 KiB at 64 columns. Reading reaches 19 GB/s with 2 blocks,
// and 23 with 4 and 8 (one core of a Zen 5).
constexpr int64_t kBlocksAhead = 4;

// A range of positions, relative to the start of the span; empty if end <= begin.
struct Range {
  int64_t begin, end;
};
POTLUCK_LANES int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
POTLUCK_LANES int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// Values derived from the args once: a division takes as long as a row does for a block.
struct Tile {
  const AttentionArgs& args;
  int64_t group_heads;    // query heads that share a key-value head
  int64_t heads;          // the number of these in the tile
  int64_t rows_per_head;  // of one key-value head
  int64_t num_kv_heads;
  int64_t num_rows;
  int64_t stride;       // halves per position of values, and floats per row of weighted values
  int64_t keys_size;    // halves per block and key-value head
  int64_t values_size;

  explicit Tile(const AttentionArgs& a)
      : args(a),
        group_heads(a.num_heads / a.num_kv_heads),
        heads(a.end_in_group - a.first_in_group),
        rows_per_head(a.num_tokens * heads),
        num_kv_heads(a.end_kv_head - a.first_kv_head),
        num_rows(rows_per_head * num_kv_heads),
        stride(padded_value_dim(a.value_dim)),
        keys_size(a.head_dim * kBlockTokens),
        values_size(stride * kBlockTokens) {}

  // Returns the token of row `i` of any head.
  int64_t token(int64_t i) const { return args.num_tokens == 1 ? 0 : i / heads; }
  // Returns the query head of row `i` of key-value head `h`.
  int64_t head(int64_t h, int64_t i) const {
    return (args.first_kv_head + h) * group_heads + args.first_in_group + i % heads;
  }
  // Returns the index of the query among those of all tokens and heads.
  int64_t query_row(int64_t h, int64_t i) const {
    return token(i) * args.num_heads + head(h, i);
  }
  // Returns the part of a span that a token sees.
  Range visible(int64_t token, int64_t span) const {
    const int64_t start = span * kSpanTokens;
    return {larger(first_position(args, token) - start, 0),
            smaller(args.position + token + 1 - start, kSpanTokens)};
  }
};

// Divides the rows of a head into the fewest steps of at most `most` rows, of equal size.
struct RowSteps {
  int64_t count, size, num_larger;

  RowSteps(const Tile& tile, int64_t most)
      : count((tile.rows_per_head + most - 1) / most),
        size(tile.rows_per_head / count),
        num_larger(tile.rows_per_head - size * count) {}
  int64_t rows(int64_t i) const { return size + (i < num_larger); }
};

// The addresses of those blocks [first_block, first_block + num_blocks) of a span that any row
// sees, for the tile's first key-value head; those of its other heads follow.
struct Span {
  int64_t first_block, num_blocks;
  // First the keys and then the values, if these are stored separately, each block by block, and
  // each block head by head; finally the beginning of the next span.
  const uint16_t* reads[2 * kSpanBlocks + kBlocksAhead];

  const uint16_t* const* keys() const { return reads; }
  const uint16_t* const* values() const { return reads + num_blocks; }
};

inline Span find_span(const Tile& tile, int64_t span) {
  const AttentionArgs& args = tile.args;
  const int64_t last_token = args.num_tokens - 1;
  const int64_t begin = tile.visible(0, span).begin;
  const int64_t end = tile.visible(last_token, span).end;
  Span r;
  r.first_block = begin / kBlockTokens;
  r.num_blocks = (end - 1) / kBlockTokens + 1 - r.first_block;
  const int64_t first = span * kSpanBlocks + r.first_block;
  const int64_t last = (args.position + last_token) / kBlockTokens;
  const int32_t* table = args.block_table;
  for (int64_t i = 0; i < r.num_blocks; ++i) {
    const int64_t part = table[first + i] * args.num_kv_heads + args.first_kv_head;
    r.reads[i] = args.keys + part * tile.keys_size;
    if (args.values) r.reads[r.num_blocks + i] = args.values + part * tile.values_size;
  }
  const uint16_t** next_reads = r.reads + (args.values ? 2 : 1) * r.num_blocks;
  for (int64_t i = 0; i < kBlocksAhead; ++i) {
    const int64_t next = smaller(first + r.num_blocks + i, last);
    const int64_t part = table[next] * args.num_kv_heads + args.first_kv_head;
    next_reads[i] = args.keys + part * tile.keys_size;
  }
  return r;
}

// Returns the data that is read `steps` heads later, continuing with the next blocks after the last
// head.
struct Ahead {
  int64_t blocks, h;

  Ahead(const Tile& tile, int64_t h_now, int64_t steps) : blocks(0), h(h_now + steps) {
    for (; h >= tile.num_kv_heads; h -= tile.num_kv_heads) ++blocks;
  }
};

}  // namespace
}  // namespace POTLUCK_ISA
}  // namespace potluck
