// One span of the cache as a tile of rows sees it. Included by body.h, after the lanes.
//
// A row is a token of the tile and one query head of the group that shares the key-value head: row
// r is token r / group and head r % group of these.
#pragma once

#include "kernels/kernels.h"

namespace potluck {
namespace POTLUCK_ISA {
namespace {

constexpr int64_t kSpanBlocks = kSpanTokens / kBlockTokens;
// Blocks that are asked for before they are read: those of a key-value head lie apart, where no
// prefetcher of the hardware looks for the next. Two are 4 KiB at 64 columns, what a core that reads
// 40 GB/s has under way in 100 ns.
constexpr int64_t kBlocksAhead = 2;

// A range of positions, counted from the beginning of the span; empty where end <= begin.
struct Range {
  int64_t begin, end;
};
POTLUCK_LANES int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
POTLUCK_LANES int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// Where the blocks [first_block, first_block + num_blocks) of a span lie, those that any row sees.
struct Span {
  int64_t first_block, num_blocks;
  const uint16_t* keys[kSpanBlocks];
  const uint16_t* values[kSpanBlocks];
  // Keys, values and the next span's first keys in the order in which they are read; the first that
  // has not been asked for when block i is read is i + kBlocksAhead.
  const uint16_t* reads[2 * kSpanBlocks + kBlocksAhead];
};

POTLUCK_LANES int64_t group_heads(const AttentionArgs& args) {
  return args.num_heads / args.num_kv_heads;
}
POTLUCK_LANES int64_t num_rows(const AttentionArgs& args) {
  return args.num_tokens * group_heads(args);
}

// What a token sees of a span.
POTLUCK_LANES Range visible(const AttentionArgs& args, int64_t token, int64_t span) {
  const int64_t start = span * kSpanTokens;
  return {larger(first_position(args, token) - start, 0),
          smaller(args.position + token + 1 - start, kSpanTokens)};
}

POTLUCK_LANES const uint16_t* block_keys(const AttentionArgs& args, int64_t kv_head,
                                         int64_t block) {
  return args.keys + (args.block_table[block] * args.num_kv_heads + kv_head) * args.head_dim *
                         kBlockTokens;
}
POTLUCK_LANES const uint16_t* block_values(const AttentionArgs& args, int64_t kv_head,
                                           int64_t block) {
  return args.values + (args.block_table[block] * args.num_kv_heads + kv_head) * kBlockTokens *
                           padded_head_dim(args.head_dim);
}

inline Span find_span(const AttentionArgs& args, int64_t kv_head, int64_t span) {
  const int64_t last_token = args.num_tokens - 1;
  const int64_t begin = visible(args, 0, span).begin;
  const int64_t end = visible(args, last_token, span).end;
  Span r;
  r.first_block = begin / kBlockTokens;
  r.num_blocks = (end - 1) / kBlockTokens + 1 - r.first_block;
  const int64_t first = span * kSpanBlocks + r.first_block;
  const int64_t end_block = (args.position + last_token) / kBlockTokens + 1;
  for (int64_t i = 0; i < r.num_blocks; ++i) {
    r.keys[i] = r.reads[i] = block_keys(args, kv_head, first + i);
    r.values[i] = r.reads[r.num_blocks + i] = block_values(args, kv_head, first + i);
  }
  for (int64_t i = 0; i < kBlocksAhead; ++i) {
    const int64_t next = smaller(first + r.num_blocks + i, end_block - 1);
    r.reads[2 * r.num_blocks + i] = block_keys(args, kv_head, next);
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
