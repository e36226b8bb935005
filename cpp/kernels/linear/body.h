// out = weight x + bias over panels. Included once per instruction set, after its lanes.
//
// Lanes are output rows, so that every output element is one chain of fma over its groups (or
// columns) in ascending order, whatever the tile: the tile of tokens only decides how often a group
// that was loaded and unpacked is used.
#pragma once

#include "kernels/linear/decode.h"
#include "kernels/linear/write.h"
#include "kernels/variants.h"

POTLUCK_DECLARE_KERNELS(POTLUCK_ISA)

namespace potluck {
namespace POTLUCK_ISA {
namespace {

// Panels that a single token passes over together. A float format's chain of fma would otherwise
// wait 4 cycles for each column; quantized groups have enough other work.
constexpr int kFloatPanelTile = 4;

// The exact sum of (v - kZero) * a over a group, times the half scales where there are some. At
// most 32 * 128 * 127 without, 32 * 32 * 127 * 128 < 2^24 with half scales: exact as f32.
template <class Weights>
POTLUCK_LANES I32x16 integer_sum(const Group& group, const int8_t* a, int32_t activation_sum) {
  if constexpr (Weights::kHasHalfScales) {
    const int32_t first = sum_16(a);
    I32x16 half[2] = {splat_i32(-Weights::kZero * first),
                      splat_i32(-Weights::kZero * (activation_sum - first))};
#pragma GCC unroll kUnroll
    for (int i = 0; i < 8; ++i) half[i / 4] = dot4_u7(half[i / 4], group.line[i], a + 4 * i);
    return add(mul(half[0], group.half_scale[0]), mul(half[1], group.half_scale[1]));
  } else {
    I32x16 total = splat_i32(-Weights::kZero * activation_sum);
#pragma GCC unroll kUnroll
    for (int i = 0; i < 8; ++i)
      total = Weights::kBits == 8 ? dot4_u8(total, group.line[i], a + 4 * i)
                                  : dot4_u7(total, group.line[i], a + 4 * i);
    return total;
  }
}

// Asks for what a single token reads kPrefetchBytes further on; past the last panel that does no
// harm. With it Q4_K went from 5.4 to 9.1 GB/s on one busy Xeon core with AVX-512; other formats
// changed by less than the noise.
constexpr int64_t kPrefetchBytes = 4096;
template <int64_t num_bytes>
POTLUCK_LANES void prefetch(const uint8_t* p) {
#pragma GCC unroll kUnroll
  for (int64_t i = 0; i < num_bytes; i += layout::kLineBytes)
    __builtin_prefetch(p + kPrefetchBytes + i);
}

template <class Weights, int kTokens>
inline void quantized_tile(const LinearArgs& args, int64_t panel, int64_t token) {
  const int64_t columns = args.weight.columns;
  const int64_t num_groups = columns / kGroupColumns;
  const int64_t num_blocks = num_groups / Weights::kGroupsPerBlock;
  const uint8_t* block = args.weight.data + panel * num_blocks * Weights::Layout::kBlockBytes;
  const int8_t* q = args.input.q + token * columns;
  const float* scales = args.input.scales + token * num_groups;
  const int32_t* sums = args.input.sums + token * num_groups;

  F32x16 acc[kTokens];
#pragma GCC unroll kUnroll
  for (int t = 0; t < kTokens; ++t) acc[t] = splat(0.0f);
  for (int64_t g = 0; g < num_groups; g += Weights::kGroupsPerBlock) {
    for (int64_t i = 0; i < Weights::kGroupsPerBlock; ++i) {
      if (kTokens == 1)
        prefetch<Weights::Layout::kGroupBytes>(block + i * Weights::Layout::kGroupBytes);
      Group group;
      Weights::load(block, i, group);
#pragma GCC unroll kUnroll
      for (int t = 0; t < kTokens; ++t) {
        const int64_t at = t * num_groups + g + i;
        const float scale = scales[at];
        const I32x16 total =
            integer_sum<Weights>(group, q + t * columns + (g + i) * kGroupColumns, sums[at]);
        acc[t] = fma(to_f32(total), mul(group.scale, splat(scale)), acc[t]);
        if constexpr (Weights::kHasMinimum)
          acc[t] = fma(group.minimum, splat(scale * (float)sums[at]), acc[t]);
      }
    }
    block += Weights::Layout::kBlockBytes;
  }
#pragma GCC unroll kUnroll
  for (int t = 0; t < kTokens; ++t) write(args, panel, token + t, acc[t]);
}

template <class Weights, int kPanels, int kTokens>
inline void float_tile(const LinearArgs& args, int64_t panel, int64_t token) {
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
      F32x16 w[Weights::kStep];
      Weights::load_step(weights + p * stride, w);
#pragma GCC unroll kUnroll
      for (int i = 0; i < Weights::kStep; ++i)
#pragma GCC unroll kUnroll
        for (int t = 0; t < kTokens; ++t)
          acc[p][t] = fma(w[i], splat(x[t * columns + k + i]), acc[p][t]);
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

// Panels outside, so that a panel comes from memory once and from the cache for the other tiles.
template <class Weights>
void quantized(const LinearArgs& args, int64_t first_panel, int64_t end_panel) {
  for (int64_t panel = first_panel; panel < end_panel; ++panel) {
    int64_t token = 0;
    for (; token + kTokenTile <= args.num_tokens; token += kTokenTile)
      quantized_tile<Weights, kTokenTile>(args, panel, token);
    if (kTokenTile > 4 && token + 4 <= args.num_tokens) {
      quantized_tile<Weights, 4>(args, panel, token);
      token += 4;
    }
    if (token + 2 <= args.num_tokens) {
      quantized_tile<Weights, 2>(args, panel, token);
      token += 2;
    }
    if (token < args.num_tokens) quantized_tile<Weights, 1>(args, panel, token);
  }
}

template <class Weights, int kPanels>
inline void float_panels(const LinearArgs& args, int64_t panel) {
  int64_t token = 0;
  if (kPanels == 1)
    for (; token + kTokenTile <= args.num_tokens; token += kTokenTile)
      float_tile<Weights, 1, kTokenTile>(args, panel, token);
  for (; token < args.num_tokens; ++token) float_tile<Weights, kPanels, 1>(args, panel, token);
}

template <class Weights>
void floating(const LinearArgs& args, int64_t first_panel, int64_t end_panel) {
  int64_t panel = first_panel;
  if (args.num_tokens < kTokenTile)
    for (; panel + kFloatPanelTile <= end_panel; panel += kFloatPanelTile)
      float_panels<Weights, kFloatPanelTile>(args, panel);
  for (; panel < end_panel; ++panel) float_panels<Weights, 1>(args, panel);
}

}  // namespace

#define POTLUCK_DEFINE_FLOAT(format, suffix)                                              \
  void linear_##suffix(const LinearArgs& args, int64_t first_panel, int64_t end_panel) { \
    floating<format>(args, first_panel, end_panel);                                       \
  }
#define POTLUCK_DEFINE_QUANTIZED(format, suffix)                                          \
  void linear_##suffix(const LinearArgs& args, int64_t first_panel, int64_t end_panel) { \
    quantized<format>(args, first_panel, end_panel);                                      \
  }
POTLUCK_FLOAT_FORMATS(POTLUCK_DEFINE_FLOAT)
POTLUCK_QUANTIZED_FORMATS(POTLUCK_DEFINE_QUANTIZED)
#undef POTLUCK_DEFINE_FLOAT
#undef POTLUCK_DEFINE_QUANTIZED

}  // namespace POTLUCK_ISA
}  // namespace potluck
