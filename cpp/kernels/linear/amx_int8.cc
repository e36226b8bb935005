// Quantized weights on AMX's 8-bit products: Intel Sapphire Rapids (2023) and later. The results
// are bit-identical to those of body.h: the exact integer sum of a group, then one fma per group in
// ascending order.
//
// A panel's group is unpacked once into a tile of signed bytes (8 lines, that is 8 rows of 4
// columns of 16 weight rows) and multiplied with tiles of up to 16 tokens. Each product is one
// group of 32 columns, stored as int32, and scaled in AVX-512 registers that hold the sums of the
// whole row range: 16 tokens x 16 rows x f32.
//
// Figures here and in the neighbouring files are from prototypes on one Sapphire Rapids core: 17
// cycles for a product of 16 tokens, 31 for scaling it, 68 with loads and stores.
#include "simd/lanes_avx512.h"

#include "kernels/linear/amx_group.h"
#include "kernels/linear/amx_output.h"
#include "kernels/linear/amx_tiles.h"
#include "kernels/linear/amx_tokens.h"
#include "kernels/variants.h"

POTLUCK_DECLARE_KERNELS(avx512)

namespace potluck {
namespace amx {
namespace {

using namespace avx512;

// Groups that are unpacked together: 8 KB of tiles, a sixth of the L1 cache, for up to kMaxTiles
// products each. A multiple of the eight groups of the largest blocks.
constexpr int64_t kUnpackedGroups = 16;
constexpr int64_t kGroupTileBytes = layout::kQuadsPerGroup * layout::kLineBytes;
// Number of token tiles for which a group is unpacked once. Unpacking takes about 16 cycles, a
// product with scaling 60: with 8 tiles, unpacking is 3 % of the total.
constexpr int64_t kMaxTiles = 8;
// (Token tile, group) pairs that are packed together: 256 KB, which together with their scales fit
// well within a 2 MB L2 cache. Between such blocks, sums are stored in the output, whose rows map
// to few sets of the L1 cache: with blocks of 64 KB, everything except the tile instructions took
// 1.3 to 1.5 times as long for 512 tokens (on Zen 5, 2048 columns).
constexpr int64_t kPackedTiles = 4 * kMaxTiles * kUnpackedGroups;
// Maximum number of products in flight. A tile that is stored right after its product waits for it
// (33 cycles), but three products later it does not (24.6).
constexpr int kRing = 4;
constexpr int kStoreDelay = 3;

// Tiles by number: products in 0 to 3, tokens in 4 and 5, weights in 6 and 7.
static_assert(kRing == 4, "tiles 0 to 3");

struct Scratch {
  alignas(64) uint8_t tokens[kPackedTiles * kTileRows * kGroupColumns];  // [tile][group][row][32]
  float scales[kPackedTiles * kTileRows];                                // [tile][group][row]
  // scale * sum, or where halves have minimums the sums of the halves.
  float scaled_sums[kPackedTiles * kTileRows];                           // likewise
  float second_sums[kPackedTiles * kTileRows];                           // likewise
  alignas(64) uint8_t weights[kUnpackedGroups * kGroupTileBytes];        // [group][quad][row][4]
  float weight_scales[kUnpackedGroups][kPanelRows];
  float minimums[kUnpackedGroups][kPanelRows];
  float half_scales[kUnpackedGroups][2][kPanelRows];
  float half_minimums[kUnpackedGroups][2][kPanelRows];
  alignas(64) int32_t products[kRing][kTileRows * kPanelRows];           // [row][weight row]
  float sums[kMaxTiles][kTileRows * kPanelRows];                         // likewise
};

TileConfig make_config(int64_t height, bool halves) {
  const int columns = halves ? kGroupColumns / 2 : kGroupColumns;
  TileConfig config = {};
  config.palette = 1;
  for (int tile = 0; tile < kRing; ++tile) {
    config.rows[tile] = (uint8_t)height;
    config.row_bytes[tile] = kPanelRows * 4;
  }
  for (int tile = 4; tile < 6; ++tile) {
    config.rows[tile] = (uint8_t)height;
    config.row_bytes[tile] = (uint16_t)columns;
  }
  for (int tile = 6; tile < 8; ++tile) {
    config.rows[tile] = (uint8_t)(columns / 4);
    config.row_bytes[tile] = layout::kLineBytes;
  }
  return config;
}

// A block of tokens and a range of groups, in scratch memory.
struct Packed {
  int64_t first_token;
  int64_t num_tokens;
  TokenSplit tiles;
  int64_t first_group;
  int64_t num_groups;
};

template <bool has_half_minimums>
void pack_tokens(const LinearArgs& args, const Packed& packed, Scratch& scratch) {
  const int64_t columns = args.weight.columns, all_groups = columns / kGroupColumns;
  const int64_t height = packed.tiles.height;
  for (int64_t t = 0; t < packed.tiles.count; ++t) {
    const int64_t token = packed.first_token + t * height;
    const int64_t count = smaller(height, packed.first_token + packed.num_tokens - token);
    for (int64_t g = 0; g < packed.num_groups; ++g) {
      const int64_t group = packed.first_group + g;
      const int64_t at = (t * packed.num_groups + g) * height;
      pack_rows_of_tile<kGroupColumns>(
          (const uint8_t*)args.input.q + token * columns + group * kGroupColumns, columns, count,
          kGroupColumns, height, scratch.tokens + at * kGroupColumns);
      for (int64_t r = 0; r < height; ++r) {
        const int64_t from = (token + r) * all_groups + group;
        const float scale = r < count ? args.input.scales[from] : 0.0f;
        scratch.scales[at + r] = scale;
        if constexpr (has_half_minimums) {
          const int8_t* a = args.input.q + (token + r) * columns + group * kGroupColumns;
          const int32_t first = r < count ? sum_16(a) : 0;
          scratch.scaled_sums[at + r] = (float)first;
          scratch.second_sums[at + r] = r < count ? (float)(args.input.sums[from] - first) : 0.0f;
        } else {
          scratch.scaled_sums[at + r] = r < count ? scale * (float)args.input.sums[from] : 0.0f;
        }
      }
    }
  }
}

// Data that is prefetched while groups are multiplied, so that it is in the L2 cache when it is
// unpacked: the same number of groups, a few lines with each product, since only about 16 lines can
// be in flight. Requesting all at once made reading and computing sequential: 16 tokens of Q6_K
// took 78 ns per group of a panel instead of 58 (Sapphire Rapids).
class Ahead {
 public:
  Ahead(const uint8_t* start, int64_t group_bytes)
      : start_(start), next_(start), group_bytes_(group_bytes) {}

