// Q3_K: 16 groups of 16 columns, x ~ d * s * q with q in [-4, 3], s in [-32, 31], d an f16.
#pragma once

#include "kernels/convert/k_blocks.h"

namespace potluck {
namespace POTLUCK_ISA {
namespace {

constexpr int64_t kQ3Columns = 16;
// With so few steps, the best scale of a group may be far below the one that maps its extreme to
// -4, so all magnitudes are tried.
constexpr float kQ3MostScale = 31.0f;

POTLUCK_LANES F32x16 round_q3(F32x16 x, F32x16 inverse) {
  return nearest(clamp(mul(x, inverse), -4.0f, 3.0f));
}

POTLUCK_LANES F32x16 squared_error_q3(const float* tile, F32x16 scale) {
  const F32x16 inverse = inverse_or_zero(scale);
  F32x16 error = splat(0.0f);
  for (int64_t k = 0; k < kQ3Columns; ++k) {
    const F32x16 x = load(tile + k * kNumLanes);
    const F32x16 rest = sub(x, mul(scale, round_q3(x, inverse)));
    error = add(error, mul(rest, rest));
  }
  return error;
}

// The layout is described at split_pairs and get_q3_k_scales (linear/file_blocks.h).
POTLUCK_LANES void pack_block_q3_k(const int8_t* v, const int8_t* s, uint16_t d, uint8_t* block) {
  __builtin_memset(block, 0, 108);
  for (int64_t i = 0; i < 256; ++i) {
    block[i % 32] = (uint8_t)(block[i % 32] | (v[i] >> 2) << (i / 32));
    uint8_t& pairs = block[32 + i / 128 * 32 + i % 32];
    pairs = (uint8_t)(pairs | (v[i] & 3) << (2 * (i / 32 % 4)));
  }
  for (int64_t i = 0; i < 16; ++i) {
    const int scale = s[i] + 32;
    uint8_t& low = block[96 + i % 8];
    low = (uint8_t)(low | (scale & 15) << (4 * (i / 8)));
    uint8_t& top = block[104 + i % 4];
    top = (uint8_t)(top | (scale >> 4) << (2 * (i / 4)));
  }
  __builtin_memcpy(block + 108, &d, 2);
}

POTLUCK_LANES bool encode_block_q3_k(const float* x, uint8_t* block) {
  float tile[kBlockColumns];
  transpose_groups<kQ3Columns>(x, tile);
  F32x16 low = splat(0.0f), high = splat(0.0f);
  for (int64_t k = 0; k < kQ3Columns; ++k) {
    low = min(low, load(tile + k * kNumLanes));
    high = max(high, load(tile + k * kNumLanes));
  }
  const F32x16 depth = sub(splat(0.0f), low);
  const F32x16 wanted = mul(max(depth, high), splat(1.0f / 4));
  const Scales d = scales_for(splat(max_lane(wanted)), kQ3MostScale, kQ3MostScale);
  if (!is_finite_half(d.half[0])) return false;

  // -4 is one more than 3: the extreme should be negative in units of its scale.
  const F32x16 sign = where_less(depth, high, splat(-1.0f), splat(1.0f));
  F32x16 best = splat(0.0f), best_error = splat(__builtin_inff());
  for (float magnitude = 0.0f; magnitude <= kQ3MostScale; magnitude += 1.0f) {
    const F32x16 s = mul(sign, splat(magnitude));
    const F32x16 error = squared_error_q3(tile, mul(d.value, s));
    best = where_less(error, best_error, s, best);
    best_error = min(error, best_error);
  }

  int8_t s[kNumLanes], v[kBlockColumns];
  float inverses[kNumLanes];
  store_i8(s, round_i32(best));
  store(inverses, inverse_or_zero(mul(d.value, best)));
  for (int64_t group = 0; group < kNumLanes; ++group) {
    const F32x16 value = round_q3(load(x + group * kQ3Columns), splat(inverses[group]));
    store_i8(v + group * kQ3Columns, round_i32(add(value, splat(4.0f))));
  }
  pack_block_q3_k(v, s, d.half[0], block);
  return true;
}

}  // namespace

bool encode_q3_k(const float* x, int64_t count, uint8_t* out) {
  bool is_finite = true;
  for (int64_t i = 0; i < count; i += kBlockColumns, out += 110) {
    if (encode_block_q3_k(x + i, out)) continue;
    __builtin_memset(out, 0, 110);
    is_finite = false;
  }
  return is_finite;
}

}  // namespace POTLUCK_ISA
}  // namespace potluck
