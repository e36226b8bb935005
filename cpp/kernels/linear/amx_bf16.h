// Products of bf16 tiles, for weights of any source. Included after the lanes of AVX-512.
//
// A step is 32 columns: a tile of up to 16 tokens x 32, and for each panel a tile of 16 pairs of
// columns x 16 rows. The instruction fixes the order of additions within a step, steps are in
// ascending order, and an incomplete last step is padded with zeros: an output element is
// bit-identical for any number of tokens, whether alone (a tile of one row) or in a prompt.
#pragma once

#include "kernels/linear/amx_output.h"
#include "kernels/linear/amx_tiles.h"
#include "kernels/linear/amx_tokens.h"

namespace potluck {
namespace amx {
namespace {

constexpr int64_t kStepColumns = 32;
constexpr int64_t kStepTileBytes = kTileRows * kTileRowBytes;  // of a panel: 16 pair lines
// Two tiles of tokens and two panels at once: four sums, with every loaded tile used twice, so that
// a step of four products (64 cycles) waits for two tiles from the L1 cache and two from the L2
// cache (10 and 21 cycles each at 107 and 48 bytes per cycle).
constexpr int kTileBlock = 2;
constexpr int kPanelBlock = 2;
// Number of token tiles for which a panel's tiles are read, or generated, once.
constexpr int64_t kMaxTokenSplit = 16;
// Steps of 16 tokens that are packed together: 256 KB, of an L2 cache of 2 MB. Sums are loaded and
// stored, about 40 cycles, once per 16 or more steps.
constexpr int64_t kPackedSteps = 256;

// Columns [first_step * 32, first_step * 32 + num_columns) of a block of tokens.
struct PackedTokens {
  int64_t first_token;
  int64_t num_tokens;
  TokenSplit tiles;
  int64_t first_step;
  int64_t num_columns;