  POTLUCK_LANES void ask(int64_t step, int64_t steps_per_group) {
    const uint8_t* end = start_ + (step + 1) * group_bytes_ / steps_per_group;
    for (; next_ < end; next_ += layout::kLineBytes) __builtin_prefetch(next_, 0, 2);
  }

 private:
  const uint8_t* start_;
  const uint8_t* next_;
  int64_t group_bytes_;
};
// How many groups ahead of unpacking they are prefetched.
constexpr int64_t kAheadGroups = 2 * kUnpackedGroups;

// Unpacks groups [first, first + count) of a panel, where `count` is at most kUnpackedGroups; the
// groups to unpack next are prefetched, so that they are in the L1 cache when these have been
// multiplied.
template <class Weights>
void unpack(const uint8_t* panel, int64_t first, int64_t count, Scratch& scratch) {
  const U8x64 zero = {_mm512_set1_epi8((char)Weights::kZero)};
  constexpr int64_t kAhead =
      kUnpackedGroups / Weights::kGroupsPerBlock * Weights::Layout::kBlockBytes;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t block = (first + i) / Weights::kGroupsPerBlock;
    const uint8_t* next = panel + block * Weights::Layout::kBlockBytes + kAhead +
                          (first + i) % Weights::kGroupsPerBlock * Weights::Layout::kGroupBytes;
    for (int64_t b = 0; b < Weights::Layout::kGroupBytes; b += layout::kLineBytes)
      __builtin_prefetch(next + b);
    const Group group = load_group<Weights>(panel, first + i);
    uint8_t* out = scratch.weights + i * kGroupTileBytes;
    for (int q = 0; q < layout::kQuadsPerGroup; ++q)
      _mm512_store_si512(out + q * layout::kLineBytes, _mm512_sub_epi8(group.quad[q].v, zero.v));
    store(scratch.weight_scales[i], group.scales.scale);
    if (Weights::kHasMinimum) store(scratch.minimums[i], group.scales.minimum);
    if (Weights::kHasHalfScales)
      for (int h = 0; h < 2; ++h)
        store(scratch.half_scales[i][h], to_f32(group.scales.half_scale[h]));
    if (Weights::kHasHalfMinimums)
      for (int h = 0; h < 2; ++h)
        store(scratch.half_minimums[i][h], to_f32(group.scales.half_minimum[h]));
  }
}

// Adds the products of one tile of tokens with the unpacked groups to `sums`. With half scales, a
// group is two products of 16 columns each.
template <bool has_minimum, bool has_half_scales, int kHeight>
class TileProduct {
 public:
  TileProduct(Scratch& scratch, const uint8_t* tokens, const float* scales,
              const float* scaled_sums, int64_t num_groups, float* sums, Ahead ahead)
      : scratch_(scratch),
        tokens_(tokens),
        scales_(scales),
        scaled_sums_(scaled_sums),
        num_steps_(num_groups * kStepsPerGroup),
        sums_(sums),
        ahead_(ahead) {}

