// Sums of products of bytes by an instruction that adds four products to each 32-bit lane. Included
// after linear/neon_tiles.h, which defines the requirements of a class of products.
//
// A class `Instruction` has kOffset, `rows` in the form that the instruction reads, and `dot`,
// which adds the products with four activations, those of lane `lane`.
#pragma once

#include "kernels/linear/neon_tiles.h"

namespace potluck {
namespace neon {
namespace {

template <class Instruction>
struct DotProducts {
  // 16 registers hold sums, 8 activations.
  static constexpr int kTokenTile = 8;
  static constexpr int kOffset = Instruction::kOffset;

  template <class Weights, int first_row, int first, int end, int kTokens>
  static POTLUCK_LANES void sum(const uint8_t* block, int64_t g, const int8_t* q, int64_t stride,
                                const int32_t start[kTokens], I32x8 totals[kTokens]) {
#pragma GCC unroll kUnroll
    for (int t = 0; t < kTokens; ++t) totals[t] = splat_i32x8(start[t]);
#pragma GCC unroll kUnroll
    for (int quad = first; quad < end; quad += 4) {
      int8x16_t a[kTokens];
#pragma GCC unroll kUnroll
      for (int t = 0; t < kTokens; ++t) a[t] = vld1q_s8(q + t * stride + 4 * quad);
      add_line<Weights, first_row, 0, kTokens>(block, g, quad, a, totals);
      add_line<Weights, first_row, 1, kTokens>(block, g, quad, a, totals);
      add_line<Weights, first_row, 2, kTokens>(block, g, quad, a, totals);
      add_line<Weights, first_row, 3, kTokens>(block, g, quad, a, totals);
    }
  }

 private:
  // Line first_quad + lane.
  template <class Weights, int first_row, int lane, int kTokens>
  static POTLUCK_LANES void add_line(const uint8_t* block, int64_t g, int first_quad,
                                     const int8x16_t a[kTokens], I32x8 totals[kTokens]) {
    const auto w = Instruction::template rows<Weights, first_row>(block, g, first_quad + lane);
#pragma GCC unroll kUnroll
    for (int t = 0; t < kTokens; ++t)
      for (int i = 0; i < 2; ++i)
        totals[t].v[i] = Instruction::template dot<lane>(totals[t].v[i], w.v[i], a[t]);
  }
};

}  // namespace
}  // namespace neon
}  // namespace potluck
