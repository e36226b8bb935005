// How the tokens of a product are divided into tiles, and copied for loading.
#pragma once

#include <stdint.h>

namespace potluck {
namespace amx {
namespace {

// A product's cost depends on the rows of its first factor, which are tokens: tiles of equal height
// waste fewer rows than full ones and a remainder (17 tokens: 9 and 8).
struct TokenSplit {
  int64_t count;
  int64_t height;  // rows of each; the last tile may have fewer tokens

  // The height is rounded up to a multiple of `multiple`, which is at most 16.
  TokenSplit(int64_t num_tokens, int64_t multiple)
      : count((num_tokens + 15) / 16),
        height(((num_tokens + count - 1) / count + multiple - 1) / multiple * multiple) {
    count = (num_tokens + height - 1) / height;
  }
};

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Copies `num_rows` rows of `num_bytes` each, `stride` bytes apart in `from`, to rows of row_bytes
// at `to`, padded with zeros in both dimensions, up to row_bytes and to `height` rows. In most
// models, rows of activations are a multiple of 4096 bytes apart, so that a tile's rows would map
// to one set of the L1 cache.
template <int64_t row_bytes>
inline void pack_rows_of_tile(const uint8_t* from, int64_t stride, int64_t num_rows,
                              int64_t num_bytes, int64_t height, uint8_t* to) {
  for (int64_t r = 0; r < height; ++r) {
    uint8_t* row = to + r * row_bytes;
    if (r < num_rows && num_bytes == row_bytes) {  // a constant, so there is no call
      __builtin_memcpy(row, from + r * stride, row_bytes);
      continue;
    }
    __builtin_memset(row, 0, row_bytes);
    if (r < num_rows) __builtin_memcpy(row, from + r * stride, (size_t)num_bytes);
  }
}

}  // namespace
}  // namespace amx
}  // namespace potluck
