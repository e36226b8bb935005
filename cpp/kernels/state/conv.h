// Short causal convolutions. Included by the body of ops with a state.
#pragma once

#include "kernels/linear/layout.h"
#include "kernels/state/strips.h"

namespace potluck {
namespace POTLUCK_ISA {
namespace {

// Columns that pass through the tokens together: what is kept of them, at most 31 KiB and mostly 7,
// stays in the first cache, and rows are read at a stretch.
constexpr int64_t kConvColumns = 256;

// The 16 rows' weights of column j of a panel.
POTLUCK_LANES F32x16 load_panel_column(const Matrix& weight, const uint8_t* panel, int64_t j) {
  if (weight.format == Format::F32) return load(panel + 64 * j);
  if (weight.format == Format::F16) return load_f16(panel + 32 * j);
  if (weight.columns % 2 != 0 && j == weight.columns - 1) return load_bf16(panel + 32 * j);
  const I32x16 pair = as_i32(load(panel + 64 * (j / 2)));
  if (j % 2 == 0) return as_f32(shift_left<16>(pair));
  return as_f32(bit_and(pair, splat_i32((int32_t)0xffff0000)));
}

// Columns [first, first + count), of which `first` is a multiple of 16.
inline void convolve(const ConvArgs& args, int64_t first, int64_t count) {
  const int64_t kernel = args.weight.columns, width = args.weight.rows;
  const int64_t num_groups = (count + kNumLanes - 1) / kNumLanes;
  const int64_t panel_size = kPanelRows * kernel * (args.weight.format == Format::F32 ? 4 : 2);
  float weights[kConvColumns * kMaxConvKernel];  // [group][kernel][16]
  float bias[kConvColumns];
  float rows[(kMaxConvKernel - 1) * kConvColumns];
  float* past[kMaxConvKernel];  // the rows before a token, oldest first
  for (int64_t g = 0; g < num_groups; ++g) {
    const uint8_t* panel = args.weight.data + (first / kPanelRows + g) * panel_size;
    for (int64_t j = 0; j < kernel; ++j)
      store(weights + (g * kernel + j) * kNumLanes, load_panel_column(args.weight, panel, j));
  }
  for (int64_t i = 0; i < count; i += kNumLanes) {
    const int64_t n = count - i < kNumLanes ? count - i : kNumLanes;
    if (args.bias) store(bias + i, load_partial(args.bias + first + i, n));
    for (int64_t j = 0; j < kernel - 1; ++j) {
      past[j] = rows + j * kConvColumns;
      const float* row = args.state + j * width + first;
      store(past[j] + i, args.is_fresh ? splat(0.0f) : load_partial(row + i, n));
    }
  }
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    const float* x = args.x + t * width + first;
    float* out = args.out + t * width + first;
    for (int64_t i = 0; i < count; i += kNumLanes) {
      const int64_t n = count - i < kNumLanes ? count - i : kNumLanes;
      const float* w = weights + i * kernel;
      const F32x16 last = load_partial(x + i, n);
      F32x16 y = splat(0.0f);
      for (int64_t j = 0; j < kernel - 1; ++j)
        y = fma(load(w + j * kNumLanes), load(past[j] + i), y);
      y = fma(load(w + (kernel - 1) * kNumLanes), last, y);
      if (args.bias) y = add(y, load(bias + i));
      if (args.has_silu) y = over_one_plus_exp(y, y);
      store(past[0] + i, last);
      store_partial(out + i, y, n);
    }
    float* newest = past[0];
    for (int64_t j = 0; j + 2 < kernel; ++j) past[j] = past[j + 1];
    past[kernel - 2] = newest;
  }
  for (int64_t i = 0; i < count; i += kNumLanes) {
    const int64_t n = count - i < kNumLanes ? count - i : kNumLanes;
    for (int64_t j = 0; j < kernel - 1; ++j)
      store_partial(args.state + j * width + first + i, load(past[j] + i), n);
  }
}

}  // namespace
}  // namespace POTLUCK_ISA
}  // namespace potluck
