// Q8_0, Q4_0 and Q5_0: 32 values with one scale, determined by the largest magnitude. The bytes are
// those of `gguf.quants` (the Python package gguf), whose Q8_0 is documented to match ggml's.
#pragma once

#include "kernels/kernels.h"

namespace potluck {
namespace POTLUCK_ISA {
namespace {

constexpr int64_t kColumnsOf32 = 32;
constexpr float kLargestF32 = 0x1.fffffep127f;

// Writes `scale` as f16 to the beginning of a block; returns whether it is finite as f16.
POTLUCK_LANES bool put_scale(float scale, uint8_t* block) {
  uint16_t halves[kNumLanes];
  store_f16(halves, splat(scale));
  __builtin_memcpy(block, halves, 2);
  return (halves[0] & 0x7c00) != 0x7c00;
}

POTLUCK_LANES F32x16 magnitudes(F32x16 x) {
  return as_f32(bit_and(as_i32(x), splat_i32(0x7fffffff)));
}

// Rounds to nearest, halves away from zero; |v| < 2^22. Adding the number before 0.5 instead of 0.5
// keeps 0.49999997 from becoming 1.
POTLUCK_LANES I32x16 round_half_away(F32x16 v) {
  const I32x16 sign = bit_and(as_i32(v), splat_i32(INT32_MIN));
  const F32x16 half = as_f32(bit_or(sign, as_i32(splat(0x1.fffffep-2f))));
  return truncate_i32(add(v, half));
}

// f16 scale, 32 int8.
POTLUCK_LANES bool encode_block_q8_0(const float* x, uint8_t* block) {
  const F32x16 low = load(x), high = load(x + 16);
  const float scale = max_lane(max(magnitudes(low), magnitudes(high))) / 127.0f;
  float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
  // The scale is 0 as f16. gguf converts infinity and NaN to integers, which gives 0 on x86.
  if (inverse > kLargestF32) inverse = 0.0f;
  store_i8((int8_t*)block + 2, round_half_away(mul(low, splat(inverse))));
  store_i8((int8_t*)block + 18, round_half_away(mul(high, splat(inverse))));
  return put_scale(scale, block);
}

// The first of the values with the largest magnitude, with its sign.
POTLUCK_LANES float extreme(const float* x, F32x16 low, F32x16 high) {
  const F32x16 zero = splat(0.0f);
  const float largest = max_lane(max(low, high));
  const float smallest = -max_lane(max(sub(zero, low), sub(zero, high)));
  if (largest > -smallest) return largest;
  if (largest < -smallest) return smallest;
  while (*x != largest && *x != smallest) ++x;
  return *x;
}

// Converts the 32 values to integers from 0 to 2 * half - 1, which represent themselves minus
// `half`; returns the scale. The extreme value becomes -half, so the scale has the opposite sign.
POTLUCK_LANES float round_to_offsets(const float* x, float half, int8_t* integers) {
  const F32x16 low = load(x), high = load(x + 16);
  const float scale = extreme(x, low, high) / -half;
  const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
  __builtin_memset(integers, 0, kColumnsOf32);
  // If the inverse overflows, the scale is 0 as f16; gguf gives 0 as for Q8_0.
  if (inverse >= -kLargestF32 && inverse <= kLargestF32) {
    const F32x16 offset = splat(half + 0.5f), most = splat(2 * half - 0.5f);
    store_i8(integers, truncate_i32(min(add(mul(low, splat(inverse)), offset), most)));
    store_i8(integers + 16, truncate_i32(min(add(mul(high, splat(inverse)), offset), most)));
  }
  return scale;
}

// f16 scale, 16 bytes of nibbles: column i low, column i + 16 high; a value is its nibble minus 8.
POTLUCK_LANES bool encode_block_q4_0(const float* x, uint8_t* block) {
  int8_t nibbles[kColumnsOf32];
  const float scale = round_to_offsets(x, 8.0f, nibbles);
  for (int i = 0; i < 16; ++i) block[2 + i] = (uint8_t)(nibbles[i] | nibbles[i + 16] << 4);
  return put_scale(scale, block);
}

// f16 scale, the fifth bits of the columns in 4 bytes, and the other four as in Q4_0; a value is
// its five bits minus 16.
POTLUCK_LANES bool encode_block_q5_0(const float* x, uint8_t* block) {
  int8_t values[kColumnsOf32];
  const float scale = round_to_offsets(x, 16.0f, values);
  uint32_t fifth_bits = 0;
  for (int i = 0; i < kColumnsOf32; ++i) fifth_bits |= (uint32_t)(values[i] >> 4 & 1) << i;
  for (int i = 0; i < 4; ++i) block[2 + i] = (uint8_t)(fifth_bits >> 8 * i);
  for (int i = 0; i < 16; ++i)
    block[6 + i] = (uint8_t)((values[i] & 15) | (values[i + 16] & 15) << 4);
  return put_scale(scale, block);
}

}  // namespace

bool encode_q8_0(const float* x, int64_t count, uint8_t* out) {
  bool is_finite = true;
  for (int64_t i = 0; i < count; i += kColumnsOf32, out += 34)
    is_finite = encode_block_q8_0(x + i, out) && is_finite;
  return is_finite;
}

bool encode_q4_0(const float* x, int64_t count, uint8_t* out) {
  bool is_finite = true;
  for (int64_t i = 0; i < count; i += kColumnsOf32, out += 18)
    is_finite = encode_block_q4_0(x + i, out) && is_finite;
  return is_finite;
}

bool encode_q5_0(const float* x, int64_t count, uint8_t* out) {
  bool is_finite = true;
  for (int64_t i = 0; i < count; i += kColumnsOf32, out += 22)
    is_finite = encode_block_q5_0(x + i, out) && is_finite;
  return is_finite;
}

}  // namespace POTLUCK_ISA
}  // namespace potluck
