// Products of quantized weights on Advanced SIMD. Included after its lanes.
//
// As quantized_tiles.h, but a class `Products` makes the integer sums of eight rows and a tile of
// tokens, whose registers are then free again for the next eight; a line is unpacked where it is
// used, as eight unpacked ones would take all 32 registers. How the products are summed does not
// matter to the bits, as the sums are exact.
//
// A class `Products` has
//   kTokenTile   tokens of the largest tile; the others have two and one
//   kOffset      what it takes from 8-bit values
//   sum<Weights, first_row, first, end, kTokens>(block, g, q, stride, start, totals)
//                totals[t] = start[t] + the products of quads [first, end), whole halves of group g,
//                of rows [first_row, first_row + 8) with the token at q + t * stride
#pragma once

#include "kernels/linear/decode.h"
#include "kernels/linear/write.h"

namespace potluck {
namespace neon {
namespace {

// Sums of eight rows.
struct I32x8 {
  int32x4_t v[2];
};

// Eight rows of quad `quad` of group g. The compiler eliminates the other quads.
struct U8x32 {
  uint8x16_t v[2];
};
template <class Weights, int first_row>
POTLUCK_LANES U8x32 rows_of_quad(const uint8_t* block, int64_t g, int quad) {
  using L = typename Weights::Layout;
  const uint8_t* group = block + L::kGroups + g * L::kGroupBytes;
  const QuadPair pairs[] = {
      Weights::template load_quads<0>(group), Weights::template load_quads<1>(group),
      Weights::template load_quads<2>(group), Weights::template load_quads<3>(group)};
  const QuadPair& pair = pairs[quad % 4];
  const uint8x16_t* rows = (quad < 4 ? pair.first : pair.second).v + first_row / 4;
  return {{rows[0], rows[1]}};
}
// The same as signed bytes: 8-bit values minus 128, the others unchanged.
struct I8x32 {
  int8x16_t v[2];
};
template <class Weights, int first_row>
POTLUCK_LANES I8x32 signed_rows_of_quad(const uint8_t* block, int64_t g, int quad) {
  U8x32 rows = rows_of_quad<Weights, first_row>(block, g, quad);
  if constexpr (Weights::kBits == 8)
    for (int i = 0; i < 2; ++i) rows.v[i] = veorq_u8(rows.v[i], vdupq_n_u8(128));
  return {{vreinterpretq_s8_u8(rows.v[0]), vreinterpretq_s8_u8(rows.v[1])}};
}

POTLUCK_LANES int32_t sum_16(const int8_t* a) { return vaddlvq_s8(vld1q_s8(a)); }
POTLUCK_LANES I32x8 splat_i32x8(int32_t x) { return {{vdupq_n_s32(x), vdupq_n_s32(x)}}; }
POTLUCK_LANES I32x8 add(I32x8 a, I32x8 b) {
  return {{vaddq_s32(a.v[0], b.v[0]), vaddq_s32(a.v[1], b.v[1])}};
}
POTLUCK_LANES I32x8 mul(I32x8 a, const int32x4_t b[2]) {
  return {{vmulq_s32(a.v[0], b[0]), vmulq_s32(a.v[1], b[1])}};
}

// totals[t] = the exact sum of (v - kZero) * a over group g for the token at q + t * stride, times
// the half scales if there are any. sums[t * sums_stride] is the sum of a.
template <class Products, class Weights, int first_row, int kTokens>
POTLUCK_LANES void integer_sums(const uint8_t* block, int64_t g, const GroupScales& weight,
                                const int8_t* q, int64_t stride, const int32_t* sums,
                                int64_t sums_stride, I32x8 totals[kTokens]) {
  constexpr int kZero = Weights::kZero - (Weights::kBits == 8 ? Products::kOffset : 0);
  int32_t start[kTokens];
  if constexpr (Weights::kHasHalfScales) {
    I32x8 second[kTokens];
#pragma GCC unroll kUnroll
    for (int t = 0; t < kTokens; ++t) start[t] = -kZero * sum_16(q + t * stride);
    Products::template sum<Weights, first_row, 0, 4, kTokens>(block, g, q, stride, start, totals);
#pragma GCC unroll kUnroll
    for (int t = 0; t < kTokens; ++t) {
      totals[t] = mul(totals[t], weight.half_scale[0].v + first_row / 4);
      start[t] = -kZero * sums[t * sums_stride] - start[t];
    }
    Products::template sum<Weights, first_row, 4, 8, kTokens>(block, g, q, stride, start, second);
#pragma GCC unroll kUnroll
    for (int t = 0; t < kTokens; ++t)
      totals[t] = add(totals[t], mul(second[t], weight.half_scale[1].v + first_row / 4));
  } else {
#pragma GCC unroll kUnroll
    for (int t = 0; t < kTokens; ++t) start[t] = -kZero * sums[t * sums_stride];
    Products::template sum<Weights, first_row, 0, 8, kTokens>(block, g, q, stride, start, totals);
  }
}

// One group for a tile of tokens: one fma for each integer sum, and one for the minimum (if halves
// have factors of it, with the exact sum of the activations' sums times these).
template <class Products, class Weights, int first_row, int kTokens>
POTLUCK_LANES void add_group(const uint8_t* block, int64_t g, const GroupScales& weight,
                             const int8_t* q, int64_t stride, const float* scales,
                             const int32_t* sums, int64_t num_groups, F32x16 acc[kTokens]) {
  I32x8 totals[kTokens];
  integer_sums<Products, Weights, first_row, kTokens>(block, g, weight, q, stride, sums, num_groups,
                                                      totals);
#pragma GCC unroll kUnroll
  for (int t = 0; t < kTokens; ++t) {
    const float scale = scales[t * num_groups];
    for (int i = 0; i < 2; ++i) {
      constexpr int kFirst = first_row / 4;
      float32x4_t& sum = acc[t].v[kFirst + i];
      sum = vfmaq_f32(sum, vcvtq_f32_s32(totals[t].v[i]),
                      vmulq_n_f32(weight.scale.v[kFirst + i], scale));
      if constexpr (Weights::kHasHalfMinimums) {
        const int32_t first = sum_16(q + t * stride);
        const int32_t second = sums[t * num_groups] - first;
        const int32x4_t factor = vmlaq_n_s32(
            vmulq_n_s32(weight.half_minimum[0].v[kFirst + i], first),
            weight.half_minimum[1].v[kFirst + i], second);
        sum = vfmaq_f32(sum, vcvtq_f32_s32(factor),
                        vmulq_n_f32(weight.minimum.v[kFirst + i], scale));
      } else if constexpr (Weights::kHasMinimum) {
        sum = vfmaq_n_f32(sum, weight.minimum.v[kFirst + i],
                          scale * (float)sums[t * num_groups]);
      }
    }
  }
}

// A barrier around code that needs many registers: sums are in memory before and after it. Without
// it, gcc 12 interleaves the work on sixteen rows, and spills the parts of a line that both halves
// use.
POTLUCK_LANES void settle(const F32x16* acc) { __asm__ volatile("" : : "r"(acc) : "memory"); }

template <class Products, class Weights, int kTokens>
inline void quantized_tile(const LinearArgs& args, int64_t panel, int64_t token) {
  const int64_t columns = args.weight.columns;
  const int64_t num_groups = columns / kGroupColumns;
  const int64_t num_blocks = num_groups / Weights::kGroupsPerBlock;
  const uint8_t* block = args.weight.data + panel * num_blocks * Weights::Layout::kBlockBytes;
  const int8_t* q = args.input.q + token * columns;
  const float* scales = args.input.scales + token * num_groups;
  const int32_t* sums = args.input.sums + token * num_groups;

  F32x16 acc[kTokens];
#pragma GCC unroll kUnroll
  for (int t = 0; t < kTokens; ++t) acc[t] = splat(0.0f);
  for (int64_t b = 0; b < num_blocks; ++b, block += Weights::Layout::kBlockBytes) {
    for (int64_t i = 0; i < Weights::kGroupsPerBlock; ++i) {
      GroupScales weight;
      Weights::load_scales(block, i, weight);
      add_group<Products, Weights, 0, kTokens>(block, i, weight, q, columns, scales, sums,
                                               num_groups, acc);
      if (kTokens > 2) settle(acc);
      add_group<Products, Weights, 8, kTokens>(block, i, weight, q, columns, scales, sums,
                                               num_groups, acc);
      if (kTokens > 2) settle(acc);
      q += kGroupColumns;
      ++scales;
      ++sums;
    }
  }
#pragma GCC unroll kUnroll
  for (int t = 0; t < kTokens; ++t) write(args, panel, token + t, acc[t]);
}

// Tokens from `token` on over one panel, in tiles of kTokens and then of two and one.
template <class Products, class Weights, int kTokens>
inline void quantized_tokens(const LinearArgs& args, int64_t panel, int64_t token) {
  for (; token + kTokens <= args.num_tokens; token += kTokens)
    quantized_tile<Products, Weights, kTokens>(args, panel, token);
  constexpr int kSmaller = kTokens > 2 ? 2 : 1;
  if constexpr (kTokens > 1) quantized_tokens<Products, Weights, kSmaller>(args, panel, token);
}

// The loop over panels is outside, so that a panel comes from memory once and from the cache for
// the other tiles.
template <class Products, class Weights>
void quantized(const LinearArgs& args, int64_t first_panel, int64_t end_panel) {
  for (int64_t panel = first_panel; panel < end_panel; ++panel)
    quantized_tokens<Products, Weights, Products::kTokenTile>(args, panel, 0);
}

}  // namespace
}  // namespace neon
}  // namespace potluck
