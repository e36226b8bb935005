// Products of quantized weights, by the lanes' products of quads. Included by bodies, after the
// lanes of an instruction set.
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
  // Times the half scales, where there are some. At most 32 * 128 * 127 without them, and
  // 32 * 32 * 127 * 128 < 2^24 with them: exact as f32.
  POTLUCK_LANES F32x16 total(const GroupScales& scales) const {
    if constexpr (kHalves == 2)
      return to_f32(add(mul(half[0].sum(), scales.half_scale[0]),
                        mul(half[1].sum(), scales.half_scale[1])));
    else
      return to_f32(half[0].sum());
  }
};

// What the minimum is multiplied with where each half has a factor of its own: at most
// 2 * 15 * 16 * 127, exact as f32.
POTLUCK_LANES F32x16 minimum_factor(const GroupScales& scales, const int8_t* a, int32_t sum_a) {
  const int32_t first = sum_16(a);
  return to_f32(add(mul(scales.half_minimum[0], splat_i32(first)),
                    mul(scales.half_minimum[1], splat_i32(sum_a - first))));
}

// Quads i and i + 4 of a group, for all panels and tokens of a tile.
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

// What a tile asks for meanwhile, of the bytes that lie so far ahead of those it reads: every
// so-many-th line of 64 bytes, from `first_line` on. What lies beyond the last panel does no harm.
struct Ahead {
  int64_t num_bytes, first_line, every;
};

template <class Weights>
POTLUCK_LANES void prefetch(const uint8_t* block, int64_t group, const Ahead& ahead) {
  constexpr int64_t kBytes = Weights::Layout::kBlockBytes / Weights::kGroupsPerBlock;
  constexpr int64_t kLines = (kBytes + layout::kLineBytes - 1) / layout::kLineBytes;
  const uint8_t* start = block + ahead.num_bytes + group * kBytes;
  for (int64_t i = ahead.first_line; i < kLines; i += ahead.every)
    __builtin_prefetch(start + i * layout::kLineBytes, 0, 2);
}

// A tile of kPanelTile panels. Where only one of two is left it stands for both, and is written
// once.
template <class Weights>
struct QuantizedTile {
  template <int kTokens>
  static void run(const LinearArgs& args, int64_t panel, int64_t num_real_panels, int64_t token,
                  const Ahead& ahead);
};

template <class Weights>
template <int kTokens>
void QuantizedTile<Weights>::run(const LinearArgs& args, int64_t panel, int64_t num_real_panels,
                                 int64_t token, const Ahead& ahead) {
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
      for (int p = 0; p < kPanelTile; ++p) prefetch<Weights>(block + p * stride, g, ahead);
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
          if constexpr (Weights::kHasHalfMinimums)
            acc[p][t] = fma(minimum_factor(weight[p], a + t * columns, sums[t * num_groups]),
                            mul(weight[p].minimum, splat(scale)), acc[p][t]);
          else if constexpr (Weights::kHasMinimum)
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

// Panels that the tiles of many tokens pass over in turn: these and the next ones, which are
// prefetched meanwhile, are in the second cache (512 KB or more), a tile's activations in the
// first.
constexpr int64_t kPanelsInCacheBytes = 256 << 10;
// Up to so many tiles pass over each kPanelTile panels in turn, so that a batch of sequences
// computes while its weights come from memory.
constexpr int64_t kFewTiles = 3;

// Every panel comes from memory once. While the tiles pass over some panels, each asks for its
// share of the next ones. With that one core reads Q4_K for one token a third faster than with a
// prefetch of 4 KB ahead, and for eight tokens twice as fast as with none (Zen 5).
template <class Weights>
void quantized(const LinearArgs& args, int64_t first_panel, int64_t end_panel) {
  constexpr int kTokens = Weights::kHasHalfScales ? kHalfScalesTokenTile : kTokenTile;
  const Tiles tiles(args.num_tokens, kTokens);
  const int64_t panel_bytes = args.weight.columns / (kGroupColumns * Weights::kGroupsPerBlock) *
                              Weights::Layout::kBlockBytes;
  int64_t step = kPanelTile;
  if (tiles.num_tiles > kFewTiles)
    while ((step + kPanelTile) * panel_bytes <= kPanelsInCacheBytes) step += kPanelTile;
  for (int64_t start = first_panel; start < end_panel; start += step) {
    const int64_t end = start + step < end_panel ? start + step : end_panel;
    for (int64_t i = 0; i < tiles.num_tiles; ++i)
      for (int64_t panel = start; panel < end; panel += kPanelTile) {
        const int64_t rest = end - panel;
        run_tile<QuantizedTile<Weights>, kTokens>(
            tiles.size(i), args, panel, rest < kPanelTile ? rest : kPanelTile, tiles.start(i),
            Ahead{step * panel_bytes, i, tiles.num_tiles});
      }
  }
}

}  // namespace
}  // namespace POTLUCK_ISA
}  // namespace potluck
