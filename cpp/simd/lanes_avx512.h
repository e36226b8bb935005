// Sixteen virtual lanes as one 512-bit register: AVX-512 F, BW, DQ, VL and VNNI. lanes_scalar.h
// defines each operation.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#define POTLUCK_ISA avx512
#define POTLUCK_LANES inline __attribute__((always_inline))

namespace potluck {
namespace avx512 {
namespace {

// A quad of a token is used by two panels: one load for two products. Of 32 registers, 12 hold sums
// of integers and 12 those of floats, 2 unpacked quads, and one a token's. With half scales, those
// of floats are meanwhile in the L1 cache.
constexpr int kPanelTile = 2;
constexpr int kTokenTile = 6;
constexpr int kHalfScalesTokenTile = 6;
// With one panel, the sums of twice as many tokens: 8 tokens of Q4_K take 29 ns per group of a
// panel instead of 35 in two tiles of four, 12 take 35 instead of 40 (Sapphire Rapids, from
// memory).
constexpr int kWideTokenTile = 12;
// 24 registers hold sums, 4 columns of weights, and one a token's: 10 loads for 24 products, which
// are more than are in flight (2 per cycle for at most 6 cycles).
constexpr int kFloatPanelTile = 4;
constexpr int kFloatTokenTile = 6;
constexpr int kPairTokenTile = 6;
constexpr bool kReloadsFloats = false;
constexpr int kUnroll = 8;
constexpr int kNumLanes = 16;
// 4 strips and 12 sums and terms in 32 registers: as many chains of additions as are in flight.
// With two strips: 24 -> 28 us per token and 32 heads of 128 x 128 (Sapphire Rapids).
constexpr int kStateStrips = 4;
constexpr int kStateTokens = 2;
constexpr int kNumRegisters = 32;

struct F32x16 {
  __m512 v;
};
struct I32x16 {
  __m512i v;
};
struct F64x16 {
  __m512d low, high;
};
struct U8x64 {
  __m512i v;
};

// The lanes below n <= 16.
POTLUCK_LANES __mmask16 lanes_below(int64_t n) { return (__mmask16)((1u << n) - 1); }

POTLUCK_LANES F32x16 load(const void* p) { return {_mm512_loadu_ps(p)}; }
POTLUCK_LANES F32x16 load_partial(const float* p, int64_t n) {
  return {_mm512_maskz_loadu_ps(lanes_below(n), p)};
}
POTLUCK_LANES void store(float* p, F32x16 a) { _mm512_storeu_ps(p, a.v); }
POTLUCK_LANES void store_partial(float* p, F32x16 a, int64_t n) {
  _mm512_mask_storeu_ps(p, lanes_below(n), a.v);
}

POTLUCK_LANES F32x16 splat(float x) { return {_mm512_set1_ps(x)}; }
POTLUCK_LANES F32x16 add(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
POTLUCK_LANES F32x16 sub(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
POTLUCK_LANES F32x16 mul(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
POTLUCK_LANES F32x16 div(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
POTLUCK_LANES F32x16 sqrt(F32x16 a) { return {_mm512_sqrt_ps(a.v)}; }
POTLUCK_LANES F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
POTLUCK_LANES F32x16 max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
POTLUCK_LANES F32x16 min(F32x16 a, F32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
POTLUCK_LANES F32x16 where_less(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
POTLUCK_LANES F32x16 where_number(F32x16 a, F32x16 x, F32x16 y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, a.v, _CMP_ORD_Q), y.v, x.v)};
}
POTLUCK_LANES F32x16 keep_range(F32x16 a, int64_t begin, int64_t end, float other) {
  const __mmask16 keep = (__mmask16)(lanes_below(end) & ~lanes_below(begin));
  return {_mm512_mask_blend_ps(keep, _mm512_set1_ps(other), a.v)};
}

POTLUCK_LANES float sum(F32x16 a) {
  const __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}
POTLUCK_LANES float max_lane(F32x16 a) {
  const __m256 m8 = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
  const __m128 m2 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
  return _mm_cvtss_f32(_mm_max_ss(m2, _mm_movehdup_ps(m2)));
}

POTLUCK_LANES F64x16 zeros_f64() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
POTLUCK_LANES F64x16 add_wide(F64x16 a, F32x16 b) {
  return {_mm512_add_pd(a.low, _mm512_cvtps_pd(_mm512_castps512_ps256(b.v))),
          _mm512_add_pd(a.high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(b.v, 1)))};
}
POTLUCK_LANES double sum(F64x16 a) {
  const __m512d s8 = _mm512_add_pd(a.low, a.high);
  const __m256d s4 = _mm256_add_pd(_mm512_castpd512_pd256(s8), _mm512_extractf64x4_pd(s8, 1));
  const __m128d s2 = _mm_add_pd(_mm256_castpd256_pd128(s4), _mm256_extractf128_pd(s4, 1));
  return _mm_cvtsd_f64(_mm_add_sd(s2, _mm_unpackhi_pd(s2, s2)));
}
POTLUCK_LANES uint32_t lanes_within(F32x16 a, F32x16 low, F32x16 high) {
  return _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(low.v, a.v, _CMP_LE_OQ), a.v, high.v,
                                 _CMP_LE_OQ);
}
// Not compressed to memory directly, which is microcoded on Zen 4.
POTLUCK_LANES int store_indices(int32_t* p, int32_t first, uint32_t lanes) {
  const __m512i index = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i all = _mm512_add_epi32(index, _mm512_set1_epi32(first));
  _mm512_storeu_si512(p, _mm512_maskz_compress_epi32((__mmask16)lanes, all));
  return __builtin_popcount(lanes);
}

POTLUCK_LANES F32x16 keep_lanes(F32x16 a, uint32_t lanes, float other) {
  return {_mm512_mask_blend_ps((__mmask16)lanes, _mm512_set1_ps(other), a.v)};
}

POTLUCK_LANES I32x16 splat_i32(int32_t x) { return {_mm512_set1_epi32(x)}; }
POTLUCK_LANES I32x16 add(I32x16 a, I32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
POTLUCK_LANES I32x16 sub(I32x16 a, I32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
POTLUCK_LANES I32x16 mul(I32x16 a, I32x16 b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
POTLUCK_LANES I32x16 bit_and(I32x16 a, I32x16 b) { return {_mm512_and_si512(a.v, b.v)}; }
POTLUCK_LANES I32x16 bit_or(I32x16 a, I32x16 b) { return {_mm512_or_si512(a.v, b.v)}; }
template <int n>
POTLUCK_LANES I32x16 shift_left(I32x16 a) {
  return {_mm512_slli_epi32(a.v, n)};
}
template <int n>
POTLUCK_LANES I32x16 shift_right(I32x16 a) {
  return {_mm512_srli_epi32(a.v, n)};
}
POTLUCK_LANES int32_t sum(I32x16 a) { return _mm512_reduce_add_epi32(a.v); }
POTLUCK_LANES int32_t max_lane(I32x16 a) { return _mm512_reduce_max_epi32(a.v); }
POTLUCK_LANES I32x16 max(I32x16 a, I32x16 b) { return {_mm512_max_epi32(a.v, b.v)}; }
POTLUCK_LANES F32x16 to_f32(I32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
POTLUCK_LANES I32x16 truncate_i32(F32x16 a) { return {_mm512_cvttps_epi32(a.v)}; }
POTLUCK_LANES F32x16 as_f32(I32x16 a) { return {_mm512_castsi512_ps(a.v)}; }
POTLUCK_LANES I32x16 as_i32(F32x16 a) { return {_mm512_castps_si512(a.v)}; }
POTLUCK_LANES I32x16 load_u8(const uint8_t* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p))};
}
POTLUCK_LANES I32x16 load_i8(const uint8_t* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p))};
}
POTLUCK_LANES void store_i8(int8_t* p, I32x16 a) {
  _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(a.v));
}

POTLUCK_LANES void store_u16(uint16_t* p, I32x16 a) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(a.v));
}
POTLUCK_LANES F32x16 load_f16(const void* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))};
}
POTLUCK_LANES void store_f16(uint16_t* p, F32x16 a) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
// The quarters of 8 registers are transposed separately: numbers, pairs and groups of four are
// interleaved in turn.
POTLUCK_LANES void transpose_16(const uint16_t* in, uint16_t* out) {
  __m512i r[8], pairs[8], fours[8];
  for (int i = 0; i < 8; ++i) {
    const __m256i low = _mm256_loadu_si256((const __m256i*)(in + 16 * i));
    const __m256i high = _mm256_loadu_si256((const __m256i*)(in + 16 * (i + 8)));
    r[i] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm512_unpacklo_epi16(r[i], r[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi16(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    fours[i] = _mm512_unpacklo_epi32(pairs[i], pairs[i + 2]);
    fours[i + 1] = _mm512_unpackhi_epi32(pairs[i], pairs[i + 2]);
    fours[i + 2] = _mm512_unpacklo_epi32(pairs[i + 1], pairs[i + 3]);
    fours[i + 3] = _mm512_unpackhi_epi32(pairs[i + 1], pairs[i + 3]);
  }
  // Columns j and j + 8 of the rows below 8, and these of the others.
  for (int j = 0; j < 8; ++j) {
    const __m512i both = j % 2 == 0 ? _mm512_unpacklo_epi64(fours[j / 2], fours[j / 2 + 4])
                                    : _mm512_unpackhi_epi64(fours[j / 2], fours[j / 2 + 4]);
    const __m512i sorted = _mm512_shuffle_i64x2(both, both, 0xd8);
    _mm256_storeu_si256((__m256i*)(out + 16 * j), _mm512_castsi512_si256(sorted));
    _mm256_storeu_si256((__m256i*)(out + 16 * (j + 8)), _mm512_extracti64x4_epi64(sorted, 1));
  }
}
POTLUCK_LANES F32x16 load_bf16(const void* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}

POTLUCK_LANES U8x64 load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
template <int shift, int mask>
POTLUCK_LANES U8x64 bits(U8x64 a) {
  return {_mm512_and_si512(_mm512_srli_epi32(a.v, shift), _mm512_set1_epi8(mask))};
}
template <int shift, int mask, int place = 4>
POTLUCK_LANES U8x64 join(U8x64 low, U8x64 high) {
  const __m512i moved = shift < place
                            ? _mm512_slli_epi32(high.v, shift < place ? place - shift : 0)
                            : _mm512_srli_epi32(high.v, shift < place ? 0 : shift - place);
  constexpr int kOrAnd = 0xf8;  // a | (b & c)
  return {_mm512_ternarylogic_epi32(low.v, moved, _mm512_set1_epi8((char)(mask << place)), kOrAnd)};
}
struct ByteTable {
  __m512i v;
};
POTLUCK_LANES ByteTable load_table(const uint8_t* entries) {
  return {_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)entries))};
}
POTLUCK_LANES U8x64 look_up(ByteTable table, U8x64 a) {
  return {_mm512_shuffle_epi8(table.v, a.v)};
}
POTLUCK_LANES I32x16 byte_of_lane(U8x64 a, int index) {
  const __m512i shifted = _mm512_srl_epi32(a.v, _mm_cvtsi32_si128(8 * index));
  return {_mm512_and_si512(shifted, _mm512_set1_epi32(0xff))};
}
struct Quad {
  __m512i v;
};
POTLUCK_LANES Quad splat_quad(const int8_t* a) {
  int32_t four;
  __builtin_memcpy(&four, a, 4);
  return {_mm512_set1_epi32(four)};
}
template <int bits, int zero>
struct Dot {
  __m512i total;
  POTLUCK_LANES void start(int32_t sum_a) { total = _mm512_set1_epi32(-zero * sum_a); }
  template <int index>
  POTLUCK_LANES void add(U8x64 w, Quad a) {
    total = _mm512_dpbusd_epi32(total, w.v, a.v);
  }
  POTLUCK_LANES I32x16 sum() const { return {total}; }
};
POTLUCK_LANES int32_t sum_16(const int8_t* a) {
  const __m128i v = _mm_xor_si128(_mm_loadu_si128((const __m128i*)a), _mm_set1_epi8(-128));
  const __m128i sums = _mm_sad_epu8(v, _mm_setzero_si128());
  return _mm_cvtsi128_si32(_mm_add_epi32(sums, _mm_unpackhi_epi64(sums, sums))) - 16 * 128;
}

}  // namespace
}  // namespace avx512
}  // namespace potluck

#include "simd/lanes_shared.h"
