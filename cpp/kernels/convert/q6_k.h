// Q6_K: 16 groups of 16 columns, x ~ d * s * q with q in [-32, 31], s an int8, d an f16.
#pragma once

#include "kernels/convert/k_blocks.h"

namespace potluck {
namespace POTLUCK_ISA {
namespace {

constexpr int64_t kQ6Columns = 16;
// The scale that maps a group's extreme to -32 is s = 112 for the group with the largest, which
// leaves room for larger ones up to 127. All s from 3 below to 12 above are tried: beyond that, the
// coarser grid outweighs the gain of a luckier rounding. (Error of Gaussian rows, by "error" of
// benchmarks/quantize.py: 1.066 times that with 127 and two in either direction; 0.993 times that
// with 110, 8 below and 20 above.)
constexpr float kQ6Nominal = 112.0f;
constexpr float kQ6MostScale = 127.0f;
constexpr int kQ6Below = 3;
constexpr int kQ6Above = 12;

POTLUCK_LANES F32x16 round_q6(F32x16 x, F32x16 inverse) {
  return nearest(clamp(mul(x, inverse), -32.0f, 31.0f));
}

POTLUCK_LANES F32x16 squared_error_q6(const float* tile, F32x16 scale) {
  const F32x16 inverse = inverse_or_zero(scale);
  F32x16 error = splat(0.0f);
  for (int64_t k = 0; k < kQ6Columns; ++k) {
    const F32x16 x = load(tile + k * kNumLanes);
    const F32x16 rest = sub(x, mul(scale, round_q6(x, inverse)));
    error = add(error, mul(rest, rest));
  }
  return error;
}

// The layout is described at split_q6_k (linear/file_blocks.h).
POTLUCK_LANES void pack_block_q6_k(const int8_t* q, const int8_t* s, uint16_t d, uint8_t* block) {
  for (int64_t half = 0; half < 2; ++half) {
    const int8_t* v = q + 128 * half;
    uint8_t* nibbles = block + 64 * half;
    uint8_t* upper = block + 128 + 32 * half;
    for (int64_t i = 0; i < 64; ++i) nibbles[i] = (uint8_t)((v[i] & 15) | (v[i + 64] & 15) << 4);
    for (int64_t i = 0; i < 32; ++i)
      upper[i] = (uint8_t)(v[i] >> 4 | v[i + 32] >> 4 << 2 | v[i + 64] >> 4 << 4 |
                           v[i + 96] >> 4 << 6);
  }
  __builtin_memcpy(block + 192, s, 16);
  __builtin_memcpy(block + 208, &d, 2);
}

POTLUCK_LANES bool encode_block_q6_k(const float* x, uint8_t* block) {
  float tile[kBlockColumns];
  transpose_groups<kQ6Columns>(x, tile);
  F32x16 low = splat(0.0f), high = splat(0.0f);
  for (int64_t k = 0; k < kQ6Columns; ++k) {
    low = min(low, load(tile + k * kNumLanes));
    high = max(high, load(tile + k * kNumLanes));
  }
  const F32x16 depth = sub(splat(0.0f), low);
  const F32x16 wanted = mul(max(depth, high), splat(1.0f / 32));
  const Scales d = scales_for(splat(max_lane(wanted)), kQ6Nominal, kQ6MostScale);
  if (!is_finite_half(d.half[0])) return false;

  // -32 is one more than 31: the extreme should be negative in units of its scale.
  const F32x16 sign = where_less(depth, high, splat(-1.0f), splat(1.0f));
  const F32x16 middle = nearest(mul(wanted, inverse_or_zero(d.value)));
  F32x16 best = splat(0.0f), best_error = splat(__builtin_inff());
  for (int step = -kQ6Below; step <= kQ6Above; ++step) {
    const F32x16 magnitude = clamp(add(middle, splat((float)step)), 0.0f, kQ6MostScale);
    const F32x16 s = mul(sign, magnitude);
    const F32x16 error = squared_error_q6(tile, mul(d.value, s));
    best = where_less(error, best_error, s, best);
    best_error = min(error, best_error);
  }

  int8_t s[kNumLanes], q[kBlockColumns];
  float inverses[kNumLanes];
  store_i8(s, round_i32(best));
  store(inverses, inverse_or_zero(mul(d.value, best)));
  for (int64_t group = 0; group < kNumLanes; ++group) {
    const F32x16 value = round_q6(load(x + group * kQ6Columns), splat(inverses[group]));
    store_i8(q + group * kQ6Columns, round_i32(add(value, splat(32.0f))));
  }
  pack_block_q6_k(q, s, d.half[0], block);
  return true;
}

}  // namespace

bool encode_q6_k(const float* x, int64_t count, uint8_t* out) {
  bool is_finite = true;
  for (int64_t i = 0; i < count; i += kBlockColumns, out += 210) {
    if (encode_block_q6_k(x + i, out)) continue;
    __builtin_memset(out, 0, 210);
    is_finite = false;
  }
  return is_finite;
}

}  // namespace POTLUCK_ISA
}  // namespace potluck
