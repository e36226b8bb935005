// Tiles of BF16 weights and activations that are multiplied two columns at a time. Included by
// bodies, after the lanes of an instruction set.
//
// A pair line of a panel is two columns of its 16 rows; the other operand has two columns of a
// token in every lane. Every output element is one chain of instructions over its pairs in
// ascending order, whatever the tile, so that results are bit-identical for any number of tokens.
#pragma once

#include "kernels/kernels.h"
#include "kernels/linear/layout.h"
#include "kernels/linear/tiles.h"
#include "kernels/linear/write.h"

namespace potluck {
namespace POTLUCK_ISA {
namespace {

// `Pairs` has load_line and load_halves for weights (the latter for a last column: the other half
// of each pair is zero), splat for a token's two columns as one word, and dot(sums, weights,
// token).
template <class Pairs>
struct PairTiles {
  template <int kPanels>
  struct Tile {
    template <int kTokens>
    static void run(const LinearArgs& args, int64_t panel, int64_t token);
  };
};

POTLUCK_LANES uint32_t load_pair(const uint16_t* x) {
  uint32_t two;
  __builtin_memcpy(&two, x, sizeof two);
  return two;
}

template <class Pairs>
template <int kPanels>
template <int kTokens>
void PairTiles<Pairs>::Tile<kPanels>::run(const LinearArgs& args, int64_t panel, int64_t token) {
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
#pragma GCC unroll kUnroll
    for (int p = 0; p < kPanels; ++p) {
      const auto w = Pairs::load_line(weights + p * stride);
#pragma GCC unroll kUnroll
      for (int t = 0; t < kTokens; ++t)
        acc[p][t] = Pairs::dot(acc[p][t], w, Pairs::splat(load_pair(x + t * columns + k)));
    }
    weights += layout::kLineBytes;
  }
  if (k < columns)
#pragma GCC unroll kUnroll
    for (int p = 0; p < kPanels; ++p)
#pragma GCC unroll kUnroll
      for (int t = 0; t < kTokens; ++t)
        acc[p][t] = Pairs::dot(acc[p][t], Pairs::load_halves(weights + p * stride),
                               Pairs::splat(x[t * columns + k]));
#pragma GCC unroll kUnroll
  for (int p = 0; p < kPanels; ++p)
#pragma GCC unroll kUnroll
    for (int t = 0; t < kTokens; ++t) write(args, panel + p, token + t, acc[p][t]);
}

}  // namespace
}  // namespace POTLUCK_ISA
}  // namespace potluck
