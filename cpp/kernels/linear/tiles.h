// How panels and tokens are divided into tiles. Included by bodies, after the lanes of an
// instruction set.
//
// A tile is kPanels x kTokens sums that stay in registers while its weights and activations stream
// through. Items that do not fill tiles are divided evenly: eight tokens are two tiles of four
// rather than one of six and one of two, whose few sums would not hide the latency.
#pragma once

#include "kernels/kernels.h"

namespace potluck {
namespace POTLUCK_ISA {
namespace {

// Divides `total` tokens or panels into tiles of at most `most`, whose sizes differ by at most one.
struct Tiles {
  int64_t total, num_tiles;

  Tiles(int64_t total, int64_t most) : total(total), num_tiles((total + most - 1) / most) {}
  int64_t start(int64_t tile) const { return total * tile / num_tiles; }
  int64_t size(int64_t tile) const { return start(tile + 1) - start(tile); }
};

// Calls Tile::run<n>(arguments...) with n = count, which is from kLeast to kMost.
template <class Tile, int kMost, int kLeast = 1, class... Arguments>
POTLUCK_LANES void run_tile(int64_t count, const Arguments&... arguments) {
  if (count == kMost) return Tile::template run<kMost>(arguments...);
  if constexpr (kMost > kLeast) run_tile<Tile, kMost - 1, kLeast>(count, arguments...);
}

// Number of panels that some tokens pass over together: as many as their sums fit in registers,
// since with few chains of fma each column would wait, but not more, since each is another stream
// of memory.
constexpr int kMostFloatPanels = 4;
constexpr int float_panels(int64_t num_tokens, int most_tokens) {
  const int64_t fit = kFloatPanelTile * most_tokens / num_tokens;
  return fit < kMostFloatPanels ? (int)fit : kMostFloatPanels;
}

// Tile<p>::run<kTokens>, for any number of panels p.
template <template <int> class Tile, int kTokens>
struct PanelsOfTokens {
  template <int kPanels>
  static void run(const LinearArgs& args, int64_t panel, int64_t token) {
    Tile<kPanels>::template run<kTokens>(args, panel, token);
  }
};

template <template <int> class Tile, int kMostTokens>
struct FloatPanels {
  template <int kTokens>
  static void run(const LinearArgs& args, int64_t first_panel, int64_t end_panel, int64_t token) {
    constexpr int kPanels = float_panels(kTokens, kMostTokens);
    const Tiles panels(end_panel - first_panel, kPanels);
    for (int64_t i = 0; i < panels.num_tiles; ++i)
      run_tile<PanelsOfTokens<Tile, kTokens>, kPanels>(panels.size(i), args,
                                                       first_panel + panels.start(i), token);
  }
};

// The loop over panels is outside, so that a panel comes from memory once and from the cache for
// the other tiles.
template <template <int> class Tile, int kMostTokens>
inline void run_float_tiles(const LinearArgs& args, int64_t first_panel, int64_t end_panel) {
  if (args.num_tokens == 0) return;
  const Tiles tokens(args.num_tokens, kMostTokens);
  const int64_t fewest_tokens = tokens.size(0);
  const Tiles panels(end_panel - first_panel, float_panels(fewest_tokens, kMostTokens));
  for (int64_t p = 0; p < panels.num_tiles; ++p) {
    const int64_t start = first_panel + panels.start(p);
    for (int64_t i = 0; i < tokens.num_tiles; ++i)
      run_tile<FloatPanels<Tile, kMostTokens>, kMostTokens>(
          tokens.size(i), args, start, start + panels.size(p), tokens.start(i));
  }
}

}  // namespace
}  // namespace POTLUCK_ISA
}  // namespace potluck
