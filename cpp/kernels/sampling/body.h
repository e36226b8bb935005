// Kernels over the logits of a vocabulary, by blocks. Included once per instruction set, after its
// lanes. Sums are in float64 over 16 lanes and one tree, so that they are bit-identical everywhere.
#pragma once

#include "kernels/variants.h"

POTLUCK_DECLARE_KERNELS(POTLUCK_ISA)

namespace potluck {
namespace POTLUCK_ISA {
namespace {

// Calls function(i, n) for the lanes [i, i + n) of [first, last), with a constant n except at the
// end.
template <class F>
POTLUCK_LANES void for_lanes(int64_t first, int64_t last, const F& function) {
  int64_t i = first;
  for (; i + kNumLanes <= last; i += kNumLanes) function(i, (int64_t)kNumLanes);
  if (i < last) function(i, last - i);
}

POTLUCK_LANES int64_t block_end(int64_t first, int64_t count) {
  return first + kSamplingBlock < count ? first + kSamplingBlock : count;
}

enum class Quotient { None, Corrected, Divided };

// x / y, rounded like a division except for a y whose mantissa is all ones (Markstein 1990), in a
// third of the time; `inverse` is 1 / y. Results below kLeastExponent may be -inf.
POTLUCK_LANES F32x16 quotient(F32x16 x, F32x16 y, F32x16 inverse) {
  const F32x16 first = mul(x, inverse);
  const F32x16 rest = fma(sub(splat(0.0f), first), y, x);
  const F32x16 corrected = fma(rest, inverse, first);
  const F32x16 far_below = splat(2 * kLeastExponent);
  return where_less(first, far_below, far_below, corrected);  // `rest` may be NaN there
}

template <Quotient kind>
POTLUCK_LANES void write_weights(const float* logits, int64_t count, float largest,
                                 float temperature, float* weights, double* sums) {
  const F32x16 zero = splat(0.0f);
  const F32x16 least = splat(kLeastExponent);
  const F32x16 inverse = div(splat(1.0f), splat(temperature));
  for (int64_t first = 0; first < count; first += kSamplingBlock) {
    F64x16 total = zeros_f64();
    for_lanes(first, block_end(first, count), [&](int64_t i, int64_t n) __attribute__((always_inline)) {
      F32x16 below = sub(load_partial(logits + i, n), splat(largest));
      if (kind == Quotient::Divided) below = div(below, splat(temperature));
      if (kind == Quotient::Corrected) below = quotient(below, splat(temperature), inverse);
      // Branchless, and without subnormal numbers, which take microcode on many CPUs.
      const F32x16 e = exp_of_small(where_less(below, least, zero, below));
      const F32x16 weight = keep_range(where_less(below, least, zero, e), 0, n, 0.0f);
      store_partial(weights + i, weight, n);
      total = add_wide(total, weight);
    });
    *sums++ = sum(total);
  }
}

}  // namespace

void copy_allowed(const float* logits, const uint32_t* mask, int64_t count, float* out) {
  for_lanes(0, count, [&](int64_t i, int64_t n) __attribute__((always_inline)) {
    const uint32_t lanes = mask[i / 32] >> i % 32;
    store_partial(out + i, keep_lanes(load_partial(logits + i, n), lanes, -__builtin_inff()), n);
  });
}

void draw_weights(const float* logits, int64_t count, float largest, float temperature,
                  float* weights, double* sums) {
  if (temperature == 1.0f) {
    write_weights<Quotient::None>(logits, count, largest, temperature, weights, sums);
  } else if (temperature > 0x1p-60f && temperature < 0x1p60f) {
    write_weights<Quotient::Corrected>(logits, count, largest, temperature, weights, sums);
  } else {
    write_weights<Quotient::Divided>(logits, count, largest, temperature, weights, sums);
  }
}

void kept_sums(const float* logits, const float* weights, int64_t count, float least_logit,
               float least_weight, double* sums) {
  const F32x16 zero = splat(0.0f);
  for (int64_t first = 0; first < count; first += kSamplingBlock) {
    F64x16 total = zeros_f64();
    for_lanes(first, block_end(first, count), [&](int64_t i, int64_t n) __attribute__((always_inline)) {
      // Elements beyond the end have no weight.
      F32x16 weight = load_partial(weights + i, n);
      weight = where_less(weight, splat(least_weight), zero, weight);
      weight = where_less(load_partial(logits + i, n), splat(least_logit), zero, weight);
      total = add_wide(total, weight);
    });
    *sums++ = sum(total);
  }
}

void split_logits(const float* logits, const float* weights, int64_t count, float low, float high,
                  double* above, int32_t* num_above, int32_t* within, int32_t* num_within) {
  const F32x16 zero = splat(0.0f);
  const F32x16 infinity = splat(__builtin_inff());
  for (int64_t first = 0; first < count; first += kSamplingBlock) {
    F64x16 total = zeros_f64();
    int num_at_least = 0;
    int32_t* out = within + first;
    for_lanes(first, block_end(first, count), [&](int64_t i, int64_t n) __attribute__((always_inline)) {
      const F32x16 x = load_partial(logits + i, n);
      const F32x16 weight = load_partial(weights + i, n);
      total = add_wide(total, where_less(splat(high), x, weight, zero));
      const uint32_t there = (1u << n) - 1;
      num_at_least += __builtin_popcount(lanes_within(x, splat(low), infinity) & there);
      const uint32_t lanes = lanes_within(x, splat(low), splat(high)) & there;
      out += store_indices(out, (int32_t)(i - first), lanes);
    });
    const auto number = (int32_t)(out - (within + first));
    *above++ = sum(total);
    *num_above++ = num_at_least - number;
    *num_within++ = number;
  }
}

}  // namespace POTLUCK_ISA
}  // namespace potluck
