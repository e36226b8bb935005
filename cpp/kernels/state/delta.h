// The gated delta rule (Yang et al. 2024). Included by the body of ops with a state.
//
// With S the state before a token, g its decay, b its beta, v its value, k and q its key and query,
// normed, the op is
//
//   d = b (v - g k S)    out = g q S + (k q) d    S' = g S + k d
//
// which reads S once for both sums; and as the next token's sums are taken of S' while it is made,
// a token reads and writes each number of the state once.
#pragma once

#include "kernels/state/strips.h"

namespace potluck {
namespace POTLUCK_ISA {
namespace {

// Sums of squares and of k q are over 16 lanes and one tree, like those of norms.
inline void make_delta_keys(const DeltaInputArgs& args, int64_t head) {
  const int64_t columns = args.key_dim;
  const float* query = args.x + head * columns;
  const float* key = args.x + (args.num_key_heads + head) * columns;
  float* key_out = args.keys + head * args.key_stride;
  float* query_out = key_out + columns;
  F32x16 key_squares = splat(0.0f), query_squares = splat(0.0f);
  for (int64_t i = 0; i < columns; i += kNumLanes) {
    const int64_t n = columns - i < kNumLanes ? columns - i : kNumLanes;
    const F32x16 k = load_partial(key + i, n), q = load_partial(query + i, n);
    key_squares = fma(k, k, key_squares);
    query_squares = fma(q, q, query_squares);
  }
  const F32x16 one = splat(1.0f), epsilon = splat(args.epsilon);
  const F32x16 key_factor = div(one, sqrt(add(splat(sum(key_squares)), epsilon)));
  const F32x16 query_norm = sqrt(add(splat(sum(query_squares)), epsilon));
  const F32x16 query_factor = div(div(one, query_norm), sqrt(splat((float)columns)));
  F32x16 products = splat(0.0f);
  for (int64_t i = 0; i < columns; i += kNumLanes) {
    const int64_t n = columns - i < kNumLanes ? columns - i : kNumLanes;
    const F32x16 k = mul(load_partial(key + i, n), key_factor);
    const F32x16 q = mul(load_partial(query + i, n), query_factor);
    store_partial(key_out + i, k, n);
    store_partial(query_out + i, q, n);
    products = fma(k, q, products);
  }
  args.products[head] = sum(products);
}

inline void make_delta_factors(const DeltaInputArgs& args) {
  for (int64_t i = 0; i < args.num_heads; i += kNumLanes) {
    const int64_t n = args.num_heads - i < kNumLanes ? args.num_heads - i : kNumLanes;
    const F32x16 step = softplus(
        add(load_partial(args.decay + i, n), load_partial(args.decay_bias + i, n)));
    store_partial(args.decays + i, exp(mul(load_partial(args.rate + i, n), step)), n);
    store_partial(args.betas + i, over_one_plus_exp(splat(1.0f), load_partial(args.beta + i, n)),
                  n);
  }
}

// Strips [strip, strip + n) of one head.
template <int n>
class DeltaTile {
 public:
  DeltaTile(const DeltaArgs& args, int64_t head, int64_t strip)
      : args_(args),
        head_(head),
        column_(strip * kNumLanes),
        lanes_(strip_lanes(args.value_dim, strip + n - 1)),
        key_head_(args.is_tiled ? head % args.num_key_heads
                                : head / (args.num_heads / args.num_key_heads)),
        state_(args.state + (head * num_state_strips(args.value_dim) + strip) * strip_floats()) {}

  POTLUCK_LANES void run() {
    if (args_.is_fresh) fill_zeros(state_, n * strip_floats());
    const float* key = args_.keys + key_head_ * args_.key_head_stride;
    const int64_t key_dim = args_.key_dim;
    F32x16 key_sums[n], query_sums[n], deltas[n];
    read(key, key_sums, query_sums);
    const int64_t last = args_.num_tokens - 1;
    for (int64_t t = 0;; ++t, key += 2 * key_dim) {
      const float decay = args_.decays[t * args_.num_heads + head_];
      if (t != last) prefetch(t + 1);
      answer(t, decay, key_sums, query_sums, deltas);
      if (t == last) return write(key, decay, deltas);
      pass(key, decay, deltas, key_sums, query_sums);
    }
  }

 private:
  POTLUCK_LANES int64_t strip_floats() const { return args_.key_dim * kNumLanes; }

