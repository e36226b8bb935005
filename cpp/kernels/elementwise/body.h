// Kernels over one flat array. Included once per instruction set, after its lanes.
#pragma once

#include "kernels/variants.h"

POTLUCK_DECLARE_KERNELS(POTLUCK_ISA)

namespace potluck {
namespace POTLUCK_ISA {
namespace {

POTLUCK_LANES int64_t lanes_left(int64_t count, int64_t i) {
  return count - i < kNumLanes ? count - i : kNumLanes;
}

}  // namespace

void silu_gate(const float* gate, const float* up, float* out, int64_t count) {
  const F32x16 one = splat(1.0f);
  for (int64_t i = 0; i < count; i += kNumLanes) {
    const int64_t n = lanes_left(count, i);
    const F32x16 g = load_partial(gate + i, n);
    const F32x16 silu = div(g, add(one, exp(sub(splat(0.0f), g))));
    store_partial(out + i, mul(silu, load_partial(up + i, n)), n);
  }
}

void add(float* x, const float* y, int64_t count) {
  for (int64_t i = 0; i < count; i += kNumLanes) {
    const int64_t n = lanes_left(count, i);
    store_partial(x + i, add(load_partial(x + i, n), load_partial(y + i, n)), n);
  }
}

float exp_sum(const float* x, int64_t count, float max, float* out) {
  F32x16 total = splat(0.0f);
  for (int64_t i = 0; i < count; i += kNumLanes) {
    const int64_t n = lanes_left(count, i);
    const F32x16 e = exp(sub(load_partial(x + i, n), splat(max)));
    store_partial(out + i, e, n);
    total = add(total, keep_range(e, 0, n, 0.0f));
  }
  return sum(total);
}

}  // namespace POTLUCK_ISA
}  // namespace potluck
