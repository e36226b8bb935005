// Q4_K: 8 groups of 32 columns, x ~ d * s * q - e * m with q in [0, 15], s and m in [0, 63], d and
// e f16. Two blocks are searched at once, which makes 16 groups.
//
// First each group separately: from several grids over its range, q by rounding, then the scale and
// the offset that fit these q best (least squares of a line). The block's d and e follow from the
// largest of them. Then every pair of integers near the group's fit is tried.
#pragma once

#include "kernels/convert/k_blocks.h"

namespace potluck {
namespace POTLUCK_ISA {
namespace {

constexpr int64_t kQ4Columns = 32;
constexpr int64_t kQ4Groups = 8;
constexpr int64_t kQ4BlockBytes = 144;
constexpr float kMostQ4 = 15.0f;
constexpr float kMostInteger = 63.0f;
// A maximum scale of 63.5 steps is still rounded to 63.
constexpr float kMostSteps = 63.5f;
// The initial grids span these fractions of a group's range; these fractions of the part that is
// clipped, or exceeds it, are at the lower end. (Error of Gaussian rows, by "error" of
// benchmarks/quantize.py: 1.017 times that with only the middle position; 0.999 times that with
// eight spans; 0.991 times that if the best of all pairs of integers near the range were used.)
constexpr float kSpans[] = {0.80f, 0.873f, 0.947f, 1.02f};
constexpr float kPositions[] = {0.2f, 0.5f, 0.8f};

// x ~ scale * q - offset, offset >= 0; `middle` is the mean of q.
struct Line {
  F32x16 scale, offset, middle;
};

// `low` <= 0 is the group's minimum. Sums are over y = x - low, so that an offset much larger than
// the range does not reduce their precision.
POTLUCK_LANES Line fit_lines(const float* tile, F32x16 low, F32x16 range) {
  const F32x16 zero = splat(0.0f), one = splat(1.0f), n = splat((float)kQ4Columns);
  F32x16 sum_y = zero, sum_yy = zero;
  for (int64_t k = 0; k < kQ4Columns; ++k) {
    const F32x16 y = sub(load(tile + k * kNumLanes), low);
    sum_y = add(sum_y, y);
    sum_yy = add(sum_yy, mul(y, y));
  }
  const F32x16 depth = sub(zero, low);
  Line best = {mul(range, splat(1.0f / kMostQ4)), depth, splat(0.0f)};
  F32x16 best_error = splat(__builtin_inff());
  for (const float span : kSpans) {
    const F32x16 inverse = mul(inverse_or_zero(range), splat(kMostQ4 / span));
    for (const float position : kPositions) {
      const F32x16 start = splat(-(1.0f - span) * position * kMostQ4 / span);
      F32x16 sum_q = zero, sum_qq = zero, sum_qy = zero;
      for (int64_t k = 0; k < kQ4Columns; ++k) {
        const F32x16 y = sub(load(tile + k * kNumLanes), low);
        const F32x16 q = nearest(clamp(add(mul(y, inverse), start), 0.0f, kMostQ4));
        sum_q = add(sum_q, q);
        sum_qq = add(sum_qq, mul(q, q));
        sum_qy = add(sum_qy, mul(q, y));
      }
      // The sums of q are exact integers; 0 only if all q are equal, or all 0.
      const F32x16 determinant = max(sub(mul(n, sum_qq), mul(sum_q, sum_q)), one);
      const F32x16 intercept =
          min(div(sub(mul(sum_qq, sum_y), mul(sum_q, sum_qy)), determinant), depth);
      const F32x16 scale =
          max(div(sub(sum_qy, mul(intercept, sum_q)), max(sum_qq, one)), zero);
      // sum (y - scale q - intercept)^2
      F32x16 error = mul(scale, sub(mul(scale, sum_qq), add(sum_qy, sum_qy)));
      const F32x16 cross = add(mul(add(scale, scale), sum_q), sub(mul(n, intercept),
                                                                add(sum_y, sum_y)));
      error = add(sum_yy, add(error, mul(intercept, cross)));
      best.scale = where_less(error, best_error, scale, best.scale);
      best.offset = where_less(error, best_error, sub(depth, intercept), best.offset);
      best.middle = where_less(error, best_error, mul(sum_q, splat(1.0f / 32)), best.middle);
      best_error = min(error, best_error);
    }
  }
  return best;
}

POTLUCK_LANES F32x16 round_q4(F32x16 x, F32x16 offset, F32x16 inverse) {
  return nearest(clamp(mul(add(x, offset), inverse), 0.0f, kMostQ4));
}

POTLUCK_LANES F32x16 squared_error_q4(const float* tile, F32x16 scale, F32x16 offset) {
  const F32x16 inverse = inverse_or_zero(scale);
  F32x16 error = splat(0.0f);
  for (int64_t k = 0; k < kQ4Columns; ++k) {
    const F32x16 x = load(tile + k * kNumLanes);
    const F32x16 rest = sub(add(x, offset), mul(scale, round_q4(x, offset, inverse)));
    error = add(error, mul(rest, rest));
  }
  return error;
}

// The integers of a group.
struct Pair {
  F32x16 scale, minimum;
};

POTLUCK_LANES Pair search_pairs(const float* tile, const Line& line, F32x16 d, F32x16 e) {
  const F32x16 middle_scale = nearest(mul(line.scale, inverse_or_zero(d)));
  const F32x16 inverse_e = inverse_or_zero(e);
  Pair best = {splat(0.0f), splat(0.0f)};
  F32x16 best_error = splat(__builtin_inff());
  for (int i = -1; i <= 1; ++i) {
    const F32x16 s = clamp(add(middle_scale, splat((float)i)), 0.0f, kMostInteger);
    const F32x16 scale = mul(d, s);
    // The line is expressed around the mean of its q.
    const F32x16 turned = sub(line.offset, mul(sub(line.scale, scale), line.middle));
    const F32x16 middle_minimum = nearest(mul(turned, inverse_e));
    for (int j = -1; j <= 1; ++j) {
      const F32x16 m = clamp(add(middle_minimum, splat((float)j)), 0.0f, kMostInteger);
      const F32x16 error = squared_error_q4(tile, scale, mul(e, m));
      best.scale = where_less(error, best_error, s, best.scale);
      best.minimum = where_less(error, best_error, m, best.minimum);
      best_error = min(error, best_error);
    }
  }
  return best;
}

// Sets every lane to the maximum of its block's eight.
POTLUCK_LANES F32x16 largest_of_block(F32x16 v) {
  float lanes[kNumLanes];
  store(lanes, v);
  for (int64_t first = 0; first < kNumLanes; first += kQ4Groups) {
    float largest = lanes[first];
    for (int64_t i = first; i < first + kQ4Groups; ++i)
      largest = lanes[i] > largest ? lanes[i] : largest;
    for (int64_t i = first; i < first + kQ4Groups; ++i) lanes[i] = largest;
  }
  return load(lanes);
}

// The layout is described at split_k_nibbles and get_k_scale (linear/file_blocks.h).
POTLUCK_LANES void pack_block_q4_k(const int8_t* q, const int8_t* s, const int8_t* m, uint16_t d,
                                   uint16_t e, uint8_t* block) {
  __builtin_memcpy(block, &d, 2);
  __builtin_memcpy(block + 2, &e, 2);
  uint8_t* packed = block + 4;
  for (int64_t i = 0; i < 4; ++i) {
    packed[i] = (uint8_t)(s[i] | s[i + 4] >> 4 << 6);
    packed[i + 4] = (uint8_t)(m[i] | m[i + 4] >> 4 << 6);
    packed[i + 8] = (uint8_t)((s[i + 4] & 15) | (m[i + 4] & 15) << 4);
  }
  for (int64_t pair = 0; pair < 4; ++pair)
    for (int64_t i = 0; i < kQ4Columns; ++i)
      block[16 + 32 * pair + i] = (uint8_t)(q[64 * pair + i] | q[64 * pair + 32 + i] << 4);
}

// One or two blocks.
POTLUCK_LANES bool encode_blocks_q4_k(const float* x, int64_t num_blocks, uint8_t* out) {
  float padded[2 * kBlockColumns];
  if (num_blocks == 1) {
    __builtin_memcpy(padded, x, sizeof padded / 2);
    __builtin_memset(padded + kBlockColumns, 0, sizeof padded / 2);
    x = padded;
  }
  float tile[2 * kBlockColumns];
  transpose_groups<kQ4Columns>(x, tile);
  F32x16 low = splat(0.0f), high = splat(0.0f);
  for (int64_t k = 0; k < kQ4Columns; ++k) {
    low = min(low, load(tile + k * kNumLanes));
    high = max(high, load(tile + k * kNumLanes));
  }
  const Line line = fit_lines(tile, low, sub(high, low));
  const Scales d = scales_for(largest_of_block(line.scale), kMostInteger, kMostSteps);
  const Scales e = scales_for(largest_of_block(line.offset), kMostInteger, kMostSteps);
  const Pair pair = search_pairs(tile, line, d.value, e.value);

  int8_t s[kNumLanes], m[kNumLanes], q[2 * kBlockColumns];
  float offsets[kNumLanes], inverses[kNumLanes];
  store_i8(s, round_i32(pair.scale));
  store_i8(m, round_i32(pair.minimum));
  store(offsets, mul(e.value, pair.minimum));
  store(inverses, inverse_or_zero(mul(d.value, pair.scale)));
  for (int64_t i = 0; i < 2 * kBlockColumns; i += kNumLanes) {
    const int64_t group = i / kQ4Columns;
    const F32x16 value = round_q4(load(x + i), splat(offsets[group]), splat(inverses[group]));
    store_i8(q + i, round_i32(value));
  }

  bool is_finite = true;
  for (int64_t b = 0; b < num_blocks; ++b) {
    const int64_t first = b * kQ4Groups;
    uint8_t* block = out + b * kQ4BlockBytes;
    if (is_finite_half(d.half[first]) && is_finite_half(e.half[first])) {
      pack_block_q4_k(q + b * kBlockColumns, s + first, m + first, d.half[first], e.half[first],
                      block);
    } else {
      __builtin_memset(block, 0, kQ4BlockBytes);
      is_finite = false;
    }
  }
  return is_finite;
}

}  // namespace

bool encode_q4_k(const float* x, int64_t count, uint8_t* out) {
  bool is_finite = true;
  for (int64_t i = 0; i < count; i += 2 * kBlockColumns) {
    const int64_t num_blocks = count - i < 2 * kBlockColumns ? 1 : 2;
    is_finite = encode_blocks_q4_k(x + i, num_blocks, out) && is_finite;
    out += num_blocks * kQ4BlockBytes;
  }
  return is_finite;
}

}  // namespace POTLUCK_ISA
}  // namespace potluck
