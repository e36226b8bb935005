// Short causal convolutions. Included by the body of ops with a state.
#pragma once

#include "kernels/state/strips.h"

namespace potluck {
namespace POTLUCK_ISA {
namespace {

// Columns that are processed together over all tokens: their data, at most 31 KiB and mostly 7,
// stays in the L1 cache, and rows are read contiguously.
constexpr int64_t kConvColumns = 256;

// Converts weights [16][kernel] to [kernel][16]; compilers do well with a constant size.
template <int known_kernel>
inline void transpose_weights(const float* weight, int64_t kernel, float* out) {
  const int64_t size = known_kernel != 0 ? known_kernel : kernel;
  for (int64_t j = 0; j < size; ++j)
    for (int64_t i = 0; i < kNumLanes; ++i) out[j * kNumLanes + i] = weight[i * size + j];
}

// Columns [first, first + count), where `first` is a multiple of 16.
inline void convolve(const ConvArgs& args, int64_t first, int64_t count) {
  const int64_t kernel = args.kernel, width = args.width;
  float weights[kConvColumns * kMaxConvKernel];  // [group of 16 columns][kernel][16]
  float bias[kConvColumns];
  float rows[(kMaxConvKernel - 1) * kConvColumns];
  float* past[kMaxConvKernel];  // the rows before a token, oldest first
  for (int64_t i = 0; i < count; i += kNumLanes) {
    const float* group = args.weight + (first + i) * kernel;
    float padded[kNumLanes * kMaxConvKernel];
    if (count - i < kNumLanes) {
      fill_zeros(padded, kNumLanes * kernel);
      for (int64_t j = 0; j < (count - i) * kernel; ++j) padded[j] = group[j];
      group = padded;
    }
    float* transposed = weights + i * kernel;
    if (kernel == 4)
      transpose_weights<4>(group, kernel, transposed);
    else if (kernel == 3)
      transpose_weights<3>(group, kernel, transposed);
    else
      transpose_weights<0>(group, kernel, transposed);
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
