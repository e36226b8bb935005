// IQ4_NL: 32 values x ~ d * t[v] with a table of 16 integers and an f16 d.
#pragma once

#include "kernels/convert/blocks_of_32.h"
#include "kernels/convert/k_blocks.h"
#include "kernels/linear/file_blocks.h"

namespace potluck {
namespace POTLUCK_ISA {
namespace {

// The extreme value is to become an entry near either end of the table, or slightly beyond it: this
// many steps are tried in either direction. Then d is the one with the least squared error for the
// chosen entries, as in llama.cpp's quantize_row_iq4_nl_impl.
constexpr int kIq4Steps = 4;
constexpr float kIq4Step = 3.0f;
constexpr float kIq4Ends[2] = {-127.0f, 113.0f};

// The index of the nearest entry: the number of the 15 midpoints between neighbours that are below.
POTLUCK_LANES F32x16 nearest_index_iq4(F32x16 v) {
  F32x16 index = splat(0.0f);
  for (int i = 0; i < 15; ++i) {
    const F32x16 middle = splat(0.5f * (float)(kIq4Values[i] + kIq4Values[i + 1]));
    index = add(index, where_less(middle, v, splat(1.0f), splat(0.0f)));
  }
  return index;
}
POTLUCK_LANES F32x16 nearest_entry_iq4(F32x16 v) {
  F32x16 entry = splat((float)kIq4Values[0]);
  for (int i = 0; i < 15; ++i) {
    const F32x16 middle = splat(0.5f * (float)(kIq4Values[i] + kIq4Values[i + 1]));
    const F32x16 step = splat((float)(kIq4Values[i + 1] - kIq4Values[i]));
    entry = add(entry, where_less(middle, v, step, splat(0.0f)));
  }
  return entry;
}

// The scale with the least squared error among those tried, for values whose extreme is `most`.
POTLUCK_LANES float search_iq4_nl(F32x16 low, F32x16 high, float most) {
  float best = 0.0f, best_gain = 0.0f;
  for (const float end : kIq4Ends) {
    for (int step = -kIq4Steps; step <= kIq4Steps; ++step) {
      const F32x16 inverse = splat((end + kIq4Step * (float)step) / most);
      const F32x16 a = nearest_entry_iq4(mul(low, inverse));
      const F32x16 b = nearest_entry_iq4(mul(high, inverse));
      const float products = sum(fma(b, high, mul(a, low)));
      const float squares = sum(fma(b, b, mul(a, a)));
      // The squared error is that of zeros minus products^2 / squares.
      const float gain = products * (products / squares);
      if (gain > best_gain) {
        best_gain = gain;
        best = products / squares;
      }
    }
  }
  return best;
}

POTLUCK_LANES bool encode_block_iq4_nl(const float* x, uint8_t* block) {
  // Scaled to numbers of at most 1, whose squares neither overflow nor underflow.
  const F32x16 stored_low = load(x), stored_high = load(x + 16);
  const float most = extreme(x, stored_low, stored_high);
  const float magnitude = most < 0.0f ? -most : most;
  float inverse = magnitude == 0.0f ? 0.0f : 1.0f / magnitude;
  if (inverse > kLargestF32) inverse = 0.0f;  // the scale is 0 as f16
  const F32x16 low = mul(stored_low, splat(inverse)), high = mul(stored_high, splat(inverse));
  const float scale =
      inverse == 0.0f ? 0.0f
                      : search_iq4_nl(low, high, most < 0.0f ? -1.0f : 1.0f) * magnitude;
  const bool is_finite = put_scale(scale, block);
  uint16_t halves[kNumLanes] = {};
  __builtin_memcpy(halves, block, 2);
  float rounded[kNumLanes];
  store(rounded, load_f16(halves));
  const F32x16 of_scale = inverse_or_zero(splat(rounded[0]));
  int8_t first[16], second[16];
  store_i8(first, round_i32(nearest_index_iq4(mul(stored_low, of_scale))));
  store_i8(second, round_i32(nearest_index_iq4(mul(stored_high, of_scale))));
  for (int i = 0; i < 16; ++i) block[2 + i] = (uint8_t)(first[i] | second[i] << 4);
  return is_finite;
}

}  // namespace

bool encode_iq4_nl(const float* x, int64_t count, uint8_t* out) {
  bool is_finite = true;
  for (int64_t i = 0; i < count; i += kColumnsOf32, out += 18)
    if (!encode_block_iq4_nl(x + i, out)) is_finite = false;
  return is_finite;
}

}  // namespace POTLUCK_ISA
}  // namespace potluck
