// Sixteen virtual lanes as four 128-bit registers: Advanced SIMD of Armv8.0, which every aarch64
// CPU has. lanes_scalar.h says what each operation means. Products of bytes are not here: the
// linear kernels of this architecture have their own (linear/neon_tiles.h).
//
// The bits are those of the other lanes while FPCR is as Linux starts a program (round to nearest,
// no flush to zero, no default NaN).
#pragma once

#include <arm_neon.h>
#include <stdint.h>

#define POTLUCK_ISA neon
#define POTLUCK_LANES inline __attribute__((always_inline))

namespace potluck {
namespace POTLUCK_ISA {
namespace {

// 20 of the 32 registers hold sums of floats, 4 or 8 one or two columns of weights, and one a
// token's.
constexpr int kFloatPanelTile = 1;
constexpr int kFloatTokenTile = 5;
constexpr int kPairTokenTile = 5;
constexpr bool kReloadsFloats = false;
constexpr int kUnroll = 8;
constexpr int kNumLanes = 16;
// A strip takes 4 of 32 registers, its sums 8, and its update 4.
constexpr int kStateStrips = 1;
constexpr int kStateTokens = 2;
// As many F32x16 as fit in the registers.
constexpr int kNumRegisters = 8;

struct F32x16 {
  float32x4_t v[4];
};
struct I32x16 {
  int32x4_t v[4];
};
struct F64x16 {
  float64x2_t v[8];
};
struct U8x64 {
  uint8x16_t v[4];
};

// Applies an operation to each of the four registers.
#define POTLUCK_SPLAT(r) {{r, r, r, r}}
#define POTLUCK_MAP(f, a) {{f(a.v[0]), f(a.v[1]), f(a.v[2]), f(a.v[3])}}
#define POTLUCK_MAP_2(f, a, b) \
  {{f(a.v[0], b.v[0]), f(a.v[1], b.v[1]), f(a.v[2], b.v[2]), f(a.v[3], b.v[3])}}
#define POTLUCK_MAP_WITH(f, a, n) {{f(a.v[0], n), f(a.v[1], n), f(a.v[2], n), f(a.v[3], n)}}

// All ones in the lanes below n.
POTLUCK_LANES I32x16 lanes_below(int64_t n) {
  const int32x4_t first = {0, 1, 2, 3};
  const int32x4_t limit = vdupq_n_s32((int32_t)n);
  I32x16 r;
  for (int i = 0; i < 4; ++i)
    r.v[i] = vreinterpretq_s32_u32(vcltq_s32(vaddq_s32(first, vdupq_n_s32(4 * i)), limit));
  return r;
}

POTLUCK_LANES F32x16 load(const void* p) {
  const uint8_t* b = (const uint8_t*)p;
  return {{vreinterpretq_f32_u8(vld1q_u8(b)), vreinterpretq_f32_u8(vld1q_u8(b + 16)),
           vreinterpretq_f32_u8(vld1q_u8(b + 32)), vreinterpretq_f32_u8(vld1q_u8(b + 48))}};
}
POTLUCK_LANES void store(float* p, F32x16 a) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, a.v[i]);
}
POTLUCK_LANES F32x16 load_partial(const float* p, int64_t n) {
  if (n >= 16) return load(p);
  float lanes[16] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
}
POTLUCK_LANES void store_partial(float* p, F32x16 a, int64_t n) {
  if (n >= 16) return store(p, a);
  float lanes[16];
  store(lanes, a);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}

POTLUCK_LANES F32x16 splat(float x) { return POTLUCK_SPLAT(vdupq_n_f32(x)); }
POTLUCK_LANES F32x16 add(F32x16 a, F32x16 b) { return POTLUCK_MAP_2(vaddq_f32, a, b); }
POTLUCK_LANES F32x16 sub(F32x16 a, F32x16 b) { return POTLUCK_MAP_2(vsubq_f32, a, b); }
POTLUCK_LANES F32x16 mul(F32x16 a, F32x16 b) { return POTLUCK_MAP_2(vmulq_f32, a, b); }
POTLUCK_LANES F32x16 div(F32x16 a, F32x16 b) { return POTLUCK_MAP_2(vdivq_f32, a, b); }
POTLUCK_LANES F32x16 sqrt(F32x16 a) { return POTLUCK_MAP(vsqrtq_f32, a); }
POTLUCK_LANES F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return {{vfmaq_f32(c.v[0], a.v[0], b.v[0]), vfmaq_f32(c.v[1], a.v[1], b.v[1]),
           vfmaq_f32(c.v[2], a.v[2], b.v[2]), vfmaq_f32(c.v[3], a.v[3], b.v[3])}};
}
// FMAX and FMAXNM handle NaN and the two zeros differently.
POTLUCK_LANES float32x4_t max_4(float32x4_t a, float32x4_t b) {
  return vbslq_f32(vcgtq_f32(a, b), a, b);
}
POTLUCK_LANES float32x4_t min_4(float32x4_t a, float32x4_t b) {
  return vbslq_f32(vcltq_f32(a, b), a, b);
}
POTLUCK_LANES F32x16 max(F32x16 a, F32x16 b) { return POTLUCK_MAP_2(max_4, a, b); }
POTLUCK_LANES F32x16 min(F32x16 a, F32x16 b) { return POTLUCK_MAP_2(min_4, a, b); }
POTLUCK_LANES F32x16 where_less(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
  for (int i = 0; i < 4; ++i) y.v[i] = vbslq_f32(vcltq_f32(a.v[i], b.v[i]), x.v[i], y.v[i]);
  return y;
}
POTLUCK_LANES F32x16 where_number(F32x16 a, F32x16 x, F32x16 y) {
  for (int i = 0; i < 4; ++i) y.v[i] = vbslq_f32(vceqq_f32(a.v[i], a.v[i]), x.v[i], y.v[i]);
  return y;
}
POTLUCK_LANES F32x16 keep_range(F32x16 a, int64_t begin, int64_t end, float other) {
  const I32x16 before = lanes_below(begin);
  const I32x16 below = lanes_below(end);
  const float32x4_t fill = vdupq_n_f32(other);
  for (int i = 0; i < 4; ++i) {
    const int32x4_t keep = vbicq_s32(below.v[i], before.v[i]);
    a.v[i] = vbslq_f32(vreinterpretq_u32_s32(keep), a.v[i], fill);
  }
  return a;
}

