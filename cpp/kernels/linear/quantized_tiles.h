// Products of quantized weights, using the lanes' products of quads. Included by bodies, after the
// lanes of an instruction set.
#pragma once

#include "kernels/linear/decode.h"
#include "kernels/linear/tiles.h"
#include "kernels/linear/write.h"

namespace potluck {
namespace POTLUCK_ISA {
namespace {

constexpr int kUnrollTokens = kUnroll == 1 ? 1 : 16;

// Sums over a group of (v - kZero) * a, separately for each half if halves have scales.
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
  // Times the half scales, if there are any. At most 32 * 128 * 127 without them, and 32 * 32 * 127
  // * 128 < 2^24 with them: exact as f32.
  POTLUCK_LANES F32x16 total(const GroupScales& scales) const {
    if constexpr (kHalves == 2)
      return to_f32(add(mul(half[0].sum(), scales.half_scale[0]),
                        mul(half[1].sum(), scales.half_scale[1])));
    else
      return to_f32(half[0].sum());
  }
};

// The factor of the minimum if each half has one: at most 2 * 15 * 16 * 127, exact as f32.
POTLUCK_LANES F32x16 minimum_factor(const GroupScales& scales, const int8_t* a, int32_t sum_a) {
  const int32_t first = sum_16(a);
  return to_f32(add(mul(scales.half_minimum[0], splat_i32(first)),
                    mul(scales.half_minimum[1], splat_i32(sum_a - first))));
}

// Quads i and i + 4 of a group, for all panels and tokens of a tile.
template <class Weights, int kPanels, int kTokens, int i>
POTLUCK_LANES void add_quads(const uint8_t* group, int64_t stride, const int8_t* a, int64_t columns,
                             GroupSum<Weights> (&sums)[kPanels][kTokens]) {
  QuadPair w[kPanels];
#pragma GCC unroll kUnroll
  for (int p = 0; p < kPanels; ++p) w[p] = Weights::template load_quads<i>(group + p * stride);
#pragma GCC unroll kUnrollTokens
  for (int t = 0; t < kTokens; ++t) {
    const Quad first = splat_quad(a + t * columns + 4 * i);
    const Quad second = splat_quad(a + t * columns + 4 * i + 16);
#pragma GCC unroll kUnroll
    for (int p = 0; p < kPanels; ++p) sums[p][t].template add_quads<i>(w[p], first, second);
  }
}

// The lines that a tile prefetches, at this distance ahead of those it reads: one in every so many
// lines of 64 bytes, starting with `first_line`. Prefetching beyond the last panel is harmless.
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

// A tile of kPanels panels. If only one of two is left, it is computed twice and written once.
template <class Weights, int kPanels>
struct QuantizedTile {
  template <int kTokens>
  static void run(const LinearArgs& args, int64_t panel, int64_t num_real_panels, int64_t token,
                  const Ahead& ahead);
};

template <class Weights, int kPanels>
template <int kTokens>
void QuantizedTile<Weights, kPanels>::run(const LinearArgs& args, int64_t panel,
                                          int64_t num_real_panels, int64_t token,
                                          const Ahead& ahead) {
  using L = typename Weights::Layout;
  const int64_t columns = args.weight.columns;
  const int64_t num_groups = columns / kGroupColumns;
  const int64_t num_blocks = num_groups / Weights::kGroupsPerBlock;
  const int64_t panel_bytes = num_blocks * L::kBlockBytes;
  const int64_t stride = num_real_panels == kPanels ? panel_bytes : 0;
  const uint8_t* block = args.weight.data + panel * panel_bytes;
  const int8_t* a = args.input.q + token * columns;
  const float* scales = args.input.scales + token * num_groups;
  const int32_t* sums = args.input.sums + token * num_groups;

  F32x16 acc[kPanels][kTokens];
#pragma GCC unroll kUnroll
  for (int p = 0; p < kPanels; ++p)
#pragma GCC unroll kUnrollTokens
    for (int t = 0; t < kTokens; ++t) acc[p][t] = splat(0.0f);
  for (int64_t b = 0; b < num_blocks; ++b) {
    for (int64_t g = 0; g < Weights::kGroupsPerBlock; ++g) {
      const uint8_t* group = block + L::kGroups + g * L::kGroupBytes;
      for (int p = 0; p < kPanels; ++p) prefetch<Weights>(block + p * stride, g, ahead);
      GroupSum<Weights> total[kPanels][kTokens];
#pragma GCC unroll kUnrollTokens
      for (int t = 0; t < kTokens; ++t)
#pragma GCC unroll kUnroll
        for (int p = 0; p < kPanels; ++p)
          total[p][t].start(a + t * columns, sums[t * num_groups]);
      add_quads<Weights, kPanels, kTokens, 0>(group, stride, a, columns, total);
      add_quads<Weights, kPanels, kTokens, 1>(group, stride, a, columns, total);
      add_quads<Weights, kPanels, kTokens, 2>(group, stride, a, columns, total);
      add_quads<Weights, kPanels, kTokens, 3>(group, stride, a, columns, total);
      GroupScales weight[kPanels];
#pragma GCC unroll kUnroll
      for (int p = 0; p < kPanels; ++p)
        Weights::load_scales(block + p * stride, g, weight[p]);
#pragma GCC unroll kUnrollTokens
      for (int t = 0; t < kTokens; ++t) {
        const float scale = scales[t * num_groups];
#pragma GCC unroll kUnroll
        for (int p = 0; p < kPanels; ++p) {
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
  for (int p = 0; p < kPanels; ++p)
    if (p < num_real_panels)
#pragma GCC unroll kUnrollTokens
      for (int t = 0; t < kTokens; ++t) write(args, panel + p, token + t, acc[p][t]);
}

// Panels that the tiles of many tokens pass over in turn: these and the next ones, which are being
// prefetched, are in the L2 cache (512 KB or more), and a tile's activations in the L1 cache.
constexpr int64_t kPanelsInCacheBytes = 256 << 10;
// Up to this many tiles pass over each kPanelTile panels in turn, so that a batch of sequences
// computes while its weights come from memory.
constexpr int64_t kFewTiles = 3;

// Tiles of kPanels panels, of at most kTokens tokens each, pass over the panels.
//
// Every panel comes from memory once. While the tiles pass over some panels, each prefetches its
// share of the next ones. This way, one core reads Q4_K for one token a third faster than with a
// prefetch 4 KB ahead, and for eight tokens twice as fast as without any (Zen 5).
template <class Weights, int kPanels, int kTokens, int kLeastTokens = 1>
POTLUCK_LANES void pass_over(const LinearArgs& args, int64_t first_panel, int64_t end_panel) {
  const Tiles tiles(args.num_tokens, kTokens);
  const int64_t panel_bytes = args.weight.columns / (kGroupColumns * Weights::kGroupsPerBlock) *
                              Weights::Layout::kBlockBytes;
  int64_t step = kPanels;
  if (tiles.num_tiles > kFewTiles)
    while ((step + kPanels) * panel_bytes <= kPanelsInCacheBytes) step += kPanels;
  for (int64_t start = first_panel; start < end_panel; start += step) {
    const int64_t end = start + step < end_panel ? start + step : end_panel;
    for (int64_t i = 0; i < tiles.num_tiles; ++i)
      for (int64_t panel = start; panel < end; panel += kPanels) {
        const int64_t rest = end - panel;
        run_tile<QuantizedTile<Weights, kPanels>, kTokens, kLeastTokens>(
            tiles.size(i), args, panel, rest < kPanels ? rest : kPanels, tiles.start(i),
            Ahead{step * panel_bytes, i, tiles.num_tiles});
      }
  }
}

template <class Weights>
void quantized(const LinearArgs& args, int64_t first_panel, int64_t end_panel) {
  constexpr int kTokens = Weights::kHasHalfScales ? kHalfScalesTokenTile : kTokenTile;
  // A panel is unpacked once for all tokens of a tile. A wide tile has one panel.
  if constexpr (kWideTokenTile > kTokens) {
    if (args.num_tokens > kTokens && args.num_tokens <= kWideTokenTile)
      return pass_over<Weights, 1, kWideTokenTile, kTokens + 1>(args, first_panel, end_panel);
  }
  pass_over<Weights, kPanelTile, kTokens>(args, first_panel, end_panel);
}

}  // namespace
}  // namespace POTLUCK_ISA
}  // namespace potluck
