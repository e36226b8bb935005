// Converts quantized rows in the file's layout to float32. Plain C++: the same on every machine.
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/linear/file_blocks.h"
#include "simd/lanes_scalar.h"

namespace potluck {
namespace {

float half_at(const uint8_t* bytes) {
  uint16_t half;
  memcpy(&half, bytes, 2);
  return scalar::f16_to_f32(half);
}

// Values minus `zero`, times the scale.
void scale_values(const uint8_t v[32], int zero, float scale, float* out) {
  for (int64_t i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(v[i] - zero);
}

// Values times the scale, plus the minimum.
void scale_values_from(const uint8_t v[32], float scale, float minimum, float* out) {
  for (int64_t i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(v[i]) + minimum;
}

void dequantize_q8_0(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  for (int64_t i = 0; i < 32; ++i)
    out[i] = scale * static_cast<float>(static_cast<int8_t>(block[2 + i]));
}

void dequantize_q4_0(const uint8_t* block, float* out) {
  uint8_t v[32];
  split_nibbles(block + 2, v);
  scale_values(v, 8, half_at(block), out);
}

void dequantize_q4_1(const uint8_t* block, float* out) {
  uint8_t v[32];
  split_nibbles(block + 4, v);
  scale_values_from(v, half_at(block), half_at(block + 2), out);
}

void dequantize_q5_0(const uint8_t* block, float* out) {
  uint8_t v[32];
  split_nibbles(block + 6, v);
  add_fifth_bits(block + 2, v);
  scale_values(v, 16, half_at(block), out);
}

void dequantize_q5_1(const uint8_t* block, float* out) {
  uint8_t v[32];
  split_nibbles(block + 8, v);
  add_fifth_bits(block + 4, v);
  scale_values_from(v, half_at(block), half_at(block + 2), out);
}

// The scale and the minimum of group g of Q4_K and Q5_K.
void scale_k_values(const uint8_t* block, int64_t group, const uint8_t v[32], float* out) {
  const KScale k = get_k_scale(block + 4, group);
  const float scale = half_at(block) * static_cast<float>(k.scale);
  const float minimum = half_at(block + 2) * static_cast<float>(k.minimum);
  scale_values_from(v, scale, -minimum, out + 32 * group);
}

void dequantize_q4_k(const uint8_t* block, float* out) {
  uint8_t v[32];
  for (int64_t group = 0; group < 8; ++group) {
    split_k_nibbles(block + 16, group, v);
    scale_k_values(block, group, v, out);
  }
}

void dequantize_q5_k(const uint8_t* block, float* out) {
  uint8_t v[32];
  for (int64_t group = 0; group < 8; ++group) {
    split_k_nibbles(block + 48, group, v);
    add_k_fifth_bits(block + 16, group, v);
    scale_k_values(block, group, v, out);
  }
}

void dequantize_q6_k(const uint8_t* block, float* out) {
  const float d = half_at(block + 208);
  uint8_t v[32];
  for (int64_t group = 0; group < 8; ++group) {
    split_q6_k(block, group, v);
    for (int64_t i = 0; i < 32; ++i) {
      const auto s = static_cast<int8_t>(block[192 + 2 * group + i / 16]);
      out[32 * group + i] = d * static_cast<float>(s) * static_cast<float>(v[i] - 32);
    }
  }
}

void dequantize_q2_k(const uint8_t* block, float* out) {
  const float d = half_at(block + 80), dmin = half_at(block + 82);
  uint8_t v[32];
  for (int64_t group = 0; group < 8; ++group) {
    split_pairs(block + 16, group, v);
    for (int64_t i = 0; i < 32; ++i) {
      const int both = block[2 * group + i / 16];
      const float scale = d * static_cast<float>(both & 15);
      const float minimum = dmin * static_cast<float>(both >> 4);
      out[32 * group + i] = scale * static_cast<float>(v[i]) - minimum;
    }
  }
}

void dequantize_q3_k(const uint8_t* block, float* out) {
  const float d = half_at(block + 108);
  uint8_t scales[16], v[32];
  get_q3_k_scales(block + 96, scales);
  for (int64_t group = 0; group < 8; ++group) {
    split_pairs(block + 32, group, v);
    add_third_bits(block, group, v);
    for (int64_t i = 0; i < 32; ++i) {
      const int scale = scales[2 * group + i / 16] - 32;
      out[32 * group + i] = d * static_cast<float>(scale) * static_cast<float>(v[i] - 4);
    }
  }
}

void scale_entries(const int8_t table[16], const uint8_t* nibbles, float scale, float* out) {
  uint8_t v[32];
  split_nibbles(nibbles, v);
  for (int64_t i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(table[v[i]]);
}

void dequantize_iq4_nl(const uint8_t* block, float* out) {
  scale_entries(kIq4Values, block + 2, half_at(block), out);
}

void dequantize_iq4_xs(const uint8_t* block, float* out) {
  const float d = half_at(block);
  for (int64_t group = 0; group < 8; ++group) {
    const float scale = d * static_cast<float>(get_iq4_xs_scale(block, group) - 32);
    scale_entries(kIq4Values, block + 8 + 16 * group, scale, out + 32 * group);
  }
}

void dequantize_mxfp4(const uint8_t* block, float* out) {
  const uint32_t bits = block[0] < 2 ? 0x00200000u << block[0] : (block[0] - 1u) << 23;
  float scale;  // 2^(e - 128)
  memcpy(&scale, &bits, 4);
  scale_entries(kE2m1Doubled, block + 1, scale, out);
}

using DequantizeBlock = void (*)(const uint8_t* block, float* out);
constexpr int kFirstQuantized = static_cast<int>(Format::Q8_0);
constexpr DequantizeBlock kDequantizeBlock[kNumFormats - kFirstQuantized] = {
    dequantize_q8_0, dequantize_q4_0, dequantize_q4_1, dequantize_q5_0,
    dequantize_q5_1, dequantize_q4_k, dequantize_q5_k, dequantize_q6_k,
    dequantize_q2_k, dequantize_q3_k, dequantize_iq4_nl, dequantize_iq4_xs, dequantize_mxfp4,
};

}  // namespace

void dequantize(Format format, const uint8_t* stored, int64_t count, float* out) {
  const FormatInfo info = format_info(format);
  const DequantizeBlock block = kDequantizeBlock[static_cast<int>(format) - kFirstQuantized];
  for (int64_t i = 0; i < count; i += info.block_columns, stored += info.block_bytes)
    block(stored, out + i);
}

}  // namespace potluck