POTLUCK_LANES float sum(F32x16 a) {
  const float32x4_t s4 = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
  const float32x2_t s2 = vadd_f32(vget_low_f32(s4), vget_high_f32(s4));
  return vget_lane_f32(s2, 0) + vget_lane_f32(s2, 1);
}
POTLUCK_LANES float max_lane(F32x16 a) {
  const float32x4_t m4 = max_4(max_4(a.v[0], a.v[2]), max_4(a.v[1], a.v[3]));
  const float32x4_t m2 = max_4(m4, vextq_f32(m4, m4, 2));
  return vgetq_lane_f32(max_4(m2, vextq_f32(m2, m2, 1)), 0);
}

POTLUCK_LANES F64x16 zeros_f64() {
  const float64x2_t zero = vdupq_n_f64(0.0);
  return {{zero, zero, zero, zero, zero, zero, zero, zero}};
}
POTLUCK_LANES F64x16 add_wide(F64x16 a, F32x16 b) {
  for (int i = 0; i < 4; ++i) {
    a.v[2 * i] = vaddq_f64(a.v[2 * i], vcvt_f64_f32(vget_low_f32(b.v[i])));
    a.v[2 * i + 1] = vaddq_f64(a.v[2 * i + 1], vcvt_high_f64_f32(b.v[i]));
  }
  return a;
}
POTLUCK_LANES double sum(F64x16 a) {
  for (int half = 4; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) a.v[i] = vaddq_f64(a.v[i], a.v[i + half]);
  return vgetq_lane_f64(a.v[0], 0) + vgetq_lane_f64(a.v[0], 1);
}
POTLUCK_LANES uint32_t lanes_within(F32x16 a, F32x16 low, F32x16 high) {
  const uint32x4_t bits = {1, 2, 4, 8};
  uint32_t lanes = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32x4_t is_within =
        vandq_u32(vcleq_f32(low.v[i], a.v[i]), vcleq_f32(a.v[i], high.v[i]));
    lanes |= vaddvq_u32(vandq_u32(is_within, bits)) << 4 * i;
  }
  return lanes;
}
POTLUCK_LANES int store_indices(int32_t* p, int32_t first, uint32_t lanes) {
  int count = 0;
  for (; lanes != 0; lanes &= lanes - 1) p[count++] = first + __builtin_ctz(lanes);
  return count;
}

POTLUCK_LANES F32x16 keep_lanes(F32x16 a, uint32_t lanes, float other) {
  const uint32x4_t bits = {1, 2, 4, 8};
  for (int i = 0; i < 4; ++i) {
    const uint32x4_t has = vtstq_u32(vdupq_n_u32(lanes >> 4 * i), bits);
    a.v[i] = vbslq_f32(has, a.v[i], vdupq_n_f32(other));
  }
  return a;
}

