// How tokens are divided into tiles. Included by bodies, after the lanes of an instruction set.
//
// A tile is kPanels x kTokens sums that stay in registers while its weights and activations pass
// by. Tokens that do not fill tiles are divided among them evenly: two tiles of four rather than
// one of six and one of two, which would wait for its few sums.
#pragma once

#include "kernels/kernels.h"

namespace potluck {
namespace POTLUCK_ISA {
namespace {

// Of `tokens`, with at most `most` in a tile.
struct TokenTiles {
  int64_t num_tokens, num_tiles;

  TokenTiles(int64_t tokens, int64_t most)
      : num_tokens(tokens), num_tiles((tokens + most - 1) / most) {}
  int64_t start(int64_t tile) const { return num_tokens * tile / num_tiles; }
  int64_t size(int64_t tile) const { return start(tile + 1) - start(tile); }
};

// Calls Tile::run<n>(arguments...) with n = count, which is at most kTokens.
template <class Tile, int kTokens, class... Arguments>
POTLUCK_LANES void run_tile(int64_t count, const Arguments&... arguments) {
  if (count == kTokens) return Tile::template run<kTokens>(arguments...);
  if constexpr (kTokens > 1) run_tile<Tile, kTokens - 1>(count, arguments...);
}

// Tiles of kPanels panels, one after the other; then those of single panels.
template <template <int> class Tile, int kPanels, int kTokens>
inline void run_panels(const LinearArgs& args, int64_t first_panel, int64_t end_panel) {
  const TokenTiles tiles(args.num_tokens, kTokens);
  int64_t panel = first_panel;
  for (; panel + kPanels <= end_panel; panel += kPanels)
    for (int64_t i = 0; i < tiles.num_tiles; ++i)
      run_tile<Tile<kPanels>, kTokens>(tiles.size(i), args, panel, tiles.start(i));
  if constexpr (kPanels > 1) run_panels<Tile, 1, kTokens>(args, panel, end_panel);
}

// Panels that a single token passes over together: its chain of fma would otherwise wait for each
// column.
constexpr int kSingleTokenPanels = 4;

template <template <int> class Tile>
inline void run_float_tiles(const LinearArgs& args, int64_t first_panel, int64_t end_panel) {
  if (args.num_tokens == 1)
    run_panels<Tile, kSingleTokenPanels, 1>(args, first_panel, end_panel);
  else
    run_panels<Tile, kFloatPanelTile, kFloatTokenTile>(args, first_panel, end_panel);
}

}  // namespace
}  // namespace POTLUCK_ISA
}  // namespace potluck