  // Not inlined, because the formats share it.
  __attribute__((noinline)) void run() {
    F32x16 acc[kHeight];
#pragma GCC unroll 16
    for (int r = 0; r < kHeight; ++r) acc[r] = load(sums_ + r * kPanelRows);
    for (int64_t s = 0; s < num_steps_ + kStoreDelay + 1; s += kRing) {
      step<0>(s, acc);
      step<1>(s + 1, acc);
      step<2>(s + 2, acc);
      step<3>(s + 3, acc);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kHeight; ++r) store(sums_ + r * kPanelRows, acc[r]);
  }

 private:
  static constexpr int kStepsPerGroup = has_half_scales ? 2 : 1;
  static constexpr int kStepColumns = (int)kGroupColumns / kStepsPerGroup;

  // `place` is s modulo kRing. Starts product s, stores the one kStoreDelay earlier, and scales the
  // one stored in the previous step.
  template <int place>
  POTLUCK_LANES void step(int64_t s, F32x16 (&acc)[kHeight]) {
    constexpr int kTokens = 4 + place % 2, kWeights = 6 + place % 2;
    constexpr int kStored = (place + kRing - kStoreDelay) % kRing;
    if (s < num_steps_) {
      const int64_t group = s / kStepsPerGroup, half = s % kStepsPerGroup;
      ahead_.ask(s, kStepsPerGroup);
      load_tile<kTokens>(tokens_ + group * kHeight * kGroupColumns + half * kStepColumns,
                         kGroupColumns);
      load_tile<kWeights>(scratch_.weights + s * (kStepColumns / 4) * layout::kLineBytes,
                          layout::kLineBytes);
      zero_tile<place>();
      dot_i8<place, kTokens, kWeights>();
    }
    const int64_t stored = s - kStoreDelay;
    if (stored >= 0 && stored < num_steps_)
      store_tile<kStored>(scratch_.products[kStored], kPanelRows * 4);
    const int64_t last = stored - 1;
    if (last >= 0 && last < num_steps_ && (last + 1) % kStepsPerGroup == 0)
      scale(last / kStepsPerGroup, scratch_.products[place],
            scratch_.products[(place + kRing - 1) % kRing], acc);
  }

  // `product` is the last one of the group, `before` that before it.
  POTLUCK_LANES void scale(int64_t group, const int32_t* product, const int32_t* before,
                           F32x16 (&acc)[kHeight]) {
    const F32x16 weight_scale = load(scratch_.weight_scales[group]);
    const float* scales = scales_ + group * kHeight;
    const float* scaled_sums = scaled_sums_ + group * kHeight;
#pragma GCC unroll 16
    for (int r = 0; r < kHeight; ++r) {
      F32x16 total = integers(product + r * kPanelRows);
      if constexpr (has_half_scales) {
        // Both terms and their sum are integers below 2^24: exact.
        const F32x16 first = mul(integers(before + r * kPanelRows),
                                 load(scratch_.half_scales[group][0]));
        total = fma(total, load(scratch_.half_scales[group][1]), first);
      }
      acc[r] = fma(total, mul(weight_scale, splat(scales[r])), acc[r]);
      if constexpr (has_minimum && has_half_scales) {
        // As above.
        const float second = scratch_.second_sums[scaled_sums + r - scratch_.scaled_sums];
        const F32x16 factor = fma(load(scratch_.half_minimums[group][1]), splat(second),
                                  mul(load(scratch_.half_minimums[group][0]),
                                      splat(scaled_sums[r])));
        acc[r] = fma(factor, mul(load(scratch_.minimums[group]), splat(scales[r])), acc[r]);
      } else if constexpr (has_minimum) {
        acc[r] = fma(load(scratch_.minimums[group]), splat(scaled_sums[r]), acc[r]);
      }
    }
  }

  static POTLUCK_LANES F32x16 integers(const int32_t* p) {
    return to_f32({_mm512_load_si512(p)});
  }

