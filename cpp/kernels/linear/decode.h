// How a block of a panel becomes numbers, one class per format. Included by bodies, after the lanes
// of an instruction set.
//
// A quantized format gives, for a group of 32 columns, eight quads of unsigned bytes below 2^kBits,
// a scale and possibly a minimum for each of the 16 rows: weight = scale * (v - kZero) + minimum.
// Q6_K, Q2_K and Q3_K have a second, integer scale for each half of the group, and Q2_K a factor of
// the minimum as well.
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
  I32x16 half_minimum[2];  // where kHasHalfMinimums: factors of `minimum`
};

// Quads i and i + 4 of a group, which are the low and the high nibbles of a line.
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

template <int i>
POTLUCK_LANES QuadPair load_low_pairs(const uint8_t* pairs) {
  return {bits<2 * i, 3>(load_bytes(pairs)), bits<2 * i, 3>(load_bytes(pairs + layout::kLineBytes))};
}

template <int i>
POTLUCK_LANES QuadPair add_third_bits(const uint8_t* high, QuadPair quads) {
  const U8x64 all = load_bytes(high);
  return {join<i, 1, 2>(quads.first, all), join<i + 4, 1, 2>(quads.second, all)};
}

// The entries of a table that is indexed by nibbles.
template <int i>
POTLUCK_LANES QuadPair load_entries(const uint8_t* low, const uint8_t* entries) {
  const ByteTable table = load_table(entries);
  const QuadPair nibbles = load_nibbles<i>(low);
  return {look_up(table, nibbles.first), look_up(table, nibbles.second)};
}

// Six-bit scale i of `count` (see layout.h), minus 32.
POTLUCK_LANES I32x16 load_six_bits(const uint8_t* packed, int64_t count, int64_t i) {
  const int64_t num_bytes = count / 4 * 3;
  const I32x16 offset = splat_i32(32);
  if (i < num_bytes) return sub(bit_and(load_u8(packed + 16 * i), splat_i32(63)), offset);
  const uint8_t* top = packed + 48 * (i - num_bytes);
  const I32x16 low = shift_right<6>(load_u8(top));
  const I32x16 middle = shift_left<2>(shift_right<6>(load_u8(top + 16)));
  const I32x16 high = shift_left<4>(shift_right<6>(load_u8(top + 32)));
  return sub(bit_or(low, bit_or(middle, high)), offset);
}

// 2^(e - 128), of which 2^-128 and 2^-127 are subnormal: computed as two factors that are not.
POTLUCK_LANES F32x16 load_half_power(const uint8_t* exponents) {
  const I32x16 e = load_u8(exponents);
  const I32x16 half = shift_right<1>(e);
  const I32x16 bias = splat_i32(63);
  return mul(as_f32(shift_left<23>(add(half, bias))),
             as_f32(shift_left<23>(add(sub(e, half), bias))));
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
  static constexpr bool kHasHalfMinimums = has_minimum && has_half_scales;
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

struct Q2_K : QuantizedFormat<layout::Q2_K, 0, 8, true, true, 2> {
  template <int i>
  static POTLUCK_LANES QuadPair load_quads(const uint8_t* group) {
    return load_low_pairs<i>(group + Layout::kPairs);
  }
  static POTLUCK_LANES void load_scales(const uint8_t* block, int64_t g, GroupScales& scales) {
    scales.scale = load_f16(block + Layout::kScale);
    scales.minimum = sub(splat(0.0f), load_f16(block + Layout::kMinimum));
    for (int h = 0; h < 2; ++h) {
      const I32x16 both = load_u8(block + Layout::kHalfScales + 32 * g + 16 * h);
      scales.half_scale[h] = bit_and(both, splat_i32(15));
      scales.half_minimum[h] = shift_right<4>(both);
    }
  }
};

struct Q3_K : QuantizedFormat<layout::Q3_K, 4, 8, false, true, 3> {
  template <int i>
  static POTLUCK_LANES QuadPair load_quads(const uint8_t* group) {
    return add_third_bits<i>(group + Layout::kHigh, load_low_pairs<i>(group + Layout::kPairs));
  }
  static POTLUCK_LANES void load_scales(const uint8_t* block, int64_t g, GroupScales& scales) {
    scales.scale = load_f16(block + Layout::kScale);
    for (int h = 0; h < 2; ++h)
      scales.half_scale[h] = load_six_bits(block + Layout::kHalfScales, 16, 2 * g + h);
  }
};

// kIq4Values and kE2m1Doubled (file_blocks.h) plus kZero, which makes them unsigned.
constexpr uint8_t kIq4Entries[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                     129, 141, 153, 166, 181, 197, 217, 241};
constexpr uint8_t kE2m1Entries[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

struct IQ4_NL : QuantizedFormat<layout::IQ4_NL, 128, 1, false, false, 8> {
  template <int i>
  static POTLUCK_LANES QuadPair load_quads(const uint8_t* group) {
    return load_entries<i>(group + Layout::kLow, kIq4Entries);
  }
  static POTLUCK_LANES void load_scales(const uint8_t* block, int64_t, GroupScales& scales) {
    scales.scale = load_f16(block + Layout::kScale);
  }
};

struct IQ4_XS : QuantizedFormat<layout::IQ4_XS, 128, 8, false, false, 8> {
  template <int i>
  static POTLUCK_LANES QuadPair load_quads(const uint8_t* group) {
    return load_entries<i>(group + Layout::kLow, kIq4Entries);
  }
  static POTLUCK_LANES void load_scales(const uint8_t* block, int64_t g, GroupScales& scales) {
    const I32x16 scale = load_six_bits(block + Layout::kGroupScales, 8, g);
    scales.scale = mul(load_f16(block + Layout::kScale), to_f32(scale));
  }
};

struct MXFP4 : QuantizedFormat<layout::MXFP4, 12, 1, false, false, 5> {
  template <int i>
  static POTLUCK_LANES QuadPair load_quads(const uint8_t* group) {
    return load_entries<i>(group + Layout::kLow, kE2m1Entries);
  }
  static POTLUCK_LANES void load_scales(const uint8_t* block, int64_t, GroupScales& scales) {
    scales.scale = load_half_power(block + Layout::kExponent);
  }
};

// A float format yields the 16 rows' weights of one column, or of column i < kStep of those stored
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
