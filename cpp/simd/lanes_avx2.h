// Sixteen virtual lanes as two 256-bit registers: AVX2, FMA and F16C. lanes_scalar.h defines each
// operation.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#define POTLUCK_ISA avx2
#define POTLUCK_LANES inline __attribute__((always_inline))

namespace potluck {
namespace avx2 {
namespace {

// 16 lanes take two of the 16 registers: 8 hold sums of integers, 2 a quad, one a token's. The sums
// of floats are meanwhile in the L1 cache.
constexpr int kPanelTile = 1;
constexpr int kTokenTile = 4;
constexpr int kHalfScalesTokenTile = 2;
constexpr int kWideTokenTile = 0;  // none
// 12 registers hold sums, 2 a column of weights, one a token's. Pairs of BF16 also need a mask,
// which leaves room for 10 sums.
constexpr int kFloatPanelTile = 1;
constexpr int kFloatTokenTile = 6;
constexpr int kPairTokenTile = 5;
constexpr bool kReloadsFloats = true;  // gcc 12: BF16 by 5 tokens 78 -> 124 Gop/s (Zen 5)
constexpr int kUnroll = 8;
constexpr int kNumLanes = 16;
// Of 16 registers, a strip takes 2, its sums 4, and its update 2; with two strips, compilers spill
// (gated delta rule, 128 x 128: 40 -> 54 us per token and 32 heads, Sapphire Rapids).
constexpr int kStateStrips = 1;
constexpr int kStateTokens = 2;
constexpr int kNumRegisters = 8;

struct F32x16 {
  __m256 low, high;
};
struct I32x16 {
  __m256i low, high;
};
struct F64x16 {
  __m256d v[4];
};
struct U8x64 {
  __m256i low, high;
};

// All ones in the lanes below n.
POTLUCK_LANES I32x16 lanes_below(int64_t n) {
  const __m256i limit = _mm256_set1_epi32((int)n);
  return {_mm256_cmpgt_epi32(limit, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
          _mm256_cmpgt_epi32(limit, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15))};
}

POTLUCK_LANES F32x16 load(const void* p) {
  const float* f = (const float*)p;
  return {_mm256_loadu_ps(f), _mm256_loadu_ps(f + 8)};
}
POTLUCK_LANES F32x16 load_partial(const float* p, int64_t n) {
  if (n >= 16) return load(p);
  const I32x16 mask = lanes_below(n);
  return {_mm256_maskload_ps(p, mask.low), _mm256_maskload_ps(p + 8, mask.high)};
}
POTLUCK_LANES void store(float* p, F32x16 v) {
  _mm256_storeu_ps(p, v.low);
  _mm256_storeu_ps(p + 8, v.high);
}
POTLUCK_LANES void store_partial(float* p, F32x16 v, int64_t n) {
  if (n >= 16) return store(p, v);
  const I32x16 mask = lanes_below(n);
  _mm256_maskstore_ps(p, mask.low, v.low);
  _mm256_maskstore_ps(p + 8, mask.high, v.high);
}

POTLUCK_LANES F32x16 splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
POTLUCK_LANES F32x16 add(F32x16 a, F32x16 b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
POTLUCK_LANES F32x16 sub(F32x16 a, F32x16 b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
POTLUCK_LANES F32x16 mul(F32x16 a, F32x16 b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
POTLUCK_LANES F32x16 div(F32x16 a, F32x16 b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
POTLUCK_LANES F32x16 sqrt(F32x16 a) { return {_mm256_sqrt_ps(a.low), _mm256_sqrt_ps(a.high)}; }
POTLUCK_LANES F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
POTLUCK_LANES F32x16 max(F32x16 a, F32x16 b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
POTLUCK_LANES F32x16 min(F32x16 a, F32x16 b) {
  return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
POTLUCK_LANES F32x16 where_less(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
  return {_mm256_blendv_ps(y.low, x.low, _mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ)),
          _mm256_blendv_ps(y.high, x.high, _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ))};
}
POTLUCK_LANES F32x16 where_number(F32x16 a, F32x16 x, F32x16 y) {
  return {_mm256_blendv_ps(y.low, x.low, _mm256_cmp_ps(a.low, a.low, _CMP_ORD_Q)),
          _mm256_blendv_ps(y.high, x.high, _mm256_cmp_ps(a.high, a.high, _CMP_ORD_Q))};
}
POTLUCK_LANES F32x16 keep_range(F32x16 v, int64_t begin, int64_t end, float other) {
  const I32x16 before = lanes_below(begin);
  const I32x16 below = lanes_below(end);
  const __m256 fill = _mm256_set1_ps(other);
  const __m256i low = _mm256_andnot_si256(before.low, below.low);
  const __m256i high = _mm256_andnot_si256(before.high, below.high);
  return {_mm256_blendv_ps(fill, v.low, _mm256_castsi256_ps(low)),
          _mm256_blendv_ps(fill, v.high, _mm256_castsi256_ps(high))};
}

POTLUCK_LANES float sum(F32x16 v) {
  const __m256 s8 = _mm256_add_ps(v.low, v.high);
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}
POTLUCK_LANES float max_lane(F32x16 v) {
  const __m256 m8 = _mm256_max_ps(v.low, v.high);
  const __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
  const __m128 m2 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
  return _mm_cvtss_f32(_mm_max_ss(m2, _mm_movehdup_ps(m2)));
}

POTLUCK_LANES F64x16 zeros_f64() {
  const __m256d zero = _mm256_setzero_pd();
  return {{zero, zero, zero, zero}};
}
POTLUCK_LANES F64x16 add_wide(F64x16 a, F32x16 b) {
  return {{_mm256_add_pd(a.v[0], _mm256_cvtps_pd(_mm256_castps256_ps128(b.low))),
           _mm256_add_pd(a.v[1], _mm256_cvtps_pd(_mm256_extractf128_ps(b.low, 1))),
           _mm256_add_pd(a.v[2], _mm256_cvtps_pd(_mm256_castps256_ps128(b.high))),
           _mm256_add_pd(a.v[3], _mm256_cvtps_pd(_mm256_extractf128_ps(b.high, 1)))}};
}
POTLUCK_LANES double sum(F64x16 a) {
  const __m256d s4 =
      _mm256_add_pd(_mm256_add_pd(a.v[0], a.v[2]), _mm256_add_pd(a.v[1], a.v[3]));
  const __m128d s2 = _mm_add_pd(_mm256_castpd256_pd128(s4), _mm256_extractf128_pd(s4, 1));
  return _mm_cvtsd_f64(_mm_add_sd(s2, _mm_unpackhi_pd(s2, s2)));
}
POTLUCK_LANES uint32_t lanes_within_8(__m256 a, __m256 low, __m256 high) {
  return (uint32_t)_mm256_movemask_ps(_mm256_and_ps(_mm256_cmp_ps(low, a, _CMP_LE_OQ),
                                                    _mm256_cmp_ps(a, high, _CMP_LE_OQ)));
}
POTLUCK_LANES uint32_t lanes_within(F32x16 a, F32x16 low, F32x16 high) {
  return lanes_within_8(a.low, low.low, high.low) |
         lanes_within_8(a.high, low.high, high.high) << 8;
}
POTLUCK_LANES int store_indices(int32_t* p, int32_t first, uint32_t lanes) {
  int count = 0;
  for (; lanes != 0; lanes &= lanes - 1) p[count++] = first + __builtin_ctz(lanes);
  return count;
}

POTLUCK_LANES F32x16 keep_lanes(F32x16 a, uint32_t lanes, float other) {
  const __m256i all = _mm256_set1_epi32((int)lanes);
  const __m256i low = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i high = _mm256_slli_epi32(low, 8);
  const __m256 fill = _mm256_set1_ps(other);
  const __m256i has_low = _mm256_cmpeq_epi32(_mm256_and_si256(all, low), low);
  const __m256i has_high = _mm256_cmpeq_epi32(_mm256_and_si256(all, high), high);
  return {_mm256_blendv_ps(fill, a.low, _mm256_castsi256_ps(has_low)),
          _mm256_blendv_ps(fill, a.high, _mm256_castsi256_ps(has_high))};
}

POTLUCK_LANES I32x16 splat_i32(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
POTLUCK_LANES I32x16 add(I32x16 a, I32x16 b) {
  return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}
POTLUCK_LANES I32x16 sub(I32x16 a, I32x16 b) {
  return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)};
}
POTLUCK_LANES I32x16 mul(I32x16 a, I32x16 b) {
  return {_mm256_mullo_epi32(a.low, b.low), _mm256_mullo_epi32(a.high, b.high)};
}
POTLUCK_LANES I32x16 bit_and(I32x16 a, I32x16 b) {
  return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)};
}
POTLUCK_LANES I32x16 bit_or(I32x16 a, I32x16 b) {
  return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)};
}
template <int n>
POTLUCK_LANES I32x16 shift_left(I32x16 a) {
  return {_mm256_slli_epi32(a.low, n), _mm256_slli_epi32(a.high, n)};
}
template <int n>
POTLUCK_LANES I32x16 shift_right(I32x16 a) {
  return {_mm256_srli_epi32(a.low, n), _mm256_srli_epi32(a.high, n)};
}
POTLUCK_LANES int32_t sum(I32x16 v) {
  const __m256i s8 = _mm256_add_epi32(v.low, v.high);
  const __m128i s4 = _mm_add_epi32(_mm256_castsi256_si128(s8), _mm256_extracti128_si256(s8, 1));
  const __m128i s2 = _mm_add_epi32(s4, _mm_shuffle_epi32(s4, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s2, _mm_shuffle_epi32(s2, 0xb1)));
}
POTLUCK_LANES int32_t max_lane(I32x16 v) {
  const __m256i m8 = _mm256_max_epi32(v.low, v.high);
  const __m128i m4 = _mm_max_epi32(_mm256_castsi256_si128(m8), _mm256_extracti128_si256(m8, 1));
  const __m128i m2 = _mm_max_epi32(m4, _mm_shuffle_epi32(m4, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(m2, _mm_shuffle_epi32(m2, 0xb1)));
}
POTLUCK_LANES I32x16 max(I32x16 a, I32x16 b) {
  return {_mm256_max_epi32(a.low, b.low), _mm256_max_epi32(a.high, b.high)};
}
POTLUCK_LANES F32x16 to_f32(I32x16 v) {
  return {_mm256_cvtepi32_ps(v.low), _mm256_cvtepi32_ps(v.high)};
}
POTLUCK_LANES I32x16 truncate_i32(F32x16 v) {
  return {_mm256_cvttps_epi32(v.low), _mm256_cvttps_epi32(v.high)};
}
POTLUCK_LANES F32x16 as_f32(I32x16 v) {
  return {_mm256_castsi256_ps(v.low), _mm256_castsi256_ps(v.high)};
}
POTLUCK_LANES I32x16 as_i32(F32x16 v) {
  return {_mm256_castps_si256(v.low), _mm256_castps_si256(v.high)};
}
POTLUCK_LANES I32x16 load_u8(const uint8_t* p) {
  const __m128i v = _mm_loadu_si128((const __m128i*)p);
  return {_mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(_mm_srli_si128(v, 8))};
}
POTLUCK_LANES I32x16 load_i8(const uint8_t* p) {
  const __m128i v = _mm_loadu_si128((const __m128i*)p);
  return {_mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(_mm_srli_si128(v, 8))};
}
POTLUCK_LANES void store_i8(int8_t* p, I32x16 v) {
  // packs works within 128-bit halves: lanes 0-3, 8-11, 4-7, 12-15, which are then reordered.
  const __m256i pairs = _mm256_permute4x64_epi64(_mm256_packs_epi32(v.low, v.high), 0xd8);
  const __m128i bytes =
      _mm_packs_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  _mm_storeu_si128((__m128i*)p, bytes);
}

POTLUCK_LANES void store_u16(uint16_t* p, I32x16 v) {
  // packus works within 128-bit halves, and leaves lanes below 2^16 unchanged.
  const __m256i lower = _mm256_set1_epi32(0xffff);
  const __m256i halves = _mm256_packus_epi32(_mm256_and_si256(v.low, lower),
                                             _mm256_and_si256(v.high, lower));
  _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(halves, 0xd8));
}
POTLUCK_LANES F32x16 load_f16(const void* p) {
  const __m128i* h = (const __m128i*)p;
  return {_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1))};
}
POTLUCK_LANES void store_f16(uint16_t* p, F32x16 v) {
  __m128i* h = (__m128i*)p;
  _mm_storeu_si128(h, _mm256_cvtps_ph(v.low, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(h + 1, _mm256_cvtps_ph(v.high, _MM_FROUND_TO_NEAREST_INT));
}
// 8 registers, whose halves are transposed separately: numbers, pairs and groups of four are
// interleaved in turn.
POTLUCK_LANES void transpose_8x8(__m256i* r) {
  __m256i pairs[8], fours[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_epi16(r[i], r[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_epi16(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    fours[i] = _mm256_unpacklo_epi32(pairs[i], pairs[i + 2]);
    fours[i + 1] = _mm256_unpackhi_epi32(pairs[i], pairs[i + 2]);
    fours[i + 2] = _mm256_unpacklo_epi32(pairs[i + 1], pairs[i + 3]);
    fours[i + 3] = _mm256_unpackhi_epi32(pairs[i + 1], pairs[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    r[2 * i] = _mm256_unpacklo_epi64(fours[i], fours[i + 4]);
    r[2 * i + 1] = _mm256_unpackhi_epi64(fours[i], fours[i + 4]);
  }
}
POTLUCK_LANES void transpose_16(const uint16_t* in, uint16_t* out) {
  for (int part = 0; part < 16; part += 8) {
    __m256i r[8];  // 8 numbers of row i, and those of row i + 8
    for (int i = 0; i < 8; ++i) {
      const __m128i low = _mm_loadu_si128((const __m128i*)(in + 16 * i + part));
      const __m128i high = _mm_loadu_si128((const __m128i*)(in + 16 * (i + 8) + part));
      r[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    }
    transpose_8x8(r);
    for (int i = 0; i < 8; ++i) _mm256_storeu_si256((__m256i*)(out + 16 * (part + i)), r[i]);
  }
}
POTLUCK_LANES F32x16 load_bf16(const void* p) {
  const __m128i* h = (const __m128i*)p;
  const __m256i low = _mm256_cvtepu16_epi32(_mm_loadu_si128(h));
  const __m256i high = _mm256_cvtepu16_epi32(_mm_loadu_si128(h + 1));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))};
}

POTLUCK_LANES U8x64 load_bytes(const uint8_t* p) {
  const __m256i* v = (const __m256i*)p;
  return {_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
}
template <int shift, int mask>
POTLUCK_LANES U8x64 bits(U8x64 v) {
  const __m256i byte_mask = _mm256_set1_epi8(mask);
  return {_mm256_and_si256(_mm256_srli_epi32(v.low, shift), byte_mask),
          _mm256_and_si256(_mm256_srli_epi32(v.high, shift), byte_mask)};
}
template <int shift, int mask, int place>
POTLUCK_LANES __m256i upper_bits(__m256i v) {
  const __m256i moved = shift < place ? _mm256_slli_epi32(v, shift < place ? place - shift : 0)
                                      : _mm256_srli_epi32(v, shift < place ? 0 : shift - place);
  return _mm256_and_si256(moved, _mm256_set1_epi8((char)(mask << place)));
}
template <int shift, int mask, int place = 4>
POTLUCK_LANES U8x64 join(U8x64 low, U8x64 high) {
  return {_mm256_or_si256(low.low, upper_bits<shift, mask, place>(high.low)),
          _mm256_or_si256(low.high, upper_bits<shift, mask, place>(high.high))};
}
struct ByteTable {
  __m256i v;
};
POTLUCK_LANES ByteTable load_table(const uint8_t* entries) {
  return {_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)entries))};
}
POTLUCK_LANES U8x64 look_up(ByteTable table, U8x64 a) {
  return {_mm256_shuffle_epi8(table.v, a.low), _mm256_shuffle_epi8(table.v, a.high)};
}
POTLUCK_LANES I32x16 byte_of_lane(U8x64 v, int index) {
  const __m128i shift = _mm_cvtsi32_si128(8 * index);
  const __m256i mask = _mm256_set1_epi32(0xff);
  return {_mm256_and_si256(_mm256_srl_epi32(v.low, shift), mask),
          _mm256_and_si256(_mm256_srl_epi32(v.high, shift), mask)};
}

struct Quad {
  __m256i v;
};
POTLUCK_LANES Quad splat_quad(const int8_t* a) {
  int32_t four;
  __builtin_memcpy(&four, a, 4);
  return {_mm256_set1_epi32(four)};
}
// maddubs adds two products in 16 bits, which hold those of several quads: 2 * 15 * 127 * 8 quads
// of 4 bits, 4 of 5 bits, 2 of 6 bits are at most 32,004. Then madd widens them.
template <int bits, int zero>
struct Dot {
  // For fewer than 4 bits, only halves of groups are summed, which are four quads.
  static constexpr int kQuadsPerWidening = bits == 4 ? 8 : bits <= 5 ? 4 : 2;
  static_assert(2 * ((1 << bits) - 1) * 127 * kQuadsPerWidening < 32768, "16 bits overflow");
  __m256i low, high, low_pairs, high_pairs;
  int32_t first;  // added last, so that it needs no register

  POTLUCK_LANES void start(int32_t sum_a) { first = -zero * sum_a; }
  template <int index>
  POTLUCK_LANES void add(U8x64 w, Quad a) {
    const __m256i low_more = _mm256_maddubs_epi16(w.low, a.v);
    const __m256i high_more = _mm256_maddubs_epi16(w.high, a.v);
    const bool is_first = index % kQuadsPerWidening == 0;
    low_pairs = is_first ? low_more : _mm256_add_epi16(low_pairs, low_more);
    high_pairs = is_first ? high_more : _mm256_add_epi16(high_pairs, high_more);
    if ((index + 1) % kQuadsPerWidening != 0) return;
    const __m256i ones = _mm256_set1_epi16(1);
    const __m256i low_sums = _mm256_madd_epi16(low_pairs, ones);
    const __m256i high_sums = _mm256_madd_epi16(high_pairs, ones);
    low = index < kQuadsPerWidening ? low_sums : _mm256_add_epi32(low, low_sums);
    high = index < kQuadsPerWidening ? high_sums : _mm256_add_epi32(high, high_sums);
  }
  POTLUCK_LANES I32x16 sum() const {
    const __m256i more = _mm256_set1_epi32(first);
    return {_mm256_add_epi32(low, more), _mm256_add_epi32(high, more)};
  }
};
// The magnitudes of w - 128, with its signs applied to `a`: 2 * 128 * 127 fits in 16 bits.
template <>
struct Dot<8, 128> {
  __m256i low, high;

  POTLUCK_LANES void start(int32_t) { low = high = _mm256_setzero_si256(); }
  template <int index>
  POTLUCK_LANES void add(U8x64 w, Quad a) {
    low = _mm256_add_epi32(low, products(w.low, a.v));
    high = _mm256_add_epi32(high, products(w.high, a.v));
  }
  POTLUCK_LANES I32x16 sum() const { return {low, high}; }

 private:
  static POTLUCK_LANES __m256i products(__m256i w, __m256i a) {
    const __m256i v = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(v), _mm256_sign_epi8(a, v));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
};
POTLUCK_LANES int32_t sum_16(const int8_t* a) {
  // Sums of absolute differences require unsigned bytes: a + 128.
  const __m128i v = _mm_xor_si128(_mm_loadu_si128((const __m128i*)a), _mm_set1_epi8(-128));
  const __m128i sums = _mm_sad_epu8(v, _mm_setzero_si128());
  return _mm_cvtsi128_si32(_mm_add_epi32(sums, _mm_unpackhi_epi64(sums, sums))) - 16 * 128;
}

}  // namespace
}  // namespace avx2
}  // namespace potluck

#include "simd/lanes_shared.h"
