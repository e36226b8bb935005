// Sixteen virtual lanes as plain arrays: the readable specification of what every lane operation
// means. The files for other instruction sets offer the same names with the same bits.
//
// Everything is in an unnamed namespace, so that each file keeps its own copy, and no header of the
// standard library but <stdint.h> is used (see kernels.h on inline functions).
#pragma once

#include <stdint.h>

#define POTLUCK_ISA scalar
#define POTLUCK_LANES inline __attribute__((always_inline))

namespace potluck {
namespace scalar {
namespace {

// Panels and tokens of a tile of `linear`, whose sums should stay in the registers of the
// instruction set. With half scales, there are two sums of integers for each. Here none fit.
constexpr int kPanelTile = 1;
constexpr int kTokenTile = 1;
constexpr int kHalfScalesTokenTile = 1;
constexpr int kWideTokenTile = 0;  // none
constexpr int kFloatPanelTile = 1;
constexpr int kFloatTokenTile = 1;
constexpr int kPairTokenTile = 1;  // for formats whose columns are stored in pairs
// Whether tiles of floats reload data that they reuse, because sums take nearly all registers and
// compilers would spill it.
constexpr bool kReloadsFloats = false;
// How far loops over tiles and quads are unrolled: their arrays should stay in registers, if there
// are any for them.
constexpr int kUnroll = 1;
constexpr int kNumLanes = 16;
// Strips of a state that are processed together, and tokens that a scan processes in one pass:
// their sums should stay in the registers, and the strips in the L1 cache.
constexpr int kStateStrips = 1;
constexpr int kStateTokens = 1;
// As many F32x16 as fit in the registers; there is no such limit here, so as many as in any other
// file.
constexpr int kNumRegisters = 8;

struct F32x16 {
  float lane[16];
};
struct I32x16 {
  int32_t lane[16];
};
struct F64x16 {
  double lane[16];
};
// Lane i is bytes [4 i, 4 i + 4).
struct U8x64 {
  uint8_t byte[64];
};

#define POTLUCK_EACH_LANE for (int i = 0; i < 16; ++i)

// Loads and stores need no alignment. The partial ones touch the first n <= 16 lanes only, and a
// partial load fills up with zeros.

POTLUCK_LANES F32x16 load(const void* p) {
  F32x16 r;
  __builtin_memcpy(&r, p, sizeof r);
  return r;
}
POTLUCK_LANES F32x16 load_partial(const float* p, int64_t n) {
  F32x16 r;
  POTLUCK_EACH_LANE r.lane[i] = i < n ? p[i] : 0.0f;
  return r;
}
POTLUCK_LANES void store(float* p, F32x16 v) { __builtin_memcpy(p, &v, sizeof v); }
POTLUCK_LANES void store_partial(float* p, F32x16 v, int64_t n) {
  for (int64_t i = 0; i < n; ++i) p[i] = v.lane[i];
}

POTLUCK_LANES F32x16 splat(float x) {
  F32x16 r;
  POTLUCK_EACH_LANE r.lane[i] = x;
  return r;
}
POTLUCK_LANES F32x16 add(F32x16 a, F32x16 b) {
  POTLUCK_EACH_LANE a.lane[i] += b.lane[i];
  return a;
}
POTLUCK_LANES F32x16 sub(F32x16 a, F32x16 b) {
  POTLUCK_EACH_LANE a.lane[i] -= b.lane[i];
  return a;
}
POTLUCK_LANES F32x16 mul(F32x16 a, F32x16 b) {
  POTLUCK_EACH_LANE a.lane[i] *= b.lane[i];
  return a;
}
POTLUCK_LANES F32x16 div(F32x16 a, F32x16 b) {
  POTLUCK_EACH_LANE a.lane[i] /= b.lane[i];
  return a;
}
POTLUCK_LANES F32x16 sqrt(F32x16 a) {
  POTLUCK_EACH_LANE a.lane[i] = __builtin_sqrtf(a.lane[i]);
  return a;
}
// a * b + c, rounded once.
POTLUCK_LANES F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  POTLUCK_EACH_LANE c.lane[i] = __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]);
  return c;
}
// If the operands are equal, or one is NaN, the result is the second (as on x86).
POTLUCK_LANES F32x16 max(F32x16 a, F32x16 b) {
  POTLUCK_EACH_LANE b.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
  return b;
}
POTLUCK_LANES F32x16 min(F32x16 a, F32x16 b) {
  POTLUCK_EACH_LANE b.lane[i] = a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i];
  return b;
}
// x where a < b; y elsewhere, including where a or b is NaN.
POTLUCK_LANES F32x16 where_less(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
  POTLUCK_EACH_LANE y.lane[i] = a.lane[i] < b.lane[i] ? x.lane[i] : y.lane[i];
  return y;
}
// x where `v` is a number; y where it is NaN.
POTLUCK_LANES F32x16 where_number(F32x16 v, F32x16 x, F32x16 y) {
  POTLUCK_EACH_LANE x.lane[i] = v.lane[i] == v.lane[i] ? x.lane[i] : y.lane[i];
  return x;
}
// Lanes outside [begin, end) become `other`.
POTLUCK_LANES F32x16 keep_range(F32x16 v, int64_t begin, int64_t end, float other) {
  POTLUCK_EACH_LANE v.lane[i] = i >= begin && i < end ? v.lane[i] : other;
  return v;
}

