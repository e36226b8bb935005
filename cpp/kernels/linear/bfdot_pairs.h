// out = weight x + bias for BF16 weights and activations, by BFDOT. Included after the lanes of
// Advanced SIMD.
//
// An instruction adds the two products, then their sum to the element; products and additions are
// rounded to odd, and subnormals are treated as zero (Arm ARM, BFDotAdd where FPCR.EBF is 0, as on
// Linux: the same on every core).
#pragma once

#include "kernels/linear/pair_tiles.h"

namespace potluck {
namespace i8mm {

void linear_bf16(const LinearArgs& args, int64_t first_panel, int64_t end_panel);

namespace {

using namespace neon;

// Tokens of a panel, or as many panels of fewer tokens: 24 of the 32 registers hold sums, 4 hold a
// line and one the pair of a token.
constexpr int kBfdotTokens = 6;

struct Line {
  bfloat16x8_t v[4];  // of four rows each
};

struct Pairs {
  static POTLUCK_LANES Line load_line(const uint8_t* p) {
    const U8x64 bytes = load_bytes(p);
    return {{vreinterpretq_bf16_u8(bytes.v[0]), vreinterpretq_bf16_u8(bytes.v[1]),
             vreinterpretq_bf16_u8(bytes.v[2]), vreinterpretq_bf16_u8(bytes.v[3])}};
  }
  static POTLUCK_LANES Line load_halves(const uint8_t* p) {
    const I32x16 odd = as_i32(load_bf16(p));
    Line line;
    for (int i = 0; i < 4; ++i)
      line.v[i] = vreinterpretq_bf16_u32(vshrq_n_u32(vreinterpretq_u32_s32(odd.v[i]), 16));
    return line;
  }
  static POTLUCK_LANES bfloat16x8_t splat(uint32_t two) {
    return vreinterpretq_bf16_u32(vdupq_n_u32(two));
  }
  static POTLUCK_LANES F32x16 dot(F32x16 acc, Line w, bfloat16x8_t x) {
    for (int i = 0; i < 4; ++i) acc.v[i] = vbfdotq_f32(acc.v[i], w.v[i], x);
    return acc;
  }
};

}  // namespace

void linear_bf16(const LinearArgs& args, int64_t first_panel, int64_t end_panel) {
  run_float_tiles<PairTiles<Pairs>::Tile, kBfdotTokens>(args, first_panel, end_panel);
}

}  // namespace i8mm
}  // namespace potluck
