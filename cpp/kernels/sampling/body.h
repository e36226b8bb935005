// Kernels over the logits of a vocabulary, by blocks. Included once per instruction set, after its
// lanes. Sums are in float64 over 16 lanes and one tree, so that they are the same everywhere.
#pragma once

#include "kernels/variants.h"

POTLUCK_DECLARE_KERNELS(POTLUCK_ISA)

namespace potluck {
namespace POTLUCK_ISA {
namespace {

POTLUCK_LANES int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

template <bool divides>
POTLUCK_LANES void write_weights(const float* logits, int64_t count, float largest,
                                 float temperature, float* weights, double* sums) {
  const F32x16 zero = splat(0.0f);
  for (int64_t first = 0; first < count; first += kSamplingBlock) {
    const int64_t last = smaller(first + kSamplingBlock, count);
    F64x16 total = zeros_f64();
    for (int64_t i = first; i < last; i += kNumLanes) {
      const int64_t n = smaller(last - i, kNumLanes);
      F32x16 below = sub(load_partial(logits + i, n), splat(largest));
      if (divides) below = div(below, splat(temperature));
      // Without a branch, and without subnormal numbers, which take microcode on many CPUs.
      const F32x16 least = splat(kLeastExponent);
      const F32x16 e = exp_of_small(where_less(below, least, zero, below));
      const F32x16 weight = keep_range(where_less(below, least, zero, e), 0, n, 0.0f);
      store_partial(weights + i, weight, n);
      total = add_wide(total, weight);
    }
    *sums++ = sum(total);
  }
}

}  // namespace

void copy_allowed(const float* logits, const uint32_t* mask, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i += kNumLanes) {
    const int64_t n = smaller(count - i, kNumLanes);
    const uint32_t lanes = mask[i / 32] >> i % 32;
    store_partial(out + i, keep_lanes(load_partial(logits + i, n), lanes, -__builtin_inff()), n);
  }
}

void draw_weights(const float* logits, int64_t count, float largest, float temperature,
                  float* weights, double* sums) {
  if (temperature == 1.0f) {
    write_weights<false>(logits, count, largest, temperature, weights, sums);
  } else {
    write_weights<true>(logits, count, largest, temperature, weights, sums);
  }
}

void kept_sums(const float* logits, const float* weights, int64_t count, float least_logit,
               float least_weight, double* sums) {
  const F32x16 zero = splat(0.0f);
  for (int64_t first = 0; first < count; first += kSamplingBlock) {
    const int64_t last = smaller(first + kSamplingBlock, count);
    F64x16 total = zeros_f64();
    for (int64_t i = first; i < last; i += kNumLanes) {
      const int64_t n = smaller(last - i, kNumLanes);
      // What lies beyond the end has no weight.
      F32x16 weight = load_partial(weights + i, n);
      weight = where_less(weight, splat(least_weight), zero, weight);
      weight = where_less(load_partial(logits + i, n), splat(least_logit), zero, weight);
      total = add_wide(total, weight);
    }
    *sums++ = sum(total);
  }
}

void split_logits(const float* logits, const float* weights, int64_t count, float low, float high,
                  double* above, int32_t* num_above, int32_t* within, int32_t* num_within) {
  const F32x16 zero = splat(0.0f);
  const F32x16 one = splat(1.0f);
  for (int64_t first = 0; first < count; first += kSamplingBlock) {
    const int64_t last = smaller(first + kSamplingBlock, count);
    F64x16 total = zeros_f64();
    F32x16 number = zero;
    int32_t* out = within + first;
    for (int64_t i = first; i < last; i += kNumLanes) {
      const int64_t n = smaller(last - i, kNumLanes);
      const F32x16 x = load_partial(logits + i, n);
      const F32x16 is_above = keep_range(where_less(splat(high), x, one, zero), 0, n, 0.0f);
      number = add(number, is_above);
      total = add_wide(total, where_less(zero, is_above, load_partial(weights + i, n), zero));
      const uint32_t lanes = lanes_within(x, splat(low), splat(high)) & ((1u << n) - 1);
      out += store_indices(out, (int32_t)(i - first), lanes);
    }
    *above++ = sum(total);
    *num_above++ = (int32_t)sum(number);
    *num_within++ = (int32_t)(out - (within + first));
  }
}

}  // namespace POTLUCK_ISA
}  // namespace potluck