// The tree that every reduction uses: halves of 8, 4, 2 and 1 lanes.
POTLUCK_LANES float sum(F32x16 v) {
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) v.lane[i] = v.lane[i] + v.lane[i + half];
  return v.lane[0];
}
POTLUCK_LANES float max_lane(F32x16 v) {
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i)
      v.lane[i] = v.lane[i] > v.lane[i + half] ? v.lane[i] : v.lane[i + half];
  return v.lane[0];
}

POTLUCK_LANES F64x16 zeros_f64() {
  F64x16 r;
  POTLUCK_EACH_LANE r.lane[i] = 0.0;
  return r;
}
// b is widened first.
POTLUCK_LANES F64x16 add_wide(F64x16 a, F32x16 b) {
  POTLUCK_EACH_LANE a.lane[i] += (double)b.lane[i];
  return a;
}
POTLUCK_LANES double sum(F64x16 v) {
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) v.lane[i] = v.lane[i] + v.lane[i + half];
  return v.lane[0];
}
// Bit i is 1 where low <= v <= high in lane i.
POTLUCK_LANES uint32_t lanes_within(F32x16 v, F32x16 low, F32x16 high) {
  uint32_t lanes = 0;
  POTLUCK_EACH_LANE
    lanes |= (uint32_t)(low.lane[i] <= v.lane[i] && v.lane[i] <= high.lane[i]) << i;
  return lanes;
}
// Writes first + i for every bit i < 16 that is 1, in ascending order, and returns how many.
// Entries after them, up to 16 in total, may be overwritten.
POTLUCK_LANES int store_indices(int32_t* p, int32_t first, uint32_t lanes) {
  int count = 0;
  for (; lanes != 0; lanes &= lanes - 1) p[count++] = first + __builtin_ctz(lanes);
  return count;
}

// Lanes whose bit is 0 become `other`.
POTLUCK_LANES F32x16 keep_lanes(F32x16 v, uint32_t lanes, float other) {
  POTLUCK_EACH_LANE v.lane[i] = (lanes >> i & 1) != 0 ? v.lane[i] : other;
  return v;
}

