// Matrices of states in strips of 16 columns, and loops over them. Included by the bodies of ops
// with a state.
#pragma once

#include "kernels/kernels.h"

namespace potluck {
namespace POTLUCK_ISA {
namespace {

template <int n>
struct Count {
  static constexpr int value = n;
};

// Calls run(Count<n>, head, strip) for n consecutive strips of one head at a time: up to
// kStateStrips where possible, or one by one.
template <class F>
POTLUCK_LANES void for_strips(int64_t num_strips, int64_t first, int64_t end, const F& run) {
  for (int64_t i = first; i < end;) {
    const int64_t head = i / num_strips, strip = i % num_strips;
    const int64_t left = end - i < num_strips - strip ? end - i : num_strips - strip;
    if (left >= kStateStrips) {
      run(Count<kStateStrips>(), head, strip);
      i += kStateStrips;
    } else {
      run(Count<1>(), head, strip);
      ++i;
    }
  }
}

POTLUCK_LANES int64_t strip_lanes(int64_t columns, int64_t strip) {
  const int64_t left = columns - strip * kNumLanes;
  return left < kNumLanes ? left : kNumLanes;
}

inline void fill_zeros(float* p, int64_t count) {
  for (int64_t i = 0; i < count; i += kNumLanes) store(p + i, splat(0.0f));
}

}  // namespace
}  // namespace POTLUCK_ISA
}  // namespace potluck
