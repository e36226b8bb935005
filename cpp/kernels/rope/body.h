// Rotary position embedding (Su et al. 2021), halves rotated against each other. Included once per
// instruction set, after its lanes.
#pragma once

#include "kernels/variants.h"

POTLUCK_DECLARE_KERNELS(POTLUCK_ISA)

namespace potluck {
namespace POTLUCK_ISA {

void rope(float* x, const float* cos, const float* sin, int64_t num_heads, int64_t head_dim,
          int64_t rotary_dim) {
  const int64_t half = rotary_dim / 2;
  for (int64_t h = 0; h < num_heads; ++h, x += head_dim) {
    for (int64_t i = 0; i < half; i += kNumLanes) {
      const int64_t count = half - i < kNumLanes ? half - i : kNumLanes;
      const F32x16 a = load_partial(x + i, count);
      const F32x16 b = load_partial(x + half + i, count);
      const F32x16 c = load_partial(cos + i, count);
      const F32x16 s = load_partial(sin + i, count);
      store_partial(x + i, sub(mul(a, c), mul(b, s)), count);
      store_partial(x + half + i, add(mul(b, c), mul(a, s)), count);
    }
  }
}

}  // namespace POTLUCK_ISA
}  // namespace potluck