POTLUCK_LANES I32x16 splat_i32(int32_t x) {
  I32x16 r;
  POTLUCK_EACH_LANE r.lane[i] = x;
  return r;
}
// Integers wrap around.
POTLUCK_LANES I32x16 add(I32x16 a, I32x16 b) {
  POTLUCK_EACH_LANE a.lane[i] = (int32_t)((uint32_t)a.lane[i] + (uint32_t)b.lane[i]);
  return a;
}
POTLUCK_LANES I32x16 sub(I32x16 a, I32x16 b) {
  POTLUCK_EACH_LANE a.lane[i] = (int32_t)((uint32_t)a.lane[i] - (uint32_t)b.lane[i]);
  return a;
}
POTLUCK_LANES I32x16 mul(I32x16 a, I32x16 b) {
  POTLUCK_EACH_LANE a.lane[i] = (int32_t)((uint32_t)a.lane[i] * (uint32_t)b.lane[i]);
  return a;
}
POTLUCK_LANES I32x16 bit_and(I32x16 a, I32x16 b) {
  POTLUCK_EACH_LANE a.lane[i] &= b.lane[i];
  return a;
}
POTLUCK_LANES I32x16 bit_or(I32x16 a, I32x16 b) {
  POTLUCK_EACH_LANE a.lane[i] |= b.lane[i];
  return a;
}
template <int n>
POTLUCK_LANES I32x16 shift_left(I32x16 a) {
  POTLUCK_EACH_LANE a.lane[i] = (int32_t)((uint32_t)a.lane[i] << n);
  return a;
}
template <int n>
POTLUCK_LANES I32x16 shift_right(I32x16 a) {
  POTLUCK_EACH_LANE a.lane[i] = (int32_t)((uint32_t)a.lane[i] >> n);
  return a;
}
POTLUCK_LANES int32_t sum(I32x16 v) {
  int32_t r = 0;
  POTLUCK_EACH_LANE r += v.lane[i];
  return r;
}
POTLUCK_LANES int32_t max_lane(I32x16 v) {
  int32_t r = v.lane[0];
  POTLUCK_EACH_LANE r = v.lane[i] > r ? v.lane[i] : r;
  return r;
}
POTLUCK_LANES I32x16 max(I32x16 a, I32x16 b) {
  POTLUCK_EACH_LANE a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
  return a;
}
POTLUCK_LANES F32x16 to_f32(I32x16 v) {
  F32x16 r;
  POTLUCK_EACH_LANE r.lane[i] = (float)v.lane[i];
  return r;
}
// Toward zero; |v| < 2^31.
POTLUCK_LANES I32x16 truncate_i32(F32x16 v) {
  I32x16 r;
  POTLUCK_EACH_LANE r.lane[i] = (int32_t)v.lane[i];
  return r;
}
POTLUCK_LANES F32x16 as_f32(I32x16 v) {
  F32x16 r;
  __builtin_memcpy(&r, &v, sizeof r);
  return r;
}
POTLUCK_LANES I32x16 as_i32(F32x16 v) {
  I32x16 r;
  __builtin_memcpy(&r, &v, sizeof r);
  return r;
}
POTLUCK_LANES I32x16 load_u8(const uint8_t* p) {
  I32x16 r;
  POTLUCK_EACH_LANE r.lane[i] = p[i];
  return r;
}
POTLUCK_LANES I32x16 load_i8(const uint8_t* p) {
  I32x16 r;
  POTLUCK_EACH_LANE r.lane[i] = (int8_t)p[i];
  return r;
}
// Lanes are within [-128, 127].
POTLUCK_LANES void store_i8(int8_t* p, I32x16 v) { POTLUCK_EACH_LANE p[i] = (int8_t)v.lane[i]; }

// The lower half of each lane.
POTLUCK_LANES void store_u16(uint16_t* p, I32x16 v) {
  POTLUCK_EACH_LANE p[i] = (uint16_t)v.lane[i];
}

// IEEE 754 binary16. A signalling NaN becomes quiet, as in hardware.
inline float f16_to_f32(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000) << 16;
  const uint32_t exponent = (h >> 10) & 0x1f;
  const uint32_t mantissa = h & 0x3ff;
  uint32_t bits;
  if (exponent == 0x1f) {
    bits = 0x7f800000 | mantissa << 13 | (mantissa ? 0x00400000 : 0);
  } else if (exponent == 0) {
    const float magnitude = (float)mantissa * 0x1p-24f;
    __builtin_memcpy(&bits, &magnitude, 4);
  } else {
    bits = (exponent + 127 - 15) << 23 | mantissa << 13;
  }
  bits |= sign;
  float r;
  __builtin_memcpy(&r, &bits, 4);
  return r;
}
// Rounds to nearest even, to subnormals as well; from 65520 on it is infinite.
inline uint16_t f32_to_f16(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00 | ((magnitude >> 13) & 0x3ff));
  if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
  if (magnitude >= 0x38800000) {  // 2^-14, the smallest normal f16
    const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
    return (uint16_t)(sign | ((rounded - 0x38000000) >> 13));
  }
  // The ulp of 0.5 is 2^-24, that of f16's subnormals: the addition rounds to it.
  float value;
  __builtin_memcpy(&value, &magnitude, 4);
  value += 0.5f;
  __builtin_memcpy(&bits, &value, 4);
  return (uint16_t)(sign | (bits - 0x3f000000));
}
POTLUCK_LANES F32x16 load_f16(const void* p) {
  uint16_t h[16];
  __builtin_memcpy(h, p, sizeof h);
  F32x16 r;
  POTLUCK_EACH_LANE r.lane[i] = f16_to_f32(h[i]);
  return r;
}
POTLUCK_LANES void store_f16(uint16_t* p, F32x16 v) {
  POTLUCK_EACH_LANE p[i] = f32_to_f16(v.lane[i]);
}
// out[16 j + i] = in[16 i + j] for i and j below 16; they do not overlap.
POTLUCK_LANES void transpose_16(const uint16_t* in, uint16_t* out) {
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 16; ++j) out[16 * j + i] = in[16 * i + j];
}
// The upper half of an f32.
POTLUCK_LANES F32x16 load_bf16(const void* p) {
  uint16_t h[16];
  __builtin_memcpy(h, p, sizeof h);
  I32x16 r;
  POTLUCK_EACH_LANE r.lane[i] = (int32_t)((uint32_t)h[i] << 16);
  return as_f32(r);
}

