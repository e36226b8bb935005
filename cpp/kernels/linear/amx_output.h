// Where the sums of a tile of tokens and a panel are stored, also between ranges of columns.
// Included after the lanes of AVX-512.
#pragma once

#include "kernels/kernels.h"
#include "kernels/linear/amx_tokens.h"

namespace potluck {
namespace amx {
namespace {

// The part of args.out for tokens [token, token + num_tokens) and a panel's rows.
struct OutputTile {
  const LinearArgs& args;
  int64_t panel;
  int64_t token;
  int64_t num_tokens;

  int64_t num_rows() const {
    return smaller(args.weight.rows - panel * kPanelRows, kPanelRows);
  }
  float* row(int64_t t) const {
    return args.out + (token + t) * args.out_stride + panel * kPanelRows;
  }
  // To and from sums[token][16 weight rows].
  void read(float* sums) const {
    for (int64_t t = 0; t < num_tokens; ++t)
      avx512::store(sums + t * kPanelRows, avx512::load_partial(row(t), num_rows()));
  }
  void write(const float* sums, bool with_bias) const {
    avx512::F32x16 bias = avx512::splat(0.0f);
    if (with_bias) bias = avx512::load_partial(args.bias + panel * kPanelRows, num_rows());
    for (int64_t t = 0; t < num_tokens; ++t) {
      const avx512::F32x16 sum = avx512::load(sums + t * kPanelRows);
      avx512::store_partial(row(t), with_bias ? avx512::add(sum, bias) : sum, num_rows());
    }
  }
};

}  // namespace
}  // namespace amx
}  // namespace potluck
