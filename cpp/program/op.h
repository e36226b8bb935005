// The ops of a program, as potluck.types.program has them; potluck.engines.reference says what
// each means.
//
// `Ref` is how an op names a register or a weight: std::string as it comes in, int (an index) once
// the program has resolved it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

namespace potluck::op {

template <typename Ref>
struct Embed {
  Ref weight;
  Ref out;
};

template <typename Ref>
struct RmsNorm {
  Ref x;
  Ref weight;
  Ref out;
  int64_t group;
  float epsilon;
};

template <typename Ref>
struct Linear {
  Ref x;
  Ref weight;
  Ref out;
  std::optional<Ref> bias;
};

template <typename Ref>
struct Rope {
  Ref x;
  int64_t num_heads;
  int64_t head_dim;
};

template <typename Ref>
struct Attention {
  Ref q;
  Ref k;
  Ref v;
  Ref out;
  int64_t cache_index;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  float scale;
  std::optional<int64_t> window;
};

// The only activation there is: SiLU.
template <typename Ref>
struct GatedActivation {
  Ref gate;
  Ref up;
  Ref out;
};

// `gate`, `up` and `down` are stacks of `num_experts` matrices. Activation as in GatedActivation.
template <typename Ref>
struct Moe {
  Ref x;
  Ref logits;
  Ref gate;
  Ref up;
  Ref down;
  Ref out;
  int64_t num_experts;
  int64_t num_experts_per_token;
  int64_t expert_width;
  bool normalize_shares;
};

template <typename Ref>
struct Add {
  Ref x;
  Ref y;
};

// Without a weight there are no logits; vectors are pooled from `x`.
template <typename Ref>
struct Head {
  Ref x;
  std::optional<Ref> weight;
  int64_t vocab_size;
};

template <typename Ref>
using Any = std::variant<Embed<Ref>, RmsNorm<Ref>, Linear<Ref>, Rope<Ref>, Attention<Ref>,
                         GatedActivation<Ref>, Moe<Ref>, Add<Ref>, Head<Ref>>;

using Named = Any<std::string>;
using Resolved = Any<int>;

}  // namespace potluck::op
