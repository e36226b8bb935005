// Weights from one storage format to another, on rows as the file has them. Included once per
// instruction set, after its lanes.
#pragma once

#include "kernels/convert/blocks_of_32.h"
#include "kernels/convert/q4_k.h"
#include "kernels/convert/q6_k.h"
#include "kernels/linear/decode.h"
#include "kernels/variants.h"

POTLUCK_DECLARE_KERNELS(POTLUCK_ISA)

namespace potluck {
namespace POTLUCK_ISA {
namespace {

// The largest |x| is found as the largest bit pattern, so that NaN counts as larger than infinity.
template <class Weights>
float widen(const uint8_t* stored, int64_t count, float* out) {
  const I32x16 sign_off = splat_i32(0x7fffffff);
  I32x16 magnitudes = splat_i32(0);
  int64_t i = 0;
  for (; i + kNumLanes <= count; i += kNumLanes) {
    const F32x16 x = Weights::load_column(stored + i * Weights::kBytes);
    magnitudes = max(magnitudes, bit_and(as_i32(x), sign_off));
    store(out + i, x);
  }
  if (i < count) {
    uint8_t rest[kNumLanes * Weights::kBytes] = {};
    __builtin_memcpy(rest, stored + i * Weights::kBytes, (count - i) * Weights::kBytes);
    const F32x16 x = Weights::load_column(rest);
    magnitudes = max(magnitudes, bit_and(as_i32(x), sign_off));
    store_partial(out + i, x, count - i);
  }
  const int32_t bits = max_lane(magnitudes);
  float magnitude;
  __builtin_memcpy(&magnitude, &bits, sizeof magnitude);
  return magnitude;
}

// Counts are floats per lane: exact to 2^24.
constexpr int64_t kMostCounted = kNumLanes << 24;

F16Range range_of_part(const float* x, int64_t count) {
  const F32x16 zero = splat(0.0f), one = splat(1.0f), infinity = splat(__builtin_inff());
  // Half way from 65504, f16's largest, to what would follow it: from there on it rounds to
  // infinity. Half of 2^-24, f16's smallest: up to there it rounds to zero.
  const F32x16 below_overflow = splat(0x1.ffdffep15f), above_underflow = splat(0x1.000002p-25f);
  F32x16 largest = zero, smallest = infinity, overflowing = zero, underflowing = zero;
  for (int64_t i = 0; i < count; i += kNumLanes) {
    const int64_t n = count - i < kNumLanes ? count - i : kNumLanes;
    const F32x16 value = load_partial(x + i, n);
    const F32x16 magnitude = max(value, sub(zero, value));
    const F32x16 or_infinity = where_less(zero, magnitude, magnitude, infinity);
    largest = max(magnitude, largest);
    smallest = min(or_infinity, smallest);
    overflowing = add(overflowing, where_less(below_overflow, magnitude, one, zero));
    underflowing = add(underflowing, where_less(or_infinity, above_underflow, one, zero));
  }
  F16Range range;
  range.largest = max_lane(largest);
  if (range.largest > 0.0f) range.smallest = -max_lane(sub(zero, smallest));
  range.num_overflowing = (int64_t)sum(overflowing);
  range.num_underflowing = (int64_t)sum(underflowing);
  return range;
}

}  // namespace

#define POTLUCK_DEFINE_WIDEN(format, suffix)                                \
  float widen_##suffix(const uint8_t* stored, int64_t count, float* out) { \
    return widen<format>(stored, count, out);                               \
  }
POTLUCK_FLOAT_FORMATS(POTLUCK_DEFINE_WIDEN)
#undef POTLUCK_DEFINE_WIDEN

F16Range f16_range(const float* x, int64_t count) {
  F16Range range;
  for (int64_t i = 0; i < count; i += kMostCounted) {
    const int64_t n = count - i < kMostCounted ? count - i : kMostCounted;
    merge(range, range_of_part(x + i, n));
  }
  return range;
}

}  // namespace POTLUCK_ISA
}  // namespace potluck