  Scratch& scratch_;
  const uint8_t* tokens_;
  const float* scales_;
  const float* scaled_sums_;
  int64_t num_steps_;
  float* sums_;
  Ahead ahead_;
};

// Formats differ only in `unpack` here, so those with the same terms share code.
using Unpack = void (*)(const uint8_t* panel, int64_t first, int64_t count, Scratch& scratch);

// Sums of earlier groups are kept in args.out, without bias.
template <bool has_minimum, bool has_half_scales, int kHeight>
void multiply_panel(const LinearArgs& args, Unpack unpack, int64_t panel, const Packed& packed,
                    Scratch& scratch) {
  const int64_t num_groups = args.weight.columns / kGroupColumns;
  const int64_t size = panel_bytes(args.weight.format, args.weight.columns);
  const int64_t group_bytes = size / num_groups;
  const uint8_t* data = args.weight.data + panel * size;
  const int64_t end_token = packed.first_token + packed.num_tokens;
  const auto output = [&](int64_t t) {
    const int64_t token = packed.first_token + t * kHeight;
    return OutputTile{args, panel, token, smaller(kHeight, end_token - token)};
  };
  for (int64_t t = 0; t < packed.tiles.count; ++t) {
    __builtin_memset(scratch.sums[t], 0, sizeof scratch.sums[t]);
    if (packed.first_group > 0) output(t).read(scratch.sums[t]);
  }
  for (int64_t g = 0; g < packed.num_groups; g += kUnpackedGroups) {
    const int64_t count = smaller(kUnpackedGroups, packed.num_groups - g);
    unpack(data, packed.first_group + g, count, scratch);
    const uint8_t* later = data + (packed.first_group + g + kAheadGroups) * group_bytes;
    for (int64_t t = 0; t < packed.tiles.count; ++t) {
      const int64_t at = (t * packed.num_groups + g) * kHeight;
      TileProduct<has_minimum, has_half_scales, kHeight>(
          scratch, scratch.tokens + at * kGroupColumns, scratch.scales + at,
          scratch.scaled_sums + at, count, scratch.sums[t],
          Ahead(later, t == 0 ? group_bytes : 0))
          .run();
    }
  }
  const bool is_last = packed.first_group + packed.num_groups == num_groups;
  for (int64_t t = 0; t < packed.tiles.count; ++t)
    output(t).write(scratch.sums[t], is_last && args.bias);
}

template <bool has_minimum, bool has_half_scales, int kHeight>
void multiply(const LinearArgs& args, Unpack unpack, TokenSplit all, int64_t first_panel,
              int64_t end_panel) {
  Scratch scratch;
  configure_tiles(make_config(kHeight, has_half_scales));
  const int64_t num_groups = args.weight.columns / kGroupColumns;
  for (int64_t tile = 0; tile < all.count; tile += kMaxTiles) {
    Packed packed{tile * kHeight, 0, all, 0, 0};
    packed.tiles.count = smaller(kMaxTiles, all.count - tile);
    packed.num_tokens =
        smaller(packed.tiles.count * kHeight, args.num_tokens - packed.first_token);
    const int64_t most = kPackedTiles / packed.tiles.count / kUnpackedGroups * kUnpackedGroups;
    for (; packed.first_group < num_groups; packed.first_group += packed.num_groups) {
      packed.num_groups = smaller(most, num_groups - packed.first_group);
      pack_tokens<has_minimum && has_half_scales>(args, packed, scratch);
      for (int64_t panel = first_panel; panel < end_panel; ++panel)
        multiply_panel<has_minimum, has_half_scales, kHeight>(args, unpack, panel, packed,
                                                              scratch);
    }
  }
  release_tiles();
}

// The least number of tokens for which tiles take less time than avx512's kernel, for weights that
// come from memory. Nanoseconds per group of a panel on one Sapphire Rapids core, 700 MB of weights
// of 2048 columns; that kernel's and those of this one:
//
//   tokens       8        10        12        14        16
//   Q4_K     29, 35    32, 39    35, 39    46, 44    49, 45
//   Q8_0     41, 45    47, 52    51, 54    54, 64    56, 58
//   Q6_K     44, 47    50, 52    56, 52    71, 57    77, 58   (two products)
template <class Weights>
constexpr int64_t least_tokens() {
  if (Weights::kBits == 8) return 16;
  return Weights::kHasHalfScales ? 12 : 13;
}

template <bool has_minimum, bool has_half_scales>
void quantized(const LinearArgs& args, Unpack unpack, int64_t first_panel, int64_t end_panel) {
  const TokenSplit all(args.num_tokens, 4);
  const auto run = [&](auto kernel) { kernel(args, unpack, all, first_panel, end_panel); };
  switch (all.height) {
    case 8: return run(multiply<has_minimum, has_half_scales, 8>);
    case 12: return run(multiply<has_minimum, has_half_scales, 12>);
    default: return run(multiply<has_minimum, has_half_scales, 16>);
  }
}

}  // namespace

#define POTLUCK_DEFINE(format, suffix)                                                    \
  void linear_##suffix(const LinearArgs& args, int64_t first_panel, int64_t end_panel) { \
    if (args.num_tokens < least_tokens<avx512::format>())                                 \
      return avx512::linear_##suffix(args, first_panel, end_panel);                       \
    quantized<avx512::format::kHasMinimum, avx512::format::kHasHalfScales>(               \
        args, unpack<avx512::format>, first_panel, end_panel);                            \
  }
POTLUCK_QUANTIZED_FORMATS(POTLUCK_DEFINE)
#undef POTLUCK_DEFINE

}  // namespace amx
}  // namespace potluck
