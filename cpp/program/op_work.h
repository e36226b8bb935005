// The cost of the cheap ops, and the properties of attention ops by which they are divided.
#pragma once

#include <cstdint>

#include "program/attention_division.h"
#include "program/op.h"

namespace potluck {

// In multiply-adds per element.
constexpr int64_t kCopyWork = 1;
constexpr int64_t kNormWork = 2;
constexpr int64_t kExpWork = 16;

inline int64_t value_dim_of(const op::Attention<int>& o) {
  return o.value_dim.value_or(o.head_dim);
}

inline AttentionShape shape_of(const op::Attention<int>& o) {
  return {o.num_heads,     o.num_kv_heads, o.head_dim,
          value_dim_of(o), !o.value_start, o.window.value_or(kNoWindow)};
}

}  // namespace potluck
