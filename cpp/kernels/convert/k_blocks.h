// Shared by the searches for Q4_K and Q6_K. A lane is a group of columns with its own scale;
// sixteen groups are searched at once, and no sum crosses lanes.
//
// A block's scale d is an f16; a group's scale is d times an integer. The searches try integers and
// measure the squared error of the values after dequantization, so that rounding the scales is
// included in the minimization. The sum of squares is unweighted: for uncorrelated activations of
// equal variance, the expected squared error of an output is proportional to it.
#pragma once

#include "kernels/kernels.h"

namespace potluck {
namespace POTLUCK_ISA {
namespace {

constexpr int64_t kBlockColumns = 256;

// tile[k][lane] is column k of group `lane`.
template <int64_t group_columns>
POTLUCK_LANES void transpose_groups(const float* x, float* tile) {
  for (int64_t lane = 0; lane < kNumLanes; ++lane)
    for (int64_t k = 0; k < group_columns; ++k)
      tile[k * kNumLanes + lane] = x[lane * group_columns + k];
}

POTLUCK_LANES F32x16 clamp(F32x16 v, float least, float most) {
  return min(max(v, splat(least)), splat(most));
}

// Rounds to the nearest integer, halves to even; |v| <= 2^22.
POTLUCK_LANES F32x16 nearest(F32x16 v) {
  const F32x16 rounder = splat(kRounder);
  return sub(add(v, rounder), rounder);
}

// 1 / v, or 0 for a v so small that it must be 0: scales are multiples of 2^-24.
POTLUCK_LANES F32x16 inverse_or_zero(F32x16 v) {
  return div(v, max(mul(v, v), splat(0x1p-100f)));
}

// An f16 scale per lane, and its value.
struct Scales {
  uint16_t half[kNumLanes];
  F32x16 value;
};

// largest / nominal, rounded to f16, but at least so large that `largest` is at most `most` steps,
// which it could exceed where f16 is subnormal. Not finite if `largest` is too large.
POTLUCK_LANES Scales scales_for(F32x16 largest, float nominal, float most) {
  Scales scales;
  store_f16(scales.half, div(largest, splat(nominal)));
  float covered[kNumLanes], wanted[kNumLanes];
  store(covered, mul(load_f16(scales.half), splat(most)));
  store(wanted, largest);
  for (int lane = 0; lane < kNumLanes; ++lane)
    if (covered[lane] < wanted[lane]) ++scales.half[lane];
  scales.value = load_f16(scales.half);
  return scales;
}

POTLUCK_LANES bool is_finite_half(uint16_t half) { return (half & 0x7c00) != 0x7c00; }

}  // namespace
}  // namespace POTLUCK_ISA
}  // namespace potluck
