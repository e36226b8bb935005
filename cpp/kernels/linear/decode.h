// How a block of a panel becomes numbers, one class per format. Included by bodies, after the lanes
// of an instruction set.
//
// A quantized format gives, for a group of 32 columns, eight lines of unsigned bytes, a scale and
// possibly a minimum for each of the 16 rows: weight = scale * (v - kZero) + minimum. Q6_K has a
// second, integer scale for each half of the group.
#pragma once

#include "kernels/kernels.h"
#include "kernels/linear/layout.h"

namespace potluck {
namespace POTLUCK_ISA {
namespace {

struct Group {
  U8x64 line[layout::kQuadsPerGroup];
  F32x16 scale;
  F32x16 minimum;           // where kHasMinimum
  I32x16 half_scale[2];     // where kHasHalfScales
};

POTLUCK_LANES void load_nibbles(const uint8_t* low, Group& group) {
  for (int i = 0; i < 4; ++i) {
    const U8x64 both = load_bytes(low + i * layout::kLineBytes);
    group.line[i] = bits<0, 15>(both);
    group.line[i + 4] = bits<4, 15>(both);
  }
}

POTLUCK_LANES void add_fifth_bits(const uint8_t* high, Group& group) {
  const U8x64 all = load_bytes(high);
  group.line[0] = join(group.line[0], bits<0, 1>(all));
  group.line[1] = join(group.line[1], bits<1, 1>(all));
  group.line[2] = join(group.line[2], bits<2, 1>(all));
  group.line[3] = join(group.line[3], bits<3, 1>(all));
  group.line[4] = join(group.line[4], bits<4, 1>(all));
  group.line[5] = join(group.line[5], bits<5, 1>(all));
  group.line[6] = join(group.line[6], bits<6, 1>(all));
  group.line[7] = join(group.line[7], bits<7, 1>(all));
}

POTLUCK_LANES void add_upper_bits(const uint8_t* high, Group& group) {
  for (int half = 0; half < 2; ++half) {
    const U8x64 all = load_bytes(high + half * layout::kLineBytes);
    U8x64* line = group.line + 4 * half;
    line[0] = join(line[0], bits<0, 3>(all));
    line[1] = join(line[1], bits<2, 3>(all));
    line[2] = join(line[2], bits<4, 3>(all));
    line[3] = join(line[3], bits<6, 3>(all));
  }
}

// The 6-bit scale and minimum of group g of Q4_K and Q5_K (see layout.h). d * s is exact.
template <class L>
POTLUCK_LANES void load_k_scales(const uint8_t* block, int64_t g, Group& group) {
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
  group.scale = mul(load_f16(block + L::kScale), to_f32(scale));
  const F32x16 positive = mul(load_f16(block + L::kMinimum), to_f32(minimum));
  group.minimum = sub(splat(0.0f), positive);
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
  static POTLUCK_LANES void load(const uint8_t* block, int64_t, Group& group) {
    for (int i = 0; i < layout::kQuadsPerGroup; ++i)
      group.line[i] = load_bytes(block + Layout::kGroups + i * layout::kLineBytes);
    group.scale = load_f16(block + Layout::kScale);
  }
};

struct Q4_0 : QuantizedFormat<layout::Q4_0, 8, 1, false, false, 4> {
  static POTLUCK_LANES void load(const uint8_t* block, int64_t, Group& group) {
    load_nibbles(block + Layout::kGroups + Layout::kLow, group);
    group.scale = load_f16(block + Layout::kScale);
  }
};

struct Q4_1 : QuantizedFormat<layout::Q4_1, 0, 1, true, false, 4> {
  static POTLUCK_LANES void load(const uint8_t* block, int64_t, Group& group) {
    load_nibbles(block + Layout::kGroups + Layout::kLow, group);
    group.scale = load_f16(block + Layout::kScale);
    group.minimum = load_f16(block + Layout::kMinimum);
  }
};

struct Q5_0 : QuantizedFormat<layout::Q5_0, 16, 1, false, false, 5> {
  static POTLUCK_LANES void load(const uint8_t* block, int64_t, Group& group) {
    load_nibbles(block + Layout::kGroups + Layout::kLow, group);
    add_fifth_bits(block + Layout::kGroups + Layout::kHigh, group);
    group.scale = load_f16(block + Layout::kScale);
  }
};

struct Q5_1 : QuantizedFormat<layout::Q5_1, 0, 1, true, false, 5> {
  static POTLUCK_LANES void load(const uint8_t* block, int64_t, Group& group) {
    load_nibbles(block + Layout::kGroups + Layout::kLow, group);
    add_fifth_bits(block + Layout::kGroups + Layout::kHigh, group);
    group.scale = load_f16(block + Layout::kScale);
    group.minimum = load_f16(block + Layout::kMinimum);
  }
};

struct Q4_K : QuantizedFormat<layout::Q4_K, 0, 8, true, false, 4> {
  static POTLUCK_LANES void load(const uint8_t* block, int64_t g, Group& group) {
    const uint8_t* packed = block + Layout::kGroups + g * Layout::kGroupBytes;
    load_nibbles(packed + Layout::kLow, group);
    load_k_scales<Layout>(block, g, group);
  }
};

struct Q5_K : QuantizedFormat<layout::Q5_K, 0, 8, true, false, 5> {
  static POTLUCK_LANES void load(const uint8_t* block, int64_t g, Group& group) {
    const uint8_t* packed = block + Layout::kGroups + g * Layout::kGroupBytes;
    load_nibbles(packed + Layout::kLow, group);
    add_fifth_bits(packed + Layout::kHigh, group);
    load_k_scales<Layout>(block, g, group);
  }
};

struct Q6_K : QuantizedFormat<layout::Q6_K, 32, 8, false, true, 6> {
  static POTLUCK_LANES void load(const uint8_t* block, int64_t g, Group& group) {
    const uint8_t* packed = block + Layout::kGroups + g * Layout::kGroupBytes;
    load_nibbles(packed + Layout::kLow, group);
    add_upper_bits(packed + Layout::kHigh, group);
    group.scale = load_f16(block + Layout::kScale);
    group.half_scale[0] = load_i8(block + Layout::kHalfScales + 32 * g);
    group.half_scale[1] = load_i8(block + Layout::kHalfScales + 32 * g + 16);
  }
};

// A float format gives the 16 rows' weights of one column, or of kStep columns that lie together.
struct F32 {
  static constexpr int64_t kBytes = 4;
  static constexpr int kStep = 1;
  static POTLUCK_LANES F32x16 load_column(const uint8_t* p) { return load(p); }
  static POTLUCK_LANES void load_step(const uint8_t* p, F32x16 weights[1]) {
    weights[0] = load_column(p);
  }
};
struct F16 {
  static constexpr int64_t kBytes = 2;
  static constexpr int kStep = 1;
  static POTLUCK_LANES F32x16 load_column(const uint8_t* p) { return load_f16(p); }
  static POTLUCK_LANES void load_step(const uint8_t* p, F32x16 weights[1]) {
    weights[0] = load_column(p);
  }
};
struct BF16 {
  static constexpr int64_t kBytes = 2;
  static constexpr int kStep = 2;
  static POTLUCK_LANES F32x16 load_column(const uint8_t* p) { return load_bf16(p); }
  static POTLUCK_LANES void load_step(const uint8_t* p, F32x16 weights[2]) {
    const I32x16 pairs = as_i32(load(p));
    weights[0] = as_f32(shift_left<16>(pairs));
    weights[1] = as_f32(bit_and(pairs, splat_i32((int32_t)0xffff0000)));
  }
};

}  // namespace
}  // namespace POTLUCK_ISA
}  // namespace potluck
