// Sums of products of bytes by SDOT. Included after linear/neon_tiles.h.
#pragma once

#include "kernels/linear/neon_tiles.h"

namespace potluck {
namespace neon {
namespace {

struct DotProducts {
  // totals[t] += the products of quads [first, end), whole halves of a group, for the token at
  // q + t * stride.
  template <class Weights, int first, int end, int kTokens>
  static POTLUCK_LANES void add(const uint8_t* block, int64_t g, const int8_t* q, int64_t stride,
                                I32x16 totals[kTokens]) {
#pragma GCC unroll kUnroll
    for (int quad = first; quad < end; quad += 4) {
      int8x16_t a[kTokens];
#pragma GCC unroll kUnroll
      for (int t = 0; t < kTokens; ++t) a[t] = vld1q_s8(q + t * stride + 4 * quad);
      add_line<0, kTokens>(signed_line<Weights>(block, g, quad), a, totals);
      add_line<1, kTokens>(signed_line<Weights>(block, g, quad + 1), a, totals);
      add_line<2, kTokens>(signed_line<Weights>(block, g, quad + 2), a, totals);
      add_line<3, kTokens>(signed_line<Weights>(block, g, quad + 3), a, totals);
    }
  }

 private:
  template <int lane, int kTokens>
  static POTLUCK_LANES void add_line(I8x64 w, const int8x16_t a[kTokens],
                                     I32x16 totals[kTokens]) {
#pragma GCC unroll kUnroll
    for (int t = 0; t < kTokens; ++t)
#pragma GCC unroll kUnroll
      for (int i = 0; i < 4; ++i)
        totals[t].v[i] = vdotq_laneq_s32(totals[t].v[i], w.v[i], a[t], lane);
  }
};

}  // namespace
}  // namespace neon
}  // namespace potluck