  // Rows of values and outputs are far apart, and a store that waits for its line blocks all that
  // follow.
  POTLUCK_LANES void prefetch(int64_t t) const {
#pragma GCC unroll kUnroll
    for (int j = 0; j < n; ++j) {
      __builtin_prefetch(args_.values + value_at(t) + j * kNumLanes);
      __builtin_prefetch(args_.out + out_at(t) + j * kNumLanes, 1);
    }
  }

  POTLUCK_LANES int64_t value_at(int64_t t) const {
    return t * args_.value_stride + head_ * args_.value_dim + column_;
  }
  POTLUCK_LANES int64_t out_at(int64_t t) const {
    return t * args_.out_stride + head_ * args_.value_dim + column_;
  }

  // The sums of a token's key and query with the state.
  POTLUCK_LANES void read(const float* key, F32x16* key_sums, F32x16* query_sums) const {
    const int64_t key_dim = args_.key_dim;
    const float* query = key + key_dim;
#pragma GCC unroll kUnroll
    for (int j = 0; j < n; ++j) key_sums[j] = query_sums[j] = splat(0.0f);
    for (int64_t i = 0; i < key_dim; ++i) {
      const F32x16 k = splat(key[i]), q = splat(query[i]);
#pragma GCC unroll kUnroll
      for (int j = 0; j < n; ++j) {
        const F32x16 s = load(state_ + (j * key_dim + i) * kNumLanes);
        key_sums[j] = fma(k, s, key_sums[j]);
        query_sums[j] = fma(q, s, query_sums[j]);
      }
    }
  }

  // Computes a token's output, and the update of the state along its key.
  POTLUCK_LANES void answer(int64_t t, float decay, const F32x16* key_sums,
                            const F32x16* query_sums, F32x16* deltas) const {
    const float* values = args_.values + value_at(t);
    float* out = args_.out + out_at(t);
    const F32x16 beta = splat(args_.betas[t * args_.num_heads + head_]);
    const F32x16 product = splat(args_.products[t * args_.num_key_heads + key_head_]);
    const F32x16 minus_decay = splat(-decay);
#pragma GCC unroll kUnroll
    for (int j = 0; j < n; ++j) {
      const int64_t count = j == n - 1 ? lanes_ : kNumLanes;
      const F32x16 v = load_partial(values + j * kNumLanes, count);
      deltas[j] = mul(beta, fma(minus_decay, key_sums[j], v));
      const F32x16 sum = fma(product, deltas[j], mul(splat(decay), query_sums[j]));
      store_partial(out + j * kNumLanes, sum, count);
    }
  }

  // Adds a token to the state, and computes the next token's sums over it.
  POTLUCK_LANES void pass(const float* key, float decay, const F32x16* deltas, F32x16* key_sums,
                          F32x16* query_sums) const {
    const int64_t key_dim = args_.key_dim;
    const float* next_key = key + 2 * key_dim;
    const float* next_query = key + 3 * key_dim;
    const F32x16 g = splat(decay);
#pragma GCC unroll kUnroll
    for (int j = 0; j < n; ++j) key_sums[j] = query_sums[j] = splat(0.0f);
    for (int64_t i = 0; i < key_dim; ++i) {
      const F32x16 k = splat(key[i]);
      const F32x16 next_k = splat(next_key[i]), next_q = splat(next_query[i]);
      F32x16 s[n];
#pragma GCC unroll kUnroll
      for (int j = 0; j < n; ++j)
        s[j] = fma(k, deltas[j], mul(load(state_ + (j * key_dim + i) * kNumLanes), g));
#pragma GCC unroll kUnroll
      for (int j = 0; j < n; ++j) {
        store(state_ + (j * key_dim + i) * kNumLanes, s[j]);
        key_sums[j] = fma(next_k, s[j], key_sums[j]);
        query_sums[j] = fma(next_q, s[j], query_sums[j]);
      }
    }
  }

  POTLUCK_LANES void write(const float* key, float decay, const F32x16* deltas) const {
    const int64_t key_dim = args_.key_dim;
    const F32x16 g = splat(decay);
    for (int64_t i = 0; i < key_dim; ++i) {
      const F32x16 k = splat(key[i]);
#pragma GCC unroll kUnroll
      for (int j = 0; j < n; ++j) {
        float* s = state_ + (j * key_dim + i) * kNumLanes;
        store(s, fma(k, deltas[j], mul(load(s), g)));
        __builtin_prefetch(s + n * key_dim * kNumLanes);  // the next strips, if there are any
      }
    }
  }

  const DeltaArgs& args_;
  const int64_t head_;
  const int64_t column_;
  const int64_t lanes_;  // of the last strip
  const int64_t key_head_;
  float* const state_;
};

}  // namespace
}  // namespace POTLUCK_ISA
}  // namespace potluck
