// out = weight x + bias for BF16 weights and activations, by BFDOT. Included after the lanes of
// Advanced SIMD.
//
// A pair line is four registers of four rows, and two columns of a token are one lane of another.
// Every output element is one chain of instructions over its pairs in ascending order, whatever the
// tile, so that one token and many have the same bits. An instruction adds the two products, then
// their sum to the element; products and additions are rounded to odd, subnormals are taken as zero
// (Arm ARM, BFDotAdd where FPCR.EBF is 0, as it is on Linux: the same on every core).
#pragma once

#include "kernels/kernels.h"
#include "kernels/linear/layout.h"
#include "kernels/linear/write.h"

namespace potluck {
namespace i8mm {

void linear_bf16(const LinearArgs& args, int64_t first_panel, int64_t end_panel);

namespace {

using namespace neon;

// 24 of the 32 registers hold sums, 4 hold a line and one the pair of a token.
constexpr int kPairTokens = 6;
// Panels of one token: 16 sums in flight.
constexpr int kPairPanels = 4;

struct Pairs {
  bfloat16x8_t v[4];
};
POTLUCK_LANES Pairs load_line(const uint8_t* p) {
  const U8x64 bytes = load_bytes(p);
  return {{vreinterpretq_bf16_u8(bytes.v[0]), vreinterpretq_bf16_u8(bytes.v[1]),
           vreinterpretq_bf16_u8(bytes.v[2]), vreinterpretq_bf16_u8(bytes.v[3])}};
}
// Halves of a last column: the other one of each pair is zero.
POTLUCK_LANES Pairs load_halves(const uint8_t* p) {
  const I32x16 odd = as_i32(load_bf16(p));
  Pairs pairs;
  for (int i = 0; i < 4; ++i)
    pairs.v[i] = vreinterpretq_bf16_u32(vshrq_n_u32(vreinterpretq_u32_s32(odd.v[i]), 16));
  return pairs;
}
POTLUCK_LANES bfloat16x8_t splat_word(uint32_t two) {
  return vreinterpretq_bf16_u32(vdupq_n_u32(two));
}
POTLUCK_LANES bfloat16x8_t splat_pair(const uint16_t* x) {
  uint32_t two;
  __builtin_memcpy(&two, x, sizeof two);
  return splat_word(two);
}
POTLUCK_LANES F32x16 dot2(F32x16 acc, Pairs w, bfloat16x8_t x) {
  for (int i = 0; i < 4; ++i) acc.v[i] = vbfdotq_f32(acc.v[i], w.v[i], x);
  return acc;
}

template <int kPanels, int kTokens>
inline void tile(const LinearArgs& args, int64_t panel, int64_t token) {
  const int64_t columns = args.weight.columns;
  const int64_t stride = kPanelRows * columns * (int64_t)sizeof(uint16_t);
  const uint8_t* weights = args.weight.data + panel * stride;
  const uint16_t* x = args.input.bf16 + token * columns;

  F32x16 acc[kPanels][kTokens];
#pragma GCC unroll kUnroll
  for (int p = 0; p < kPanels; ++p)
#pragma GCC unroll kUnroll
    for (int t = 0; t < kTokens; ++t) acc[p][t] = splat(0.0f);
  int64_t k = 0;
  for (; k + layout::BF16::kPairColumns <= columns; k += layout::BF16::kPairColumns) {
#pragma GCC unroll kUnroll
    for (int p = 0; p < kPanels; ++p) {
      const Pairs w = load_line(weights + p * stride);
#pragma GCC unroll kUnroll
      for (int t = 0; t < kTokens; ++t)
        acc[p][t] = dot2(acc[p][t], w, splat_pair(x + t * columns + k));
    }
    weights += layout::kLineBytes;
  }
  if (k < columns)
#pragma GCC unroll kUnroll
    for (int p = 0; p < kPanels; ++p)
#pragma GCC unroll kUnroll
      for (int t = 0; t < kTokens; ++t)
        acc[p][t] = dot2(acc[p][t], load_halves(weights + p * stride),
                         splat_word(x[t * columns + k]));
#pragma GCC unroll kUnroll
  for (int p = 0; p < kPanels; ++p)
#pragma GCC unroll kUnroll
    for (int t = 0; t < kTokens; ++t) write(args, panel + p, token + t, acc[p][t]);
}

// The last `count` < kTokens + 1 tokens of one panel.
template <int kTokens>
inline void last_tokens(const LinearArgs& args, int64_t panel, int64_t token, int64_t count) {
  if (count == kTokens) return tile<1, kTokens>(args, panel, token);
  if constexpr (kTokens > 1) last_tokens<kTokens - 1>(args, panel, token, count);
}

}  // namespace

void linear_bf16(const LinearArgs& args, int64_t first_panel, int64_t end_panel) {
  int64_t panel = first_panel;
  if (args.num_tokens == 1)
    for (; panel + kPairPanels <= end_panel; panel += kPairPanels)
      tile<kPairPanels, 1>(args, panel, 0);
  for (; panel < end_panel; ++panel) {
    int64_t token = 0;
    for (; token + kPairTokens <= args.num_tokens; token += kPairTokens)
      tile<1, kPairTokens>(args, panel, token);
    last_tokens<kPairTokens - 1>(args, panel, token, args.num_tokens - token);
  }
}

}  // namespace i8mm
}  // namespace potluck
