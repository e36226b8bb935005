// One row of a matrix as float32: exactly the values that `linear` multiplies by. Included once per
// instruction set, after its lanes.
//
// A panel's 16 rows are decoded together and one is kept: an embedding is one row per token, and
// this keeps the decoding of formats in one place.
#pragma once

#include "kernels/linear/decode.h"
#include "kernels/variants.h"

POTLUCK_DECLARE_KERNELS(POTLUCK_ISA)

namespace potluck {
namespace POTLUCK_ISA {
namespace {

// All quads of a group, in order.
template <class Weights>
inline void load_group(const uint8_t* group, U8x64 quads[layout::kQuadsPerGroup]) {
  const QuadPair pairs[] = {
      Weights::template load_quads<0>(group), Weights::template load_quads<1>(group),
      Weights::template load_quads<2>(group), Weights::template load_quads<3>(group)};
  for (int i = 0; i < 4; ++i) {
    quads[i] = pairs[i].first;
    quads[i + 4] = pairs[i].second;
  }
}

// The 16 rows' weights of column k of a group. Integers and scales have so few bits that every
// product is exact; only adding the minimum rounds.
template <class Weights>
inline F32x16 weights_of_column(const U8x64* quads, const GroupScales& scales, int64_t k) {
  I32x16 v = sub(byte_of_lane(quads[k / 4], (int)(k % 4)), splat_i32(Weights::kZero));
  if constexpr (Weights::kHasHalfScales) v = mul(v, scales.half_scale[k / 16]);
  const F32x16 weights = mul(scales.scale, to_f32(v));
  if constexpr (Weights::kHasHalfMinimums)
    return add(weights, mul(scales.minimum, to_f32(scales.half_minimum[k / 16])));
  if constexpr (Weights::kHasMinimum) return add(weights, scales.minimum);
  return weights;
}

template <class Weights>
void embed_quantized(const Matrix& weight, int64_t row, float* out) {
  const int64_t num_blocks = weight.columns / (Weights::kGroupsPerBlock * kGroupColumns);
  const uint8_t* block =
      weight.data + row / kPanelRows * num_blocks * Weights::Layout::kBlockBytes;
  for (int64_t b = 0; b < num_blocks; ++b) {
    for (int64_t g = 0; g < Weights::kGroupsPerBlock; ++g) {
      U8x64 quads[layout::kQuadsPerGroup];
      load_group<Weights>(block + Weights::Layout::kGroups + g * Weights::Layout::kGroupBytes,
                          quads);
      GroupScales scales;
      Weights::load_scales(block, g, scales);
      for (int64_t k = 0; k < kGroupColumns; ++k) {
        float rows[kPanelRows];
        store(rows, weights_of_column<Weights>(quads, scales, k));
        *out++ = rows[row % kPanelRows];
      }
    }
    block += Weights::Layout::kBlockBytes;
  }
}

template <class Weights>
void embed_float(const Matrix& weight, int64_t row, float* out) {
  constexpr int64_t kColumnBytes = kPanelRows * Weights::kBytes;
  const uint8_t* p = weight.data + row / kPanelRows * weight.columns * kColumnBytes;
  float rows[kPanelRows];
  int64_t k = 0;
  for (; k + Weights::kStep <= weight.columns; k += Weights::kStep) {
    for (int i = 0; i < Weights::kStep; ++i) {
      store(rows, Weights::load_step(p, i));
      out[k + i] = rows[row % kPanelRows];
    }
    p += Weights::kStep * kColumnBytes;
  }
  if constexpr (Weights::kStep > 1) {
    if (k == weight.columns) return;
    store(rows, Weights::load_column(p));
    out[k] = rows[row % kPanelRows];
  }
}

}  // namespace

#define POTLUCK_DEFINE_FLOAT(format, suffix)                             \
  void embed_##suffix(const Matrix& weight, int64_t row, float* out) { \
    embed_float<format>(weight, row, out);                               \
  }
#define POTLUCK_DEFINE_QUANTIZED(format, suffix)                         \
  void embed_##suffix(const Matrix& weight, int64_t row, float* out) { \
    embed_quantized<format>(weight, row, out);                           \
  }
POTLUCK_FLOAT_FORMATS(POTLUCK_DEFINE_FLOAT)
POTLUCK_QUANTIZED_FORMATS(POTLUCK_DEFINE_QUANTIZED)
#undef POTLUCK_DEFINE_FLOAT
#undef POTLUCK_DEFINE_QUANTIZED

}  // namespace POTLUCK_ISA
}  // namespace potluck
