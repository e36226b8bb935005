// Kernels over a flat array. Included once per instruction set, after its lanes.
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
  for (int64_t i = 0; i < count; i += kNumLanes) {
    const int64_t n = lanes_left(count, i);
    const F32x16 g = load_partial(gate + i, n);
    const F32x16 silu = over_one_plus_exp(g, g);
    store_partial(out + i, mul(silu, load_partial(up + i, n)), n);
  }
}

// 1 + tanh(u) is 2 / (1 + exp(-2 u)), without the cancellation of a tanh near -1.
void gelu_gate(const float* gate, const float* up, float* out, int64_t count) {
  constexpr float kTwoRootTwoOverPi = 1.5957691216f;
  for (int64_t i = 0; i < count; i += kNumLanes) {
    const int64_t n = lanes_left(count, i);
    const F32x16 g = load_partial(gate + i, n);
    const F32x16 slope = fma(mul(g, g), splat(kTwoRootTwoOverPi * 0.044715f),
                             splat(kTwoRootTwoOverPi));
    store_partial(out + i, mul(over_one_plus_exp(g, mul(g, slope)), load_partial(up + i, n)), n);
  }
}

void clamped_gate(const float* gate, const float* up, float* out, int64_t count) {
  constexpr float kLimit = 7.0f;
  for (int64_t i = 0; i < count; i += kNumLanes) {
    const int64_t n = lanes_left(count, i);
    // This order preserves NaN.
    const F32x16 g = min(splat(kLimit), load_partial(gate + i, n));
    const F32x16 u = max(splat(-kLimit), min(splat(kLimit), load_partial(up + i, n)));
    const F32x16 swish = over_one_plus_exp(g, mul(g, splat(1.702f)));
    store_partial(out + i, mul(swish, add(u, splat(1.0f))), n);
  }
}

void product_gate(const float* gate, const float* up, float* out, int64_t count) {
  for (int64_t i = 0; i < count; i += kNumLanes) {
    const int64_t n = lanes_left(count, i);
    store_partial(out + i, mul(load_partial(gate + i, n), load_partial(up + i, n)), n);
  }
}

void relu_squared(const float* x, float* out, int64_t count) {
  for (int64_t i = 0; i < count; i += kNumLanes) {
    const int64_t n = lanes_left(count, i);
    const F32x16 v = max(splat(0.0f), load_partial(x + i, n));  // this order preserves NaN
    store_partial(out + i, mul(v, v), n);
  }
}

void add(float* x, const float* y, int64_t count) {
  for (int64_t i = 0; i < count; i += kNumLanes) {
    const int64_t n = lanes_left(count, i);
    store_partial(x + i, add(load_partial(x + i, n), load_partial(y + i, n)), n);
  }
}

void add_scaled(float* x, const float* y, float scale, int64_t count) {
  for (int64_t i = 0; i < count; i += kNumLanes) {
    const int64_t n = lanes_left(count, i);
    const F32x16 product = mul(load_partial(y + i, n), splat(scale));
    store_partial(x + i, add(load_partial(x + i, n), product), n);
  }
}

void scale(float* x, float factor, int64_t count) {
  for (int64_t i = 0; i < count; i += kNumLanes) {
    const int64_t n = lanes_left(count, i);
    store_partial(x + i, mul(load_partial(x + i, n), splat(factor)), n);
  }
}

void multiply(float* x, const float* y, int64_t count) {
  for (int64_t i = 0; i < count; i += kNumLanes) {
    const int64_t n = lanes_left(count, i);
    store_partial(x + i, mul(load_partial(x + i, n), load_partial(y + i, n)), n);
  }
}

void sigmoid(const float* x, float* out, int64_t count) {
  for (int64_t i = 0; i < count; i += kNumLanes) {
    const int64_t n = lanes_left(count, i);
    store_partial(out + i, over_one_plus_exp(splat(1.0f), load_partial(x + i, n)), n);
  }
}

void softcap(float* x, float cap, int64_t count) {
  for (int64_t i = 0; i < count; i += kNumLanes) {
    const int64_t n = lanes_left(count, i);
    store_partial(x + i, capped(load_partial(x + i, n), cap), n);
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