POTLUCK_LANES I32x16 splat_i32(int32_t x) { return POTLUCK_SPLAT(vdupq_n_s32(x)); }
POTLUCK_LANES I32x16 add(I32x16 a, I32x16 b) { return POTLUCK_MAP_2(vaddq_s32, a, b); }
POTLUCK_LANES I32x16 sub(I32x16 a, I32x16 b) { return POTLUCK_MAP_2(vsubq_s32, a, b); }
POTLUCK_LANES I32x16 mul(I32x16 a, I32x16 b) { return POTLUCK_MAP_2(vmulq_s32, a, b); }
POTLUCK_LANES I32x16 bit_and(I32x16 a, I32x16 b) { return POTLUCK_MAP_2(vandq_s32, a, b); }
POTLUCK_LANES I32x16 bit_or(I32x16 a, I32x16 b) { return POTLUCK_MAP_2(vorrq_s32, a, b); }
template <int n>
POTLUCK_LANES I32x16 shift_left(I32x16 a) {
  return POTLUCK_MAP_WITH(vshlq_n_s32, a, n);
}
template <int n>
POTLUCK_LANES I32x16 shift_right(I32x16 a) {
  return POTLUCK_MAP_WITH(vshrq_n_s32, a, n);
}
POTLUCK_LANES int32_t sum(I32x16 a) {
  return vaddvq_s32(vaddq_s32(vaddq_s32(a.v[0], a.v[1]), vaddq_s32(a.v[2], a.v[3])));
}
POTLUCK_LANES int32_t max_lane(I32x16 a) {
  return vmaxvq_s32(vmaxq_s32(vmaxq_s32(a.v[0], a.v[1]), vmaxq_s32(a.v[2], a.v[3])));
}
POTLUCK_LANES I32x16 max(I32x16 a, I32x16 b) { return POTLUCK_MAP_2(vmaxq_s32, a, b); }
POTLUCK_LANES F32x16 to_f32(I32x16 a) { return POTLUCK_MAP(vcvtq_f32_s32, a); }
POTLUCK_LANES I32x16 truncate_i32(F32x16 a) { return POTLUCK_MAP(vcvtq_s32_f32, a); }
POTLUCK_LANES F32x16 as_f32(I32x16 a) { return POTLUCK_MAP(vreinterpretq_f32_s32, a); }
POTLUCK_LANES I32x16 as_i32(F32x16 a) { return POTLUCK_MAP(vreinterpretq_s32_f32, a); }
POTLUCK_LANES I32x16 load_u8(const uint8_t* p) {
  const uint8x16_t bytes = vld1q_u8(p);
  const uint16x8_t low = vmovl_u8(vget_low_u8(bytes));
  const uint16x8_t high = vmovl_u8(vget_high_u8(bytes));
  return {{vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))),
           vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(low))),
           vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))),
           vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(high)))}};
}
POTLUCK_LANES I32x16 load_i8(const uint8_t* p) {
  const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(p));
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes));
  const int16x8_t high = vmovl_s8(vget_high_s8(bytes));
  return {{vmovl_s16(vget_low_s16(low)), vmovl_s16(vget_high_s16(low)),
           vmovl_s16(vget_low_s16(high)), vmovl_s16(vget_high_s16(high))}};
}
POTLUCK_LANES void store_i8(int8_t* p, I32x16 a) {
  const int16x8_t low = vcombine_s16(vmovn_s32(a.v[0]), vmovn_s32(a.v[1]));
  const int16x8_t high = vcombine_s16(vmovn_s32(a.v[2]), vmovn_s32(a.v[3]));
  vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}
POTLUCK_LANES void store_u16(uint16_t* p, I32x16 a) {
  for (int i = 0; i < 4; ++i) vst1_u16(p + 4 * i, vmovn_u32(vreinterpretq_u32_s32(a.v[i])));
}

