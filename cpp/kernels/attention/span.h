// One span of the cache as a tile of rows sees it. Included by body.h, after the lanes.
//
// The rows of a tile lie head after head: row r is one of key-value head r / rows_per_head, and
// within it of token i / group_heads, query head i % group_heads, with i = r % rows_per_head.
#pragma once

#include "kernels/kernels.h"

namespace potluck {
namespace POTLUCK_ISA {
namespace {

constexpr int64_t kSpanBlocks = kSpanTokens / kBlockTokens;
// The most steps of reading (see Span) that are asked for in advance.
constexpr int64_t kMaxBlocksAhead = 4;

// A range of positions, counted from the beginning of the span; empty where end <= begin.
struct Range {
  int64_t begin, end;
};
POTLUCK_LANES int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
POTLUCK_LANES int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

POTLUCK_LANES int64_t group_heads(const AttentionArgs& args) {
  return args.num_heads / args.num_kv_heads;
}
POTLUCK_LANES int64_t tile_kv_heads(const AttentionArgs& args) {
  return args.end_kv_head - args.first_kv_head;
}
POTLUCK_LANES int64_t rows_per_head(const AttentionArgs& args) {
  return args.num_tokens * group_heads(args);
}
POTLUCK_LANES int64_t token_of(const AttentionArgs& args, int64_t row) {
  return row % rows_per_head(args) / group_heads(args);
}
// Where a row's query and result lie, in floats.
POTLUCK_LANES int64_t query_offset(const AttentionArgs& args, int64_t row) {
  const int64_t group = group_heads(args);
  const int64_t kv_head = args.first_kv_head + row / rows_per_head(args);
  const int64_t head = kv_head * group + row % group;
  return (token_of(args, row) * args.num_heads + head) * args.head_dim;
}

// What a token sees of a span.
POTLUCK_LANES Range visible(const AttentionArgs& args, int64_t token, int64_t span) {
  const int64_t start = span * kSpanTokens;
  return {larger(first_position(args, token) - start, 0),
          smaller(args.position + token + 1 - start, kSpanTokens)};
}

// Keys or values of one block and key-value head, in halves.
POTLUCK_LANES int64_t keys_size(const AttentionArgs& args) { return args.head_dim * kBlockTokens; }
POTLUCK_LANES int64_t values_size(const AttentionArgs& args) {
  return padded_head_dim(args.head_dim) * kBlockTokens;
}

// Where the blocks [first_block, first_block + num_blocks) of a span lie, those that any row sees:
// of the tile's first key-value head; those of its other heads follow.
struct Span {
  int64_t first_block, num_blocks;
  // First the keys and then the values, each block after block, and of a block head after head;
  // at last what the next span begins with.
  const uint16_t* reads[2 * kSpanBlocks + kMaxBlocksAhead];

  const uint16_t* const* keys() const { return reads; }
  const uint16_t* const* values() const { return reads + num_blocks; }
};

inline Span find_span(const AttentionArgs& args, int64_t span) {
  const int64_t last_token = args.num_tokens - 1;
  const int64_t begin = visible(args, 0, span).begin;
  const int64_t end = visible(args, last_token, span).end;
  Span r;
  r.first_block = begin / kBlockTokens;
  r.num_blocks = (end - 1) / kBlockTokens + 1 - r.first_block;
  const int64_t first = span * kSpanBlocks + r.first_block;
  const int64_t last = (args.position + last_token) / kBlockTokens;
  const int32_t* table = args.block_table;
  for (int64_t i = 0; i < r.num_blocks; ++i) {
    const int64_t part = table[first + i] * args.num_kv_heads + args.first_kv_head;
    r.reads[i] = args.keys + part * keys_size(args);
    r.reads[r.num_blocks + i] = args.values + part * values_size(args);
  }
  for (int64_t i = 0; i < kMaxBlocksAhead; ++i) {
    const int64_t next = smaller(first + r.num_blocks + i, last);
    const int64_t part = table[next] * args.num_kv_heads + args.first_kv_head;
    r.reads[2 * r.num_blocks + i] = args.keys + part * keys_size(args);
  }
  return r;
}

// `left` rows go into as few tiles as can be, and these are of even size: how many the next one has.
POTLUCK_LANES int64_t next_tile(int64_t left, int64_t most) {
  const int64_t num_tiles = (left + most - 1) / most;
  return (left + num_tiles - 1) / num_tiles;
}

}  // namespace
}  // namespace POTLUCK_ISA
}  // namespace potluck