POTLUCK_LANES U8x64 load_bytes(const uint8_t* p) {
  U8x64 r;
  __builtin_memcpy(&r, p, sizeof r);
  return r;
}
// Bits [shift, shift + n) of every byte, where mask = 2^n - 1 and shift + n <= 8.
template <int shift, int mask>
POTLUCK_LANES U8x64 bits(U8x64 v) {
  for (int i = 0; i < 64; ++i) v.byte[i] = (uint8_t)((v.byte[i] >> shift) & mask);
  return v;
}
// low | h << place, byte by byte, where low < 2^place and h is bits [shift, shift + n) of `high`,
// place + n at most 8.
template <int shift, int mask, int place = 4>
POTLUCK_LANES U8x64 join(U8x64 low, U8x64 high) {
  const U8x64 upper = bits<shift, mask>(high);
  for (int i = 0; i < 64; ++i) low.byte[i] = (uint8_t)(low.byte[i] | upper.byte[i] << place);
  return low;
}
// The entry of a table for every byte, which is below 16.
struct ByteTable {
  const uint8_t* entry;
};
POTLUCK_LANES ByteTable load_table(const uint8_t* entries) { return {entries}; }
POTLUCK_LANES U8x64 look_up(ByteTable table, U8x64 v) {
  for (int i = 0; i < 64; ++i) v.byte[i] = table.entry[v.byte[i]];
  return v;
}
// Byte `index` (0 to 3) of every lane.
POTLUCK_LANES I32x16 byte_of_lane(U8x64 v, int index) {
  I32x16 r;
  POTLUCK_EACH_LANE r.lane[i] = v.byte[4 * i + index];
  return r;
}
// Four bytes of an activation in [-127, 127], for every lane.
struct Quad {
  int8_t a[4];
};
POTLUCK_LANES Quad splat_quad(const int8_t* a) {
  Quad r;
  __builtin_memcpy(&r, a, sizeof r);
  return r;
}
// The exact sum over quads of (w[j] - zero) * a[j] in each lane, for at most eight quads of bytes w
// below 2^bits; (8, 128), or fewer bits and any zero. `sum_a` is the sum of all a that are added.
template <int bits, int zero>
struct Dot {
  I32x16 total;
  POTLUCK_LANES void start(int32_t sum_a) { total = splat_i32(-zero * sum_a); }
  template <int index>  // how many were added before
  POTLUCK_LANES void add(U8x64 w, Quad q) {
    POTLUCK_EACH_LANE {
      const uint8_t* b = w.byte + 4 * i;
      total.lane[i] += b[0] * q.a[0] + b[1] * q.a[1] + b[2] * q.a[2] + b[3] * q.a[3];
    }
  }
  POTLUCK_LANES I32x16 sum() const { return total; }
};
POTLUCK_LANES int32_t sum_16(const int8_t* a) {
  int32_t r = 0;
  POTLUCK_EACH_LANE r += a[i];
  return r;
}

#undef POTLUCK_EACH_LANE

}  // namespace
}  // namespace scalar
}  // namespace potluck

#include "simd/lanes_shared.h"
