// The selective scan of Mamba-2 (Dao and Gu 2024). Included by the body of ops with a state.
#pragma once

#include "kernels/state/strips.h"

namespace potluck {
namespace POTLUCK_ISA {
namespace {

inline void make_scan_factors(const ScanInputArgs& args) {
  for (int64_t i = 0; i < args.num_heads; i += kNumLanes) {
    const int64_t n = args.num_heads - i < kNumLanes ? args.num_heads - i : kNumLanes;
    const F32x16 sum = add(load_partial(args.step + i, n), load_partial(args.step_bias + i, n));
    // This order preserves NaN.
    const F32x16 least = max(splat(args.least_step), softplus(sum));
    const F32x16 step = min(splat(args.largest_step), least);
    store_partial(args.steps + i, step, n);
    store_partial(args.decays + i, exp(mul(load_partial(args.rate + i, n), step)), n);
  }
}

// Strips [strip, strip + n) of one head.
template <int n>
class ScanTile {
 public:
  ScanTile(const ScanArgs& args, int64_t head, int64_t strip)
      : args_(args),
        head_(head),
        column_(head * args.head_dim + strip * kNumLanes),
        lanes_(strip_lanes(args.head_dim, strip + n - 1)),
        state_(args.state + (head * num_state_strips(args.head_dim) + strip) * strip_floats()) {
    const int64_t group = head / (args.num_heads / args.num_groups);
    b_ = args.x + args.num_heads * args.head_dim + group * args.state_dim;
    c_ = b_ + args.num_groups * args.state_dim;
  }

  // Two tokens at a time read and write the state once.
  POTLUCK_LANES void run() {
    if (args_.is_fresh) fill_zeros(state_, n * strip_floats());
    int64_t t = 0;
    for (; t + kStateTokens <= args_.num_tokens; t += kStateTokens) pass<kStateTokens>(t);
    for (; t < args_.num_tokens; ++t) pass<1>(t);
  }

 private:
  POTLUCK_LANES int64_t strip_floats() const { return args_.state_dim * kNumLanes; }

  POTLUCK_LANES int64_t lanes(int j) const { return j == n - 1 ? lanes_ : kNumLanes; }

  // See DeltaTile.
  template <int tokens>
  POTLUCK_LANES void prefetch(int64_t t) const {
#pragma GCC unroll kUnroll
    for (int i = 0; i < tokens; ++i) {
#pragma GCC unroll kUnroll
      for (int j = 0; j < n; ++j) {
        __builtin_prefetch(args_.x + (t + i) * args_.x_stride + column_ + j * kNumLanes);
        __builtin_prefetch(args_.out + (t + i) * args_.out_stride + column_ + j * kNumLanes, 1);
      }
    }
  }

  template <int tokens>
  POTLUCK_LANES void pass(int64_t t) const {
    const int64_t state_dim = args_.state_dim;
    const float* b = b_ + t * args_.x_stride;
    const float* c = c_ + t * args_.x_stride;
    F32x16 inputs[tokens][n], sums[tokens][n], decays[tokens];
#pragma GCC unroll kUnroll
    for (int i = 0; i < tokens; ++i) {
      const float* x = args_.x + (t + i) * args_.x_stride + column_;
      const F32x16 step = splat(args_.steps[(t + i) * args_.num_heads + head_]);
      decays[i] = splat(args_.decays[(t + i) * args_.num_heads + head_]);
#pragma GCC unroll kUnroll
      for (int j = 0; j < n; ++j) {
        inputs[i][j] = mul(step, load_partial(x + j * kNumLanes, lanes(j)));
        sums[i][j] = splat(0.0f);
      }
    }
    if (t + 2 * tokens <= args_.num_tokens) prefetch<tokens>(t + tokens);
    for (int64_t row = 0; row < state_dim; ++row) {
      F32x16 s[n];
#pragma GCC unroll kUnroll
      for (int j = 0; j < n; ++j) s[j] = load(state_ + (j * state_dim + row) * kNumLanes);
#pragma GCC unroll kUnroll
      for (int i = 0; i < tokens; ++i) {
        const F32x16 in = splat(b[i * args_.x_stride + row]);
        const F32x16 out = splat(c[i * args_.x_stride + row]);
#pragma GCC unroll kUnroll
        for (int j = 0; j < n; ++j) {
          s[j] = fma(in, inputs[i][j], mul(s[j], decays[i]));
          sums[i][j] = fma(out, s[j], sums[i][j]);
        }
      }
#pragma GCC unroll kUnroll
      for (int j = 0; j < n; ++j) store(state_ + (j * state_dim + row) * kNumLanes, s[j]);
    }
    const F32x16 skip = splat(args_.skip[head_]);
#pragma GCC unroll kUnroll
    for (int i = 0; i < tokens; ++i) {
      const float* x = args_.x + (t + i) * args_.x_stride + column_;
      float* out = args_.out + (t + i) * args_.out_stride + column_;
#pragma GCC unroll kUnroll
      for (int j = 0; j < n; ++j) {
        const F32x16 v = load_partial(x + j * kNumLanes, lanes(j));
        store_partial(out + j * kNumLanes, fma(skip, v, sums[i][j]), lanes(j));
      }
    }
  }

  const ScanArgs& args_;
  const int64_t head_;
  const int64_t column_;
  const int64_t lanes_;  // of the last strip
  float* const state_;
  const float* b_;
  const float* c_;
};

}  // namespace
}  // namespace POTLUCK_ISA
}  // namespace potluck
