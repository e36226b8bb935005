// out = weight x + bias for BF16 weights and activations, by `vdpbf16ps`. Included after the lanes
// of AVX-512.
//
// A pair line is one operand, two columns of a token in every lane the other. Every output element
// is one chain of instructions over its pairs in ascending order, whatever the tile, so that one
// token and many have the same bits; an instruction adds the odd column's product and then the even
// one's, each rounded once, and takes subnormals as zero (Intel SDM, VDPBF16PS).
#pragma once

#include "kernels/kernels.h"
#include "kernels/linear/layout.h"
#include "kernels/linear/tiles.h"
#include "kernels/linear/write.h"

namespace potluck {
namespace avx512_bf16 {

void linear_bf16(const LinearArgs& args, int64_t first_panel, int64_t end_panel);

namespace {

using namespace avx512;

struct Pair {
  __m512bh v;
};
POTLUCK_LANES Pair load_line(const uint8_t* p) { return {(__m512bh)_mm512_loadu_si512(p)}; }
// Halves of a last column: the other one of each pair is zero.
POTLUCK_LANES Pair load_halves(const uint8_t* p) {
  return {(__m512bh)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p))};
}
POTLUCK_LANES Pair splat_pair(const uint16_t* x) {
  int32_t two;
  __builtin_memcpy(&two, x, sizeof two);
  return {(__m512bh)_mm512_set1_epi32(two)};
}
POTLUCK_LANES Pair splat_last(uint16_t x) { return {(__m512bh)_mm512_set1_epi32(x)}; }
POTLUCK_LANES F32x16 dot2(F32x16 acc, Pair w, Pair x) {
  return {_mm512_dpbf16_ps(acc.v, w.v, x.v)};
}

template <int kPanels>
struct PairTile {
  template <int kTokens>
  static void run(const LinearArgs& args, int64_t panel, int64_t token);
};

template <int kPanels>
template <int kTokens>
void PairTile<kPanels>::run(const LinearArgs& args, int64_t panel, int64_t token) {
  const int64_t columns = args.weight.columns;
  const int64_t stride = panel_bytes(Format::BF16, columns);
  const uint8_t* weights = args.weight.data + panel * stride;
  const uint16_t* x = args.input.bf16 + token * columns;

  F32x16 acc[kPanels][kTokens];
#pragma GCC unroll kUnroll
  for (int p = 0; p < kPanels; ++p)
#pragma GCC unroll kUnroll
    for (int t = 0; t < kTokens; ++t) acc[p][t] = splat(0.0f);
  int64_t k = 0;
  for (; k + layout::BF16::kPairColumns <= columns; k += layout::BF16::kPairColumns) {
    Pair w[kPanels];
#pragma GCC unroll kUnroll
    for (int p = 0; p < kPanels; ++p) w[p] = load_line(weights + p * stride);
#pragma GCC unroll kUnroll
    for (int t = 0; t < kTokens; ++t) {
      const Pair pair = splat_pair(x + t * columns + k);
#pragma GCC unroll kUnroll
      for (int p = 0; p < kPanels; ++p) acc[p][t] = dot2(acc[p][t], w[p], pair);
    }
    weights += layout::kLineBytes;
  }
  if (k < columns)
#pragma GCC unroll kUnroll
    for (int p = 0; p < kPanels; ++p)
#pragma GCC unroll kUnroll
      for (int t = 0; t < kTokens; ++t)
        acc[p][t] = dot2(acc[p][t], load_halves(weights + p * stride),
                         splat_last(x[t * columns + k]));
#pragma GCC unroll kUnroll
  for (int p = 0; p < kPanels; ++p)
#pragma GCC unroll kUnroll
    for (int t = 0; t < kTokens; ++t) write(args, panel + p, token + t, acc[p][t]);
}

}  // namespace

void linear_bf16(const LinearArgs& args, int64_t first_panel, int64_t end_panel) {
  run_float_tiles<PairTile, kPairTokenTile>(args, first_panel, end_panel);
}

}  // namespace avx512_bf16
}  // namespace potluck
