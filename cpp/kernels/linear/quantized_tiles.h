// Products of quantized weights, by the lanes' products of quads. Included by bodies, after the lanes
// of an instruction set.
#pragma once

#include "kernels/linear/decode.h"
#include "kernels/linear/tiles.h"
#include "kernels/linear/write.h"

namespace potluck {
namespace POTLUCK_ISA {
namespace {

// Sums over a group of (v - kZero) * a, in each half of it where halves have scales.
template <class Weights>
struct GroupSum {
  static constexpr int kHalves = Weights::kHasHalfScales ? 2 : 1;
  Dot<Weights::kBits, Weights::kZero> half[kHalves];

  POTLUCK_LANES void start(const int8_t* a, int32_t sum_a) {
    if constexpr (kHalves == 2) {
      const int32_t first = sum_16(a);
      half[0].start(first);
      half[1].start(sum_a - first);
    } else {
      half[0].start(sum_a);
    }
  }
  // Quads i and i + 4, in the order of i.
  template <int i>
  POTLUCK_LANES void add_quads(QuadPair w, Quad first, Quad second) {
    half[0].template add<kHalves == 2 ? i : 2 * i>(w.first, first);
    half[kHalves - 1].template add<kHalves == 2 ? i : 2 * i + 1>(w.second, second);
  }
  // Times the half scales, where there are some. At most 32 * 128 * 127 without, 32 * 32 * 127 * 128
  // < 2^24 with them: exact as f32.
  POTLUCK_LANES F32x16 total(const GroupScales& scales) const {
    if constexpr (kHalves == 2)
      return to_f32(add(mul(half[0].sum(), scales.half_scale[0]),
                        mul(half[1].sum(), scales.half_scale[1])));
    else
      return to_f32(half[0].sum());
  }
};

// A part of what a tile computes with: the block and the group where it is, the tile's sums.
template <class Weights, int kTokens, int i>
POTLUCK_LANES void add_quads(const uint8_t* group, int64_t stride, const int8_t* a, int64_t columns,
                             GroupSum<Weights> (&sums)[kPanelTile][kTokens]) {
  QuadPair w[kPanelTile];
#pragma GCC unroll kUnroll
  for (int p = 0; p < kPanelTile; ++p) w[p] = Weights::template load_quads<i>(group + p * stride);
#pragma GCC unroll kUnroll
  for (int t = 0; t < kTokens; ++t) {
    const Quad first = splat_quad(a + t * columns + 4 * i);
    const Quad second = splat_quad(a + t * columns + 4 * i + 16);
#pragma GCC unroll kUnroll
    for (int p = 0; p < kPanelTile; ++p) sums[p][t].template add_quads<i>(w[p], first, second);
  }
}

template <class Weights>
struct QuantizedTile {
  template <int kTokens>
  static void run(const LinearArgs& args, int64_t panel, int64_t num_real_panels, int64_t token);
};

template <class Weights>
template <int kTokens>
void QuantizedTile<Weights>::run(const LinearArgs& args, int64_t panel, int64_t num_real_panels,
                                 int64_t token) {
  using L = typename Weights::Layout;
  const int64_t columns = args.weight.columns;
  const int64_t num_groups = columns / kGroupColumns;
  const int64_t num_blocks = num_groups / Weights::kGroupsPerBlock;
  const int64_t panel_bytes = num_blocks * L::kBlockBytes;
  const int64_t stride = num_real_panels == kPanelTile ? panel_bytes : 0;
  const uint8_t* block = args.weight.data + panel * panel_bytes;
  const int8_t* a = args.input.q + token * columns;
  const float* scales = args.input.scales + token * num_groups;
  const int32_t* sums = args.input.sums + token * num_groups;

  F32x16 acc[kPanelTile][kTokens];
#pragma GCC unroll kUnroll
  for (int p = 0; p < kPanelTile; ++p)
#pragma GCC unroll kUnroll
    for (int t = 0; t < kTokens; ++t) acc[p][t] = splat(0.0f);
  for (int64_t b = 0; b < num_blocks; ++b) {
    for (int64_t g = 0; g < Weights::kGroupsPerBlock; ++g) {
      const uint8_t* group = block + L::kGroups + g * L::kGroupBytes;
      GroupSum<Weights> total[kPanelTile][kTokens];
#pragma GCC unroll kUnroll
      for (int t = 0; t < kTokens; ++t)
#pragma GCC unroll kUnroll
        for (int p = 0; p < kPanelTile; ++p)
          total[p][t].start(a + t * columns, sums[t * num_groups]);
      add_quads<Weights, kTokens, 0>(group, stride, a, columns, total);
      add_quads<Weights, kTokens, 1>(group, stride, a, columns, total);
      add_quads<Weights, kTokens, 2>(group, stride, a, columns, total);
      add_quads<Weights, kTokens, 3>(group, stride, a, columns, total);
      GroupScales weight[kPanelTile];
#pragma GCC unroll kUnroll
      for (int p = 0; p < kPanelTile; ++p)
        Weights::load_scales(block + p * stride, g, weight[p]);
#pragma GCC unroll kUnroll
      for (int t = 0; t < kTokens; ++t) {
        const float scale = scales[t * num_groups];
#pragma GCC unroll kUnroll
        for (int p = 0; p < kPanelTile; ++p) {
          acc[p][t] = fma(total[p][t].total(weight[p]), mul(weight[p].scale, splat(scale)),
                          acc[p][t]);
          if constexpr (Weights::kHasMinimum)
            acc[p][t] = fma(weight[p].minimum, splat(scale * (float)sums[t * num_groups]),
                            acc[p][t]);
        }
      }
      a += kGroupColumns;
      ++scales;
      ++sums;
    }
    block += L::kBlockBytes;
  }
#pragma GCC unroll kUnroll
  for (int p = 0; p < kPanelTile; ++p)
    if (p < num_real_panels)
#pragma GCC unroll kUnroll
      for (int t = 0; t < kTokens; ++t) write(args, panel + p, token + t, acc[p][t]);
}

constexpr int64_t kPanelsInCacheBytes = 256 << 10;

template <class Weights>
void quantized(const LinearArgs& args, int64_t first_panel, int64_t end_panel) {
  constexpr int kTokens = Weights::kHasHalfScales ? kHalfScalesTokenTile : kTokenTile;
  const TokenTiles tiles(args.num_tokens, kTokens);
  const int64_t panel_bytes =
      args.weight.columns / (kGroupColumns * Weights::kGroupsPerBlock) * Weights::Layout::kBlockBytes;
  int64_t step = kPanelTile;
  if (tiles.num_tiles > 2)
    while ((step + kPanelTile) * panel_bytes <= kPanelsInCacheBytes) step += kPanelTile;
  for (int64_t start = first_panel; start < end_panel; start += step) {
    const int64_t end = start + step < end_panel ? start + step : end_panel;
    for (int64_t i = 0; i < tiles.num_tiles; ++i)
      for (int64_t panel = start; panel < end; panel += kPanelTile) {
        const int64_t rest = end - panel;
        run_tile<QuantizedTile<Weights>, kTokens>(
            tiles.size(i), args, panel, rest < kPanelTile ? rest : kPanelTile, tiles.start(i));
      }
  }
}

}  // namespace
}  // namespace POTLUCK_ISA
}  // namespace potluck