// Conversion from and to f16 is in Armv8.0; arithmetic on it, which is not, is not used.
POTLUCK_LANES float32x4_t f16_to_f32(uint16x4_t h) { return vcvt_f32_f16(vreinterpret_f16_u16(h)); }
POTLUCK_LANES F32x16 load_f16(const void* p) {
  const uint8_t* b = (const uint8_t*)p;
  const uint16x8_t low = vreinterpretq_u16_u8(vld1q_u8(b));
  const uint16x8_t high = vreinterpretq_u16_u8(vld1q_u8(b + 16));
  return {{f16_to_f32(vget_low_u16(low)), f16_to_f32(vget_high_u16(low)),
           f16_to_f32(vget_low_u16(high)), f16_to_f32(vget_high_u16(high))}};
}
POTLUCK_LANES void store_f16(uint16_t* p, F32x16 a) {
  for (int i = 0; i < 4; ++i) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.v[i])));
}
POTLUCK_LANES float32x4_t bf16_to_f32(uint16x4_t h) {
  return vreinterpretq_f32_u32(vshll_n_u16(h, 16));
}
// Numbers, pairs and groups of four are interleaved in turn, 8 rows and columns at a time.
POTLUCK_LANES void transpose_8x8(const uint16_t* in, uint16_t* out) {
  uint32x4_t pairs[8];
  uint64x2_t fours[8];
  for (int i = 0; i < 8; i += 2) {
    const uint16x8_t a = vld1q_u16(in + 16 * i), b = vld1q_u16(in + 16 * (i + 1));
    pairs[i] = vreinterpretq_u32_u16(vzip1q_u16(a, b));
    pairs[i + 1] = vreinterpretq_u32_u16(vzip2q_u16(a, b));
  }
  for (int i = 0; i < 8; i += 4) {
    fours[i] = vreinterpretq_u64_u32(vzip1q_u32(pairs[i], pairs[i + 2]));
    fours[i + 1] = vreinterpretq_u64_u32(vzip2q_u32(pairs[i], pairs[i + 2]));
    fours[i + 2] = vreinterpretq_u64_u32(vzip1q_u32(pairs[i + 1], pairs[i + 3]));
    fours[i + 3] = vreinterpretq_u64_u32(vzip2q_u32(pairs[i + 1], pairs[i + 3]));
  }
  for (int i = 0; i < 4; ++i) {
    vst1q_u16(out + 16 * (2 * i), vreinterpretq_u16_u64(vzip1q_u64(fours[i], fours[i + 4])));
    vst1q_u16(out + 16 * (2 * i + 1), vreinterpretq_u16_u64(vzip2q_u64(fours[i], fours[i + 4])));
  }
}
POTLUCK_LANES void transpose_16(const uint16_t* in, uint16_t* out) {
  for (int i = 0; i < 16; i += 8)
    for (int j = 0; j < 16; j += 8) transpose_8x8(in + 16 * i + j, out + 16 * j + i);
}
POTLUCK_LANES F32x16 load_bf16(const void* p) {
  const uint8_t* b = (const uint8_t*)p;
  const uint16x8_t low = vreinterpretq_u16_u8(vld1q_u8(b));
  const uint16x8_t high = vreinterpretq_u16_u8(vld1q_u8(b + 16));
  return {{bf16_to_f32(vget_low_u16(low)), bf16_to_f32(vget_high_u16(low)),
           bf16_to_f32(vget_low_u16(high)), bf16_to_f32(vget_high_u16(high))}};
}

POTLUCK_LANES U8x64 load_bytes(const uint8_t* p) {
  return {{vld1q_u8(p), vld1q_u8(p + 16), vld1q_u8(p + 32), vld1q_u8(p + 48)}};
}
template <int shift, int mask>
POTLUCK_LANES uint8x16_t bits_16(uint8x16_t a) {
  if constexpr (shift > 0) a = vshrq_n_u8(a, shift);
  if constexpr (mask < 255 >> shift) a = vandq_u8(a, vdupq_n_u8(mask));
  return a;
}
template <int shift, int mask>
POTLUCK_LANES U8x64 bits(U8x64 a) {
  return POTLUCK_MAP((bits_16<shift, mask>), a);
}
template <int shift, int mask, int place>
POTLUCK_LANES uint8x16_t join_16(uint8x16_t low, uint8x16_t high) {
  if constexpr (shift < place) high = vshlq_n_u8(high, place - shift);
  if constexpr (shift > place) high = vshrq_n_u8(high, shift - place);
  return vbslq_u8(vdupq_n_u8((uint8_t)(mask << place)), high, low);
}
template <int shift, int mask, int place = 4>
POTLUCK_LANES U8x64 join(U8x64 low, U8x64 high) {
  return POTLUCK_MAP_2((join_16<shift, mask, place>), low, high);
}
struct ByteTable {
  uint8x16_t v;
};
POTLUCK_LANES ByteTable load_table(const uint8_t* entries) { return {vld1q_u8(entries)}; }
POTLUCK_LANES U8x64 look_up(ByteTable table, U8x64 a) {
  return {{vqtbl1q_u8(table.v, a.v[0]), vqtbl1q_u8(table.v, a.v[1]), vqtbl1q_u8(table.v, a.v[2]),
           vqtbl1q_u8(table.v, a.v[3])}};
}
POTLUCK_LANES I32x16 byte_of_lane(U8x64 a, int index) {
  const int32x4_t shift = vdupq_n_s32(-8 * index);
  I32x16 r;
  for (int i = 0; i < 4; ++i) {
    const uint32x4_t shifted = vshlq_u32(vreinterpretq_u32_u8(a.v[i]), shift);
    r.v[i] = vreinterpretq_s32_u32(vandq_u32(shifted, vdupq_n_u32(0xff)));
  }
  return r;
}

#undef POTLUCK_SPLAT
#undef POTLUCK_MAP
#undef POTLUCK_MAP_2
#undef POTLUCK_MAP_WITH

}  // namespace
}  // namespace POTLUCK_ISA
}  // namespace potluck

#include "simd/lanes_shared.h"
