// How a block of a panel becomes numbers, one class per format. Included by bodies, after the lanes
// of an instruction set.
//
// A quantized format gives, for a group of 32 columns, eight quads of unsigned bytes below 2^kBits,
// a scale and possibly a minimum for each of the 16 rows: weight = scale * (v - kZero) + minimum.
// Q6_K has a second, integer scale for each half of the group.
#pragma once

#include "kernels/kernels.h"
#include "kernels/linear/layout.h"

namespace potluck {
namespace POTLUCK_ISA {
namespace {

struct GroupScales {
  F32x16 scale;
  F32x16 minimum;        // where kHasMinimum
  I32x16 half_scale[2];  // where kHasHalfScales
};

// Quads i and i + 4 of a group, of which the lines of nibbles have one low and one high.
struct QuadPair {
  U8x64 first, second;
};

template <int i>
POTLUCK_LANES QuadPair load_nibbles(const uint8_t* low) {
  const U8x64 both = load_bytes(low + i * layout::kLineBytes);
  return {bits<0, 15>(both), bits<4, 15>(both)};
}

template <int i>
POTLUCK_LANES QuadPair add_fifth_bits(const uint8_t* high, QuadPair quads) {
  const U8x64 all = load_bytes(high);
  return {join<i, 1>(quads.first, all), join<i + 4, 1>(quads.second, all)};
}

template <int i>
POTLUCK_LANES QuadPair add_upper_bits(const uint8_t* high, QuadPair quads) {
  const U8x64 first = load_bytes(high);
  const U8x64 second = load_bytes(high + layout::kLineBytes);
  return {join<2 * i, 3>(quads.first, first), join<2 * i, 3>(quads.second, second)};
}

// The 6-bit scale and minimum of group g of Q4_K and Q5_K (see layout.h). d * s is exact.
template <class L>
POTLUCK_LANES void load_k_scales(const uint8_t* block, int64_t g, GroupScales& scales) {
  const uint8_t* packed = block + L::kGroupScales;
  I32x16 scale, minimum;
  if (g < 4) {
    const I32x16 six = splat_i32(63);
    scale = bit_and(load_u8(packed + 16 * g), six);
    minimum = bit_and(load_u8(packed + 16 * (g + 4)), six);
  } else {
    const I32x16 low = load_u8(packed + 16 * (g + 4));
    const I32x16 scale_top = shift_right<6>(load_u8(packed + 16 * (g - 4)));
    const I32x16 minimum_top = shift_right<6>(load_u8(packed + 16 * g));
    scale = bit_or(bit_and(low, splat_i32(15)), shift_left<4>(scale_top));
    minimum = bit_or(shift_right<4>(low), shift_left<4>(minimum_top));
  }
  scales.scale = mul(load_f16(block + L::kScale), to_f32(scale));
  const F32x16 positive = mul(load_f16(block + L::kMinimum), to_f32(minimum));
  scales.minimum = sub(splat(0.0f), positive);
}

template <class L, int zero, int num_groups, bool has_minimum, bool has_half_scales, int value_bits>
struct QuantizedFormat {
  using Layout = L;
  static constexpr int kZero = zero;
  static constexpr int kGroupsPerBlock = num_groups;
  static constexpr bool kHasMinimum = has_minimum;
  static constexpr bool kHasHalfScales = has_half_scales;
  static constexpr int kBits = value_bits;
};

struct Q8_0 : QuantizedFormat<layout::Q8_0, 128, 1, false, false, 8> {
  template <int i>
  static POTLUCK_LANES QuadPair load_quads(const uint8_t* group) {
    return {load_bytes(group + i * layout::kLineBytes),
            load_bytes(group + (i + 4) * layout::kLineBytes)};
  }
  static POTLUCK_LANES void load_scales(const uint8_t* block, int64_t, GroupScales& scales) {
    scales.scale = load_f16(block + Layout::kScale);
  }
};

struct Q4_0 : QuantizedFormat<layout::Q4_0, 8, 1, false, false, 4> {
  template <int i>
  static POTLUCK_LANES QuadPair load_quads(const uint8_t* group) {
    return load_nibbles<i>(group + Layout::kLow);
  }
  static POTLUCK_LANES void load_scales(const uint8_t* block, int64_t, GroupScales& scales) {
    scales.scale = load_f16(block + Layout::kScale);
  }
};

struct Q4_1 : QuantizedFormat<layout::Q4_1, 0, 1, true, false, 4> {
  template <int i>
  static POTLUCK_LANES QuadPair load_quads(const uint8_t* group) {
    return load_nibbles<i>(group + Layout::kLow);
  }
  static POTLUCK_LANES void load_scales(const uint8_t* block, int64_t, GroupScales& scales) {
    scales.scale = load_f16(block + Layout::kScale);
    scales.minimum = load_f16(block + Layout::kMinimum);
  }
};

struct Q5_0 : QuantizedFormat<layout::Q5_0, 16, 1, false, false, 5> {
  template <int i>
  static POTLUCK_LANES QuadPair load_quads(const uint8_t* group) {
    return add_fifth_bits<i>(group + Layout::kHigh, load_nibbles<i>(group + Layout::kLow));
  }
  static POTLUCK_LANES void load_scales(const uint8_t* block, int64_t, GroupScales& scales) {
    scales.scale = load_f16(block + Layout::kScale);
  }
};

struct Q5_1 : QuantizedFormat<layout::Q5_1, 0, 1, true, false, 5> {
  template <int i>
  static POTLUCK_LANES QuadPair load_quads(const uint8_t* group) {
    return add_fifth_bits<i>(group + Layout::kHigh, load_nibbles<i>(group + Layout::kLow));
  }
  static POTLUCK_LANES void load_scales(const uint8_t* block, int64_t, GroupScales& scales) {
    scales.scale = load_f16(block + Layout::kScale);
    scales.minimum = load_f16(block + Layout::kMinimum);
  }
};

struct Q4_K : QuantizedFormat<layout::Q4_K, 0, 8, true, false, 4> {
  template <int i>
  static POTLUCK_LANES QuadPair load_quads(const uint8_t* group) {
    return load_nibbles<i>(group + Layout::kLow);
  }
  static POTLUCK_LANES void load_scales(const uint8_t* block, int64_t g, GroupScales& scales) {
    load_k_scales<Layout>(block, g, scales);
  }
};

struct Q5_K : QuantizedFormat<layout::Q5_K, 0, 8, true, false, 5> {
  template <int i>
  static POTLUCK_LANES QuadPair load_quads(const uint8_t* group) {
    return add_fifth_bits<i>(group + Layout::kHigh, load_nibbles<i>(group + Layout::kLow));
  }
  static POTLUCK_LANES void load_scales(const uint8_t* block, int64_t g, GroupScales& scales) {
    load_k_scales<Layout>(block, g, scales);
  }
};

struct Q6_K : QuantizedFormat<layout::Q6_K, 32, 8, false, true, 6> {
  template <int i>
  static POTLUCK_LANES QuadPair load_quads(const uint8_t* group) {
    return add_upper_bits<i>(group + Layout::kHigh, load_nibbles<i>(group + Layout::kLow));
  }
  static POTLUCK_LANES void load_scales(const uint8_t* block, int64_t g, GroupScales& scales) {
    scales.scale = load_f16(block + Layout::kScale);
    scales.half_scale[0] = load_i8(block + Layout::kHalfScales + 32 * g);
    scales.half_scale[1] = load_i8(block + Layout::kHalfScales + 32 * g + 16);
  }
};

// A float format gives the 16 rows' weights of one column, or of column i < kStep of those that lie
// together.
struct F32 {
  static constexpr int64_t kBytes = 4;
  static constexpr int kStep = 1;
  static POTLUCK_LANES F32x16 load_column(const uint8_t* p) { return load(p); }
  static POTLUCK_LANES F32x16 load_step(const uint8_t* p, int) { return load_column(p); }
};
struct F16 {
  static constexpr int64_t kBytes = 2;
  static constexpr int kStep = 1;
  static POTLUCK_LANES F32x16 load_column(const uint8_t* p) { return load_f16(p); }
  static POTLUCK_LANES F32x16 load_step(const uint8_t* p, int) { return load_column(p); }
};
struct BF16 {
  static constexpr int64_t kBytes = 2;
  static constexpr int kStep = 2;
  static POTLUCK_LANES F32x16 load_column(const uint8_t* p) { return load_bf16(p); }
  static POTLUCK_LANES F32x16 load_step(const uint8_t* p, int i) {
    const I32x16 pairs = as_i32(load(p));
    return as_f32(i == 0 ? shift_left<16>(pairs) : bit_and(pairs, splat_i32((int32_t)0xffff0000)));
  }
};

}  // namespace
}  // namespace POTLUCK_ISA
}  // namespace potluck
