// The integers of the file's quantized blocks, 32 columns at a time. The block layouts are those of
// ggml (ggml-common.h, ggml-quants.c).
#pragma once

#include <stdint.h>

namespace potluck {

// The nibbles of 32 columns: column i low in byte i, column i + 16 high.
static inline void split_nibbles(const uint8_t* nibbles, uint8_t v[32]) {
  for (int64_t i = 0; i < 16; ++i) {
    v[i] = nibbles[i] & 15;
    v[i + 16] = nibbles[i] >> 4;
  }
}

// The fifth bits of 32 columns: bit i of a little-endian word for column i.
static inline void add_fifth_bits(const uint8_t* word, uint8_t v[32]) {
  for (int64_t i = 0; i < 32; ++i)
    v[i] = static_cast<uint8_t>(v[i] | (word[i / 8] >> (i % 8) & 1) << 4);
}

// Q4_K, Q5_K: groups 2 c and 2 c + 1 are the low and the high nibbles of the same 32 bytes.
static inline void split_k_nibbles(const uint8_t* nibbles, int64_t group, uint8_t v[32]) {
  for (int64_t i = 0; i < 32; ++i) v[i] = nibbles[32 * (group / 2) + i] >> (4 * (group % 2)) & 15;
}

// Q5_K: bit g of byte i is the fifth bit of column i of group g.
static inline void add_k_fifth_bits(const uint8_t* high, int64_t group, uint8_t v[32]) {
  for (int64_t i = 0; i < 32; ++i) v[i] = static_cast<uint8_t>(v[i] | (high[i] >> group & 1) << 4);
}

// Q6_K: 128 bytes of nibbles, 64 of upper bits, 16 scales, d. Of each 128 columns (four groups)
// the nibbles of groups 0 and 2 share 32 bytes, those of 1 and 3 the next 32; byte i of the upper
// bits has two bits for column i of each group.
static inline void split_q6_k(const uint8_t* file, int64_t group, uint8_t v[32]) {
  const int64_t g = group % 4;
  const uint8_t* nibbles = file + 64 * (group / 4) + 32 * (g % 2);
  const uint8_t* upper = file + 128 + 32 * (group / 4);
  for (int64_t i = 0; i < 32; ++i)
    v[i] = static_cast<uint8_t>((nibbles[i] >> (4 * (g / 2)) & 15) |
                                (upper[i] >> (2 * g) & 3) << 4);
}

// Q4_K, Q5_K: the 6-bit scale and minimum of a group from the 12 bytes that hold them. The first
// four are the low 6 bits of bytes 0-3 and 4-7; the last four have their low 4 bits in bytes 8-11
// (scales in the low, minimums in the high nibbles), and their upper 2 above the first ones.
struct KScale {
  uint8_t scale, minimum;
};
static inline KScale get_k_scale(const uint8_t* packed, int64_t group) {
  if (group < 4)
    return {static_cast<uint8_t>(packed[group] & 63), static_cast<uint8_t>(packed[group + 4] & 63)};
  const uint8_t low = packed[group + 4];
  return {static_cast<uint8_t>((low & 15) | packed[group - 4] >> 6 << 4),
          static_cast<uint8_t>(low >> 4 | packed[group] >> 6 << 4)};
}

// Q2_K, Q3_K: byte i of 32 has two bits of column i of each of four groups.
static inline void split_pairs(const uint8_t* pairs, int64_t group, uint8_t v[32]) {
  for (int64_t i = 0; i < 32; ++i) v[i] = pairs[32 * (group / 4) + i] >> (2 * (group % 4)) & 3;
}

// Q3_K: bit g of byte i is the third bit of column i of group g.
static inline void add_third_bits(const uint8_t* high, int64_t group, uint8_t v[32]) {
  for (int64_t i = 0; i < 32; ++i) v[i] = static_cast<uint8_t>(v[i] | (high[i] >> group & 1) << 2);
}

// Q3_K: 16 scales of 6 bits from 12 bytes. The low 4 bits of the first 8 scales are the low nibbles
// of the first 8 bytes, those of the others the high nibbles; byte j of the last 4 has the upper 2
// bits of scales j, j + 4, j + 8 and j + 12.
static inline void get_q3_k_scales(const uint8_t* packed, uint8_t scales[16]) {
  for (int64_t i = 0; i < 16; ++i) {
    const int low = packed[i % 8] >> (4 * (i / 8)) & 15;
    const int top = packed[8 + i % 4] >> (2 * (i / 4)) & 3;
    scales[i] = static_cast<uint8_t>(low | top << 4);
  }
}

// IQ4_XS: the 6-bit scale of a group from its low nibble and a pair of upper bits.
static inline uint8_t get_iq4_xs_scale(const uint8_t* block, int64_t group) {
  const int low = block[4 + group / 2] >> (4 * (group % 2)) & 15;
  const int top = block[2 + group / 4] >> (2 * (group % 4)) & 3;
  return static_cast<uint8_t>(low | top << 4);
}

// The values of the nibbles of IQ4_NL and IQ4_XS, and twice those of MXFP4.
constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};
constexpr int8_t kE2m1Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

}  // namespace potluck
