// Sums of products of bytes without a dot product instruction: SMULL and SMLAL into 16 bits.
// Included after linear/neon_tiles.h.
#pragma once

#include "kernels/linear/neon_tiles.h"

namespace potluck {
namespace neon {
namespace {

struct WideningProducts {
  // totals[t] += the products of quads [first, end) for the token at q + t * stride.
  template <class Weights, int first, int end, int kTokens>
  static POTLUCK_LANES void add(const uint8_t* block, int64_t g, const int8_t* q, int64_t stride,
                                I32x16 totals[kTokens]) {
    // Sums of two registers of rows fill half of the 32 registers, for two tokens where there are
    // sums in 32 bits beside them.
    constexpr int kAtOnce = end - first > kMostLines<Weights> && kTokens > 2 ? 2 : kTokens;
    for (int t = 0; t < kTokens; t += kAtOnce) {
      add_rows<Weights, first, end, kAtOnce, 0>(block, g, q + t * stride, stride, totals + t);
      add_rows<Weights, first, end, kAtOnce, 2>(block, g, q + t * stride, stride, totals + t);
    }
  }

 private:
  // A 16-bit lane gets one product of each line. How many fit: |a| <= 127.
  template <class Weights>
  static constexpr int kMostWeight = Weights::kBits == 8 ? 128 : (1 << Weights::kBits) - 1;
  template <class Weights>
  static constexpr int kMostLines = 32767 / (kMostWeight<Weights> * 127);

  // The eight rows of registers `reg` and reg + 1 of a line.
  template <class Weights, int first, int end, int kTokens, int reg>
  static POTLUCK_LANES void add_rows(const uint8_t* block, int64_t g, const int8_t* q,
                                     int64_t stride, I32x16 totals[kTokens]) {
    constexpr int kLines = kMostLines<Weights> < end - first ? kMostLines<Weights> : end - first;
    int32x4_t pairs[kTokens][4];
#pragma GCC unroll kUnroll
    for (int quad = first; quad < end; quad += kLines) {
      int16x8_t parts[kTokens][4];
#pragma GCC unroll kUnroll
      for (int i = quad; i < quad + kLines; ++i) {
        const I8x64 w = signed_line<Weights>(block, g, i);
#pragma GCC unroll kUnroll
        for (int t = 0; t < kTokens; ++t) {
          const int8x16_t a = broadcast_4(q + t * stride + 4 * i);
#pragma GCC unroll kUnroll
          for (int r = 0; r < 2; ++r) {
            int16x8_t* part = parts[t] + 2 * r;
            const int8x16_t rows = w.v[reg + r];
            const int8x8_t low = vget_low_s8(rows);
            part[0] = i == quad ? vmull_s8(low, vget_low_s8(a))
                                : vmlal_s8(part[0], low, vget_low_s8(a));
            part[1] = i == quad ? vmull_high_s8(rows, a) : vmlal_high_s8(part[1], rows, a);
          }
        }
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
#pragma GCC unroll kUnroll
      for (int r = 0; r < 2; ++r)
        totals[t].v[reg + r] = vaddq_s32(totals[t].v[reg + r],
                                         vpaddq_s32(pairs[t][2 * r], pairs[t][2 * r + 1]));
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
