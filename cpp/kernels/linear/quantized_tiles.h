// Products of quantized weights, by the lanes' products of four bytes. Included by bodies, after the
// lanes of an instruction set.
#pragma once

#include "kernels/linear/decode.h"
#include "kernels/linear/write.h"

namespace potluck {
namespace POTLUCK_ISA {
namespace {

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

}  // namespace
}  // namespace POTLUCK_ISA
}  // namespace potluck
