// Root-mean-square normalization (Zhang and Sennrich 2019). Included once per instruction set,
// after its lanes.
#pragma once

#include "kernels/variants.h"

POTLUCK_DECLARE_KERNELS(POTLUCK_ISA)

namespace potluck {
namespace POTLUCK_ISA {

// Squares are summed over 16 lanes and one tree; `out` may be `x`, `weight` null.
void rms_norm(const float* x, const float* weight, float* out, int64_t num_tokens, int64_t columns,
              int64_t group, float epsilon) {
  const int64_t num_groups = num_tokens * (columns / group);
  for (int64_t g = 0; g < num_groups; ++g, x += group, out += group) {
    F32x16 squares = splat(0.0f);
    for (int64_t i = 0; i < group; i += kNumLanes) {
      const int64_t count = group - i < kNumLanes ? group - i : kNumLanes;
      const F32x16 v = load_partial(x + i, count);
      squares = fma(v, v, squares);
    }
    const float mean = sum(squares) / (float)group;
    const F32x16 root = sqrt(splat(mean + epsilon));
    const F32x16 inverse = div(splat(1.0f), root);
    for (int64_t i = 0; i < group; i += kNumLanes) {
      const int64_t count = group - i < kNumLanes ? group - i : kNumLanes;
      const F32x16 v = mul(load_partial(x + i, count), inverse);
      store_partial(out + i, weight ? mul(v, load_partial(weight + i, count)) : v, count);
    }
  }
}

}  // namespace POTLUCK_ISA
}  // namespace potluck
