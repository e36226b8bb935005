// Products of quantized weights on Advanced SIMD. Included after its lanes.
//
// As quantized_tiles.h, but a class `Products` makes the integer sums of a whole tile of tokens, so
// that a line is unpacked where it is used: eight unpacked lines would take all 32 registers. The
// products are of signed bytes; how they are summed does not matter to the bits, as the sums are
// exact.
#pragma once

#include "kernels/linear/decode.h"
#include "kernels/linear/write.h"

namespace potluck {
namespace neon {
namespace {

struct I8x64 {
  int8x16_t v[4];
};

// Quad `quad` of group g as signed bytes, which stand for v - kSignedZero. Of `load` only what makes
// this line is left by the compiler.
template <class Weights>
constexpr int kSignedZero = Weights::kBits == 8 ? Weights::kZero - 128 : Weights::kZero;
template <class Weights>
POTLUCK_LANES I8x64 signed_line(const uint8_t* block, int64_t g, int quad) {
  Group group;
  Weights::load(block, g, group);
  I8x64 line;
  for (int i = 0; i < 4; ++i) {
    uint8x16_t bytes = group.line[quad].v[i];
    if constexpr (Weights::kBits == 8) bytes = veorq_u8(bytes, vdupq_n_u8(0x80));
    line.v[i] = vreinterpretq_s8_u8(bytes);
  }
  return line;
}

POTLUCK_LANES int32_t sum_16(const int8_t* a) { return vaddlvq_s8(vld1q_s8(a)); }

// totals[t] = the exact sum of (v - kZero) * a over group g for the token at q + t * stride, times
// the half scales where there are some.
template <class Products, class Weights, int kTokens>
POTLUCK_LANES void integer_sums(const uint8_t* block, int64_t g, const Group& group,
                                const int8_t* q, int64_t stride, const int32_t* sums,
                                int64_t sums_stride, I32x16 totals[kTokens]) {
  constexpr int kZero = kSignedZero<Weights>;
  if constexpr (Weights::kHasHalfScales) {
    I32x16 second[kTokens];
#pragma GCC unroll kUnroll
    for (int t = 0; t < kTokens; ++t) {
      const int32_t first_sum = sum_16(q + t * stride);
      totals[t] = splat_i32(-kZero * first_sum);
      second[t] = splat_i32(-kZero * (sums[t * sums_stride] - first_sum));
    }
    Products::template add<Weights, 0, 4, kTokens>(block, g, q, stride, totals);
#pragma GCC unroll kUnroll
    for (int t = 0; t < kTokens; ++t) totals[t] = mul(totals[t], group.half_scale[0]);
    Products::template add<Weights, 4, 8, kTokens>(block, g, q, stride, second);
#pragma GCC unroll kUnroll
    for (int t = 0; t < kTokens; ++t)
      totals[t] = add(totals[t], mul(second[t], group.half_scale[1]));
  } else {
#pragma GCC unroll kUnroll
    for (int t = 0; t < kTokens; ++t) totals[t] = splat_i32(-kZero * sums[t * sums_stride]);
    Products::template add<Weights, 0, 8, kTokens>(block, g, q, stride, totals);
  }
}

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
      Group group;
      Weights::load(block, i, group);
      I32x16 totals[kTokens];
      integer_sums<Products, Weights, kTokens>(block, i, group, q, columns, sums, num_groups,
                                               totals);
#pragma GCC unroll kUnroll
      for (int t = 0; t < kTokens; ++t) {
        const float scale = scales[t * num_groups];
        acc[t] = fma(to_f32(totals[t]), mul(group.scale, splat(scale)), acc[t]);
        if constexpr (Weights::kHasMinimum)
          acc[t] = fma(group.minimum, splat(scale * (float)sums[t * num_groups]), acc[t]);
      }
      q += kGroupColumns;
      ++scales;
      ++sums;
    }
  }
#pragma GCC unroll kUnroll
  for (int t = 0; t < kTokens; ++t) write(args, panel, token + t, acc[t]);
}

// Tokens from `token` on, over one panel.
template <class Products, class Weights>
inline void quantized_tokens(const LinearArgs& args, int64_t panel, int64_t token) {
  for (; token + kTokenTile <= args.num_tokens; token += kTokenTile)
    quantized_tile<Products, Weights, kTokenTile>(args, panel, token);
  if (token + 2 <= args.num_tokens) {
    quantized_tile<Products, Weights, 2>(args, panel, token);
    token += 2;
  }
  if (token < args.num_tokens) quantized_tile<Products, Weights, 1>(args, panel, token);
}

template <class Products, class Weights>
void quantized(const LinearArgs& args, int64_t first_panel, int64_t end_panel) {
  for (int64_t panel = first_panel; panel < end_panel; ++panel)
    quantized_tokens<Products, Weights>(args, panel, 0);
}

}  // namespace
}  // namespace neon
}  // namespace potluck