  int64_t num_steps() const { return (num_columns + kStepColumns - 1) / kStepColumns; }
};

struct BF16Scratch {
  alignas(64) uint8_t tokens[kPackedSteps * kTileRows * kTileRowBytes];  // [tile][step][row][64]
  alignas(64) float sums[kTileRows * kPanelRows];  // of a tile that does not fit in `out`
};

static TileConfig bf16_config(int64_t height) {
  TileConfig config = {};
  config.palette = 1;
  for (int tile = 0; tile < 8; ++tile) {
    config.rows[tile] = tile < 6 ? (uint8_t)height : kTileRows;
    config.row_bytes[tile] = kTileRowBytes;
  }
  return config;
}

static void pack_bf16_tokens(const LinearArgs& args, const PackedTokens& packed,
                             uint8_t* out) {
  const int64_t columns = args.weight.columns, height = packed.tiles.height;
  for (int64_t t = 0; t < packed.tiles.count; ++t) {
    const int64_t token = packed.first_token + t * height;
    const int64_t count = smaller(height, packed.first_token + packed.num_tokens - token);
    for (int64_t s = 0; s < packed.num_steps(); ++s) {
      const int64_t width = smaller(kStepColumns, packed.num_columns - s * kStepColumns);
      const uint16_t* from =
          args.input.bf16 + token * columns + (packed.first_step + s) * kStepColumns;
      pack_rows_of_tile<kTileRowBytes>((const uint8_t*)from, columns * 2, count, width * 2, height,
                                       out);
      out += height * kTileRowBytes;
    }
  }
}

// Initializes the sums in tile `tile`: those of earlier steps, or 0.
template <int tile>
void begin_sums(const OutputTile& output, int64_t height, bool is_first, BF16Scratch& scratch) {
  if (is_first) return zero_tile<tile>();
  if (output.num_tokens == height && output.num_rows() == kPanelRows)
    return load_tile<tile>(output.row(0), output.args.out_stride * (int64_t)sizeof(float));
  __builtin_memset(scratch.sums, 0, sizeof scratch.sums);
  output.read(scratch.sums);
  load_tile<tile>(scratch.sums, kTileRowBytes);
}

template <int tile>
void end_sums(const OutputTile& output, int64_t height, bool with_bias, BF16Scratch& scratch) {
  if (!with_bias && output.num_tokens == height && output.num_rows() == kPanelRows)
    return store_tile<tile>(output.row(0), output.args.out_stride * (int64_t)sizeof(float));
  store_tile<tile>(scratch.sums, kTileRowBytes);
  output.write(scratch.sums, with_bias);
}

// `tokens`: the first tile's steps; weights[p]: panel p's. Sums are in tiles 0 to 3, tokens in 4
// and 5, weights in 6 and 7.
template <int kTiles, int kPanels>
void multiply_tiles(const LinearArgs& args, const PackedTokens& packed, int64_t tile, int64_t panel,
                    const uint8_t* const* weights, BF16Scratch& scratch) {
  const int64_t height = packed.tiles.height, num_steps = packed.num_steps();
  const int64_t end_token = packed.first_token + packed.num_tokens;
  const auto output = [&](int t, int p) {
    const int64_t token = packed.first_token + (tile + t) * height;
    return OutputTile{args, panel + p, token, smaller(height, end_token - token)};
  };
  const bool is_first = packed.first_step == 0;
  begin_sums<0>(output(0, 0), height, is_first, scratch);
  if constexpr (kPanels > 1) begin_sums<1>(output(0, 1), height, is_first, scratch);
  if constexpr (kTiles > 1) begin_sums<2>(output(1, 0), height, is_first, scratch);
  if constexpr (kTiles > 1 && kPanels > 1)
    begin_sums<3>(output(1, 1), height, is_first, scratch);

  const int64_t tile_bytes = height * kTileRowBytes;
  const uint8_t* tokens = scratch.tokens + tile * num_steps * tile_bytes;
  for (int64_t s = 0; s < num_steps; ++s) {
    load_tile<4>(tokens + s * tile_bytes, kTileRowBytes);
    load_tile<6>(weights[0] + s * kStepTileBytes, kTileRowBytes);
    dot_bf16<0, 4, 6>();
    if constexpr (kPanels > 1) {
      load_tile<7>(weights[1] + s * kStepTileBytes, kTileRowBytes);
      dot_bf16<1, 4, 7>();
    }
    if constexpr (kTiles > 1) {
      load_tile<5>(tokens + (num_steps + s) * tile_bytes, kTileRowBytes);
      dot_bf16<2, 5, 6>();
      if constexpr (kPanels > 1) dot_bf16<3, 5, 7>();
    }
  }

  const bool is_last = packed.first_step * kStepColumns + packed.num_columns == args.weight.columns;
  const bool with_bias = is_last && args.bias;
  end_sums<0>(output(0, 0), height, with_bias, scratch);
  if constexpr (kPanels > 1) end_sums<1>(output(0, 1), height, with_bias, scratch);
  if constexpr (kTiles > 1) end_sums<2>(output(1, 0), height, with_bias, scratch);
  if constexpr (kTiles > 1 && kPanels > 1) end_sums<3>(output(1, 1), height, with_bias, scratch);
}

template <int kPanels>
void multiply_panels(const LinearArgs& args, const PackedTokens& packed, int64_t panel,
                     const uint8_t* const* weights, BF16Scratch& scratch) {
  int64_t tile = 0;
  for (; tile + kTileBlock <= packed.tiles.count; tile += kTileBlock)
    multiply_tiles<kTileBlock, kPanels>(args, packed, tile, panel, weights, scratch);
  if (tile < packed.tiles.count)
    multiply_tiles<1, kPanels>(args, packed, tile, panel, weights, scratch);
}

// Computes all tokens and the panels [first_panel, end_panel). `source.tiles(place, panel,
// first_step, num_columns)` returns a panel's tiles, at index `place` among those in use at once;
// an incomplete step is requested separately. Source::kMaxSteps is the maximum number of steps per
// request, a multiple of 16 up to kPackedSteps.
template <class Source>
void multiply_bf16(const LinearArgs& args, Source& source, int64_t first_panel,
                   int64_t end_panel) {
  BF16Scratch scratch;
  const TokenSplit all(args.num_tokens, 1);
  configure_tiles(bf16_config(all.height));
  const int64_t columns = args.weight.columns;
  const int64_t whole_steps = columns / kStepColumns;
  for (int64_t tile = 0; tile < all.count; tile += kMaxTokenSplit) {
    PackedTokens packed{tile * all.height, 0, all, 0, 0};
    packed.tiles.count = smaller(kMaxTokenSplit, all.count - tile);
    packed.num_tokens =
        smaller(packed.tiles.count * all.height, args.num_tokens - packed.first_token);
    const int64_t most = smaller(kPackedSteps / packed.tiles.count, Source::kMaxSteps);
    for (int64_t column = 0; column < columns; column += packed.num_columns) {
      packed.first_step = column / kStepColumns;
      packed.num_columns = packed.first_step < whole_steps
                               ? smaller(most, whole_steps - packed.first_step) * kStepColumns
                               : columns - column;
      pack_bf16_tokens(args, packed, scratch.tokens);
      for (int64_t panel = first_panel; panel < end_panel; panel += kPanelBlock) {
        const int64_t num_panels = smaller(kPanelBlock, end_panel - panel);
        const uint8_t* weights[kPanelBlock] = {};
        for (int64_t p = 0; p < num_panels; ++p)
          weights[p] = source.tiles((int)p, panel + p, packed.first_step, packed.num_columns);
        if (num_panels == kPanelBlock)
          multiply_panels<kPanelBlock>(args, packed, panel, weights, scratch);
        else
          multiply_panels<1>(args, packed, panel, weights, scratch);
      }
    }
  }
  release_tiles();
}

}  // namespace
}  // namespace amx
}  // namespace potluck
