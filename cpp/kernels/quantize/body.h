// Converts activations to the forms that products read: 8-bit integers with one scale per group of
// 32 columns, or bf16. Included once per instruction set, after its lanes.
#pragma once

#include "kernels/variants.h"

POTLUCK_DECLARE_KERNELS(POTLUCK_ISA)

namespace potluck {
namespace POTLUCK_ISA {
namespace {

// A group with no larger magnitude is treated as zero: 127 / max|x| would overflow.
constexpr float kSmallestMagnitude = 0x1p-120f;

POTLUCK_LANES I32x16 to_i8(F32x16 x, F32x16 inverse) {
  const F32x16 limit = splat(127.0f);
  return round_i32(min(max(mul(x, inverse), splat(-127.0f)), limit));
}

// `magnitude` is determined as the largest bit pattern, so that NaN counts as larger than infinity:
// a non-finite value makes the group's scale infinite or NaN, and with it every sum that includes
// it.
POTLUCK_LANES void quantize_group(const float* x, int8_t* q, float* scale, int32_t* total) {
  const F32x16 low = load(x);
  const F32x16 high = load(x + 16);
  const I32x16 sign_off = splat_i32(0x7fffffff);
  const I32x16 magnitudes = max(bit_and(as_i32(low), sign_off), bit_and(as_i32(high), sign_off));
  const int32_t bits = max_lane(magnitudes);
  float magnitude;
  __builtin_memcpy(&magnitude, &bits, sizeof magnitude);
  const bool zero = magnitude < kSmallestMagnitude;
  const F32x16 inverse = splat(zero ? 0.0f : 127.0f / magnitude);
  const I32x16 q_low = to_i8(low, inverse);
  const I32x16 q_high = to_i8(high, inverse);
  store_i8(q, q_low);
  store_i8(q + 16, q_high);
  *scale = zero ? 0.0f : magnitude / 127.0f;
  *total = sum(add(q_low, q_high));
}

// The bits of the nearest bf16, ties to even, in the lower halves of lanes. Adding 0x7fff and the
// last kept bit carries into it if the rest is more than half, or half and the bit is odd; overflow
// becomes infinite. NaN, whose bits must not be changed by a carry, becomes quiet.
POTLUCK_LANES I32x16 bf16_bits(F32x16 x) {
  const I32x16 bits = as_i32(x);
  const I32x16 odd = bit_and(shift_right<16>(bits), splat_i32(1));
  const F32x16 rounded = as_f32(add(add(bits, splat_i32(0x7fff)), odd));
  const F32x16 nan = as_f32(bit_or(bits, splat_i32(0x00400000)));
  return shift_right<16>(as_i32(where_number(x, rounded, nan)));
}

}  // namespace

void quantize(const float* x, int64_t num_tokens, int64_t columns, int8_t* q, float* scales,
              int32_t* sums) {
  const int64_t num_groups = num_tokens * (columns / kGroupColumns);
  for (int64_t g = 0; g < num_groups; ++g)
    quantize_group(x + g * kGroupColumns, q + g * kGroupColumns, scales + g, sums + g);
}

void round_bf16(const float* x, int64_t count, uint16_t* out) {
  for (int64_t i = 0; i < count; i += kNumLanes) {
    const int64_t rest = count - i;
    if (rest >= kNumLanes) {
      store_u16(out + i, bf16_bits(load(x + i)));
    } else {
      uint16_t last[kNumLanes];
      store_u16(last, bf16_bits(load_partial(x + i, rest)));
      for (int64_t j = 0; j < rest; ++j) out[i + j] = last[j];
    }
  }
}

}  // namespace POTLUCK_ISA
}  // namespace potluck
