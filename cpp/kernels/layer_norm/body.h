// Layer normalization without a bias (Ba et al. 2016). Included once per instruction set, after its
// lanes.
#pragma once

#include "kernels/variants.h"

POTLUCK_DECLARE_KERNELS(POTLUCK_ISA)

namespace potluck {
namespace POTLUCK_ISA {

// Both sums, of the values and of their squared distances from the mean, are over 16 lanes and one
// tree; `out` may be `x`.
void layer_norm(const float* x, const float* weight, float* out, int64_t num_tokens,
                int64_t columns, float epsilon) {
  const auto lanes_left = [columns](int64_t i) {
    return columns - i < kNumLanes ? columns - i : kNumLanes;
  };
  for (int64_t t = 0; t < num_tokens; ++t, x += columns, out += columns) {
    F32x16 values = splat(0.0f);
    for (int64_t i = 0; i < columns; i += kNumLanes)
      values = add(values, load_partial(x + i, lanes_left(i)));
    const F32x16 mean = splat(sum(values) / (float)columns);
    F32x16 squares = splat(0.0f);
    for (int64_t i = 0; i < columns; i += kNumLanes) {
      const int64_t count = lanes_left(i);
      const F32x16 v = keep_range(sub(load_partial(x + i, count), mean), 0, count, 0.0f);
      squares = fma(v, v, squares);
    }
    const float variance = sum(squares) / (float)columns;
    const F32x16 inverse = div(splat(1.0f), sqrt(splat(variance + epsilon)));
    for (int64_t i = 0; i < columns; i += kNumLanes) {
      const int64_t count = lanes_left(i);
      const F32x16 v = mul(sub(load_partial(x + i, count), mean), inverse);
      store_partial(out + i, mul(v, load_partial(weight + i, count)), count);
    }
  }
}

}  // namespace POTLUCK_ISA
}  // namespace potluck
