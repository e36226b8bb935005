// Sums of products of bytes without a dot product instruction: SMULL and SMLAL into 16 bits.
// Included after linear/neon_tiles.h, which defines the requirements of a class of products.
#pragma once

#include "kernels/linear/neon_tiles.h"

namespace potluck {
namespace neon {
namespace {

struct WideningProducts {
  // Four registers of 16-bit sums per token: half of all registers.
  static constexpr int kTokenTile = 4;
  static constexpr int kOffset = 128;

  template <class Weights, int first_row, int first, int end, int kTokens>
  static POTLUCK_LANES void sum(const uint8_t* block, int64_t g, const int8_t* q, int64_t stride,
                                const int32_t start[kTokens], I32x8 totals[kTokens]) {
    // Used if 32-bit sums are kept in addition, for half as many tokens.
    constexpr int kAtOnce = end - first > kMostLines<Weights> && kTokens > 2 ? 2 : kTokens;
#pragma GCC unroll kUnroll
    for (int t = 0; t < kTokens; t += kAtOnce)
      sum_lines<Weights, first_row, first, end, kAtOnce>(block, g, q + t * stride, stride, start + t,
                                                         totals + t);
  }

 private:
  // A 16-bit lane receives one product of each line. This is how many fit: |a| <= 127.
  template <class Weights>
  static constexpr int kMostWeight = Weights::kBits == 8 ? 128 : (1 << Weights::kBits) - 1;
  template <class Weights>
  static constexpr int kMostLines = 32767 / (kMostWeight<Weights> * 127);

  template <class Weights, int first_row, int first, int end, int kTokens>
  static POTLUCK_LANES void sum_lines(const uint8_t* block, int64_t g, const int8_t* q,
                                      int64_t stride, const int32_t start[kTokens],
                                      I32x8 totals[kTokens]) {
    constexpr int kLines = kMostLines<Weights> < end - first ? kMostLines<Weights> : end - first;
    int32x4_t pairs[kTokens][4];
#pragma GCC unroll kUnroll
    for (int quad = first; quad < end; quad += kLines) {
      int16x8_t parts[kTokens][4];
#pragma GCC unroll kUnroll
      for (int i = quad; i < quad + kLines; ++i) {
        const I8x32 w = signed_rows_of_quad<Weights, first_row>(block, g, i);
#pragma GCC unroll kUnroll
        for (int t = 0; t < kTokens; ++t)
          multiply(w, broadcast_4(q + t * stride + 4 * i), i == quad, parts[t]);
      }
#pragma GCC unroll kUnroll
      for (int t = 0; t < kTokens; ++t)
#pragma GCC unroll kUnroll
        for (int i = 0; i < 4; ++i)
          pairs[t][i] = quad == first ? vpaddlq_s16(parts[t][i])
                                      : vpadalq_s16(pairs[t][i], parts[t][i]);
    }
#pragma GCC unroll kUnroll
    for (int t = 0; t < kTokens; ++t)
      totals[t] = add(splat_i32x8(start[t]), {{vpaddq_s32(pairs[t][0], pairs[t][1]),
                                               vpaddq_s32(pairs[t][2], pairs[t][3])}});
  }

  // Products of two rows, by column, in each of the four parts; the first ones are not added.
  static POTLUCK_LANES void multiply(I8x32 w, int8x16_t a, bool is_first, int16x8_t parts[4]) {
    const int8x8_t half = vget_low_s8(a);
    for (int i = 0; i < 2; ++i) {
      const int8x8_t low = vget_low_s8(w.v[i]);
      parts[2 * i] = is_first ? vmull_s8(low, half) : vmlal_s8(parts[2 * i], low, half);
      parts[2 * i + 1] = is_first ? vmull_high_s8(w.v[i], a)
                                  : vmlal_high_s8(parts[2 * i + 1], w.v[i], a);
    }
  }

  static POTLUCK_LANES int8x16_t broadcast_4(const int8_t* a) {
    int32_t four;
    __builtin_memcpy(&four, a, 4);
    return vreinterpretq_s8_s32(vdupq_n_s32(four));
  }
};

}  // namespace
}  // namespace neon
}  // namespace potluck
