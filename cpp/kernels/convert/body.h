// Converts rows of weights in the file's layout from one storage format to another. Included once
// per instruction set, after its lanes.
#pragma once

#include "kernels/convert/blocks_of_32.h"
#include "kernels/convert/iq4_nl.h"
#include "kernels/convert/q3_k.h"
#include "kernels/convert/q4_k.h"
#include "kernels/convert/q6_k.h"
#include "kernels/linear/decode.h"
#include "kernels/variants.h"

POTLUCK_DECLARE_KERNELS(POTLUCK_ISA)

namespace potluck {
namespace POTLUCK_ISA {
namespace {

// The largest |x| is determined as the largest bit pattern, so that NaN counts as larger than
// infinity.
template <class Weights>
float widen(const uint8_t* stored, int64_t count, float* out) {
  const I32x16 sign_off = splat_i32(0x7fffffff);
  I32x16 magnitudes = splat_i32(0);
  int64_t i = 0;
  for (; i + kNumLanes <= count; i += kNumLanes) {
    const F32x16 x = Weights::load_column(stored + i * Weights::kBytes);
    magnitudes = max(magnitudes, bit_and(as_i32(x), sign_off));
    store(out + i, x);
  }
  if (i < count) {
    uint8_t rest[kNumLanes * Weights::kBytes] = {};
    __builtin_memcpy(rest, stored + i * Weights::kBytes, (count - i) * Weights::kBytes);
    const F32x16 x = Weights::load_column(rest);
    magnitudes = max(magnitudes, bit_and(as_i32(x), sign_off));
    store_partial(out + i, x, count - i);
  }
  const int32_t bits = max_lane(magnitudes);
  float magnitude;
  __builtin_memcpy(&magnitude, &bits, sizeof magnitude);
  return magnitude;
}

}  // namespace

#define POTLUCK_DEFINE_WIDEN(format, suffix)                                \
  float widen_##suffix(const uint8_t* stored, int64_t count, float* out) { \
    return widen<format>(stored, count, out);                               \
  }
POTLUCK_FLOAT_FORMATS(POTLUCK_DEFINE_WIDEN)
#undef POTLUCK_DEFINE_WIDEN

}  // namespace POTLUCK_ISA
}  // namespace potluck
