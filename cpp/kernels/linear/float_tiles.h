// Products of float weights. Included by bodies, after the lanes of an instruction set.
#pragma once

#include "kernels/linear/decode.h"
#include "kernels/linear/tiles.h"
#include "kernels/linear/write.h"

namespace potluck {
namespace POTLUCK_ISA {
namespace {

// Hides from the compiler that it has read from this pointer before, if kReloadsFloats is set and
// the sums of several tokens leave no registers for data that will be read again.
template <int kTokens, class T>
POTLUCK_LANES const T* again(const T* p) {
  if constexpr (kReloadsFloats && kTokens > 1) __asm__ volatile("" : "+r"(p));
  return p;
}

template <class Weights>
struct FloatTiles {
  static constexpr int kMostTokens = Weights::kStep == 1 ? kFloatTokenTile : kPairTokenTile;

  template <int kPanels>
  struct Tile {
    template <int kTokens>
    static void run(const LinearArgs& args, int64_t panel, int64_t token);
  };
};

template <class Weights>
template <int kPanels>
template <int kTokens>
void FloatTiles<Weights>::Tile<kPanels>::run(const LinearArgs& args, int64_t panel,
                                             int64_t token) {
  const int64_t columns = args.weight.columns;
  const int64_t stride = columns * kPanelRows * Weights::kBytes;
  const uint8_t* weights = args.weight.data + panel * stride;
  const float* x = args.input.x + token * columns;

  F32x16 acc[kPanels][kTokens];
#pragma GCC unroll kUnroll
  for (int p = 0; p < kPanels; ++p)
#pragma GCC unroll kUnroll
    for (int t = 0; t < kTokens; ++t) acc[p][t] = splat(0.0f);
  int64_t k = 0;
  for (; k + Weights::kStep <= columns; k += Weights::kStep) {
#pragma GCC unroll kUnroll
    for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll kUnroll
      for (int i = 0; i < Weights::kStep; ++i) {
        const F32x16 w = Weights::load_step(again<kTokens>(weights) + p * stride, i);
        const float* column = x + k + i;
#pragma GCC unroll kUnroll
        for (int t = 0; t < kTokens; ++t)
          acc[p][t] = fma(w, splat(again<kTokens>(column)[t * columns]), acc[p][t]);
      }
    }
    weights += Weights::kStep * kPanelRows * Weights::kBytes;
  }
  if constexpr (Weights::kStep > 1) {
    if (k < columns)
#pragma GCC unroll kUnroll
      for (int p = 0; p < kPanels; ++p) {
        const F32x16 w = Weights::load_column(weights + p * stride);
#pragma GCC unroll kUnroll
        for (int t = 0; t < kTokens; ++t) acc[p][t] = fma(w, splat(x[t * columns + k]), acc[p][t]);
      }
  }
#pragma GCC unroll kUnroll
  for (int p = 0; p < kPanels; ++p)
#pragma GCC unroll kUnroll
    for (int t = 0; t < kTokens; ++t) write(args, panel + p, token + t, acc[p][t]);
}

}  // namespace
}  // namespace POTLUCK_ISA
}  // namespace potluck
