// Where the bytes of a panel lie, for every format.
//
// A panel holds 16 rows. It is a sequence of blocks, each of `block_columns` columns, and takes
// exactly 16 times the bytes that a block of one row takes in the file. Within a block every field
// of the file is interleaved over the 16 rows ("row r" below is the row within the panel):
//
//   halves   16 x 2 bytes   bytes [2 r, 2 r + 2): the f16 of row r
//   bytes    16 x 1 byte    byte r: that of row r
//   line     64 bytes       bytes [4 r, 4 r + 4): row r's values for four consecutive columns
//
// A line is one operand of an 8-bit dot product over 16 rows (AVX-512 VNNI), and eight lines are
// one 32-column tile of AMX. Quantized blocks have their columns in groups of 32, group after
// group; a group has eight *quads* of four columns each. With v the value as an unsigned integer:
//
//   low nibbles   4 lines; line i, byte 4 r + j: quad i's (v & 15) | quad (i + 4)'s (v & 15) << 4
//   fifth bits    1 line; byte 4 r + j: bit i is bit 4 of quad i's v
//   upper bits    2 lines; line h, byte 4 r + j: bits [2 i, 2 i + 2) are bits 4 and 5 of quad
//                 (4 h + i)'s v
//   low pairs     likewise of bits 0 and 1, and third bits as fifth bits are
//
// Six-bit scales, of which there are 4 n, lie in 3 n bytes: byte i < 3 n has scale i in its low six
// bits, and the top bits of bytes 3 j, 3 j + 1 and 3 j + 2 are those of scale 3 n + j, the low ones
// first.
//
// Offsets and sizes are in bytes. kGroups is where the first group lies within the block, the
// others follow at kGroupBytes; kLow and kHigh count from the group.
#pragma once

#include <stdint.h>

namespace potluck {
namespace layout {

constexpr int64_t kLineBytes = 64;
constexpr int64_t kHalvesBytes = 32;
constexpr int64_t kQuadsPerGroup = 8;

// F32 and F16: the 16 rows' values of one column, then those of the next.

// A pair line: bytes [4 r, 4 r + 4) are row r's values of two consecutive columns, the even one
// first. It is one operand of `vdpbf16ps` over 16 rows, and 16 of them are one 32-column tile of
// AMX; as 32-bit numbers a shift gives the even column as f32 and a mask the odd one. A last column
// without a partner is in halves, so that panels take the bytes of the file.
struct BF16 {
  static constexpr int64_t kPairColumns = 2;
};

// d * (v - 128). The file's signed byte q is stored as v = q + 128.
struct Q8_0 {
  static constexpr int64_t kScale = 0;  // halves: d
  static constexpr int64_t kGroups = 32;
  static constexpr int64_t kGroupBytes = 512;  // eight lines, quad after quad
  static constexpr int64_t kBlockBytes = 544;
};

// d * (v - 8).
struct Q4_0 {
  static constexpr int64_t kScale = 0;
  static constexpr int64_t kGroups = 32;
  static constexpr int64_t kLow = 0;
  static constexpr int64_t kGroupBytes = 256;
  static constexpr int64_t kBlockBytes = 288;
};

// d * v + m.
struct Q4_1 {
  static constexpr int64_t kScale = 0;
  static constexpr int64_t kMinimum = 32;  // halves: m
  static constexpr int64_t kGroups = 64;
  static constexpr int64_t kLow = 0;
  static constexpr int64_t kGroupBytes = 256;
  static constexpr int64_t kBlockBytes = 320;
};

// d * (v - 16).
struct Q5_0 {
  static constexpr int64_t kScale = 0;
  static constexpr int64_t kGroups = 32;
  static constexpr int64_t kHigh = 0;  // fifth bits
  static constexpr int64_t kLow = 64;
  static constexpr int64_t kGroupBytes = 320;
  static constexpr int64_t kBlockBytes = 352;
};

// d * v + m.
struct Q5_1 {
  static constexpr int64_t kScale = 0;
  static constexpr int64_t kMinimum = 32;
  static constexpr int64_t kGroups = 64;
  static constexpr int64_t kHigh = 0;
  static constexpr int64_t kLow = 64;
  static constexpr int64_t kGroupBytes = 320;
  static constexpr int64_t kBlockBytes = 384;
};

// (d * s_g) * v - dmin * m_g for group g. The 6-bit s and m stay packed as in the file's 12 bytes:
// for g < 4 byte g has s_g and byte g + 4 has m_g in bits [0, 6); for g >= 4 byte g + 4 has the low
// nibbles of s_g and m_g, and their upper two bits are the top bits of bytes g - 4 and g.
struct Q4_K {
  static constexpr int64_t kScale = 0;
  static constexpr int64_t kMinimum = 32;      // halves: dmin
  static constexpr int64_t kGroupScales = 64;  // 12 x bytes
  static constexpr int64_t kGroups = 256;
  static constexpr int64_t kLow = 0;
  static constexpr int64_t kGroupBytes = 256;
  static constexpr int64_t kBlockBytes = 2304;
};

// As Q4_K.
struct Q5_K {
  static constexpr int64_t kScale = 0;
  static constexpr int64_t kMinimum = 32;
  static constexpr int64_t kGroupScales = 64;
  static constexpr int64_t kGroups = 256;
  static constexpr int64_t kHigh = 0;  // fifth bits
  static constexpr int64_t kLow = 64;
  static constexpr int64_t kGroupBytes = 320;
  static constexpr int64_t kBlockBytes = 2816;
};

// d * s_h * (v - 32), where h counts half groups of 16 columns.
struct Q6_K {
  static constexpr int64_t kScale = 0;
  static constexpr int64_t kHalfScales = 32;  // 16 x bytes, signed
  static constexpr int64_t kGroups = 288;
  static constexpr int64_t kHigh = 0;  // upper bits
  static constexpr int64_t kLow = 128;
  static constexpr int64_t kGroupBytes = 384;
  static constexpr int64_t kBlockBytes = 3360;
};

// (d * s_h) * v - dmin * m_h, where h counts half groups of 16 columns: s the low and m the high
// nibble of byte h.
struct Q2_K {
  static constexpr int64_t kScale = 0;
  static constexpr int64_t kMinimum = 32;     // halves: dmin
  static constexpr int64_t kHalfScales = 64;  // 16 x bytes
  static constexpr int64_t kGroups = 320;
  static constexpr int64_t kPairs = 0;  // low pairs
  static constexpr int64_t kGroupBytes = 128;
  static constexpr int64_t kBlockBytes = 1344;
};

// d * (s_h - 32) * (v - 4), where h counts half groups.
struct Q3_K {
  static constexpr int64_t kScale = 0;
  static constexpr int64_t kHalfScales = 32;  // 12 x bytes: 16 six-bit scales
  static constexpr int64_t kGroups = 224;
  static constexpr int64_t kHigh = 0;    // third bits
  static constexpr int64_t kPairs = 64;  // low pairs
  static constexpr int64_t kGroupBytes = 192;
  static constexpr int64_t kBlockBytes = 1760;
};

// d * t[v], where t is a table of 16 integers (see decode.h).
struct IQ4_NL {
  static constexpr int64_t kScale = 0;
  static constexpr int64_t kGroups = 32;
  static constexpr int64_t kLow = 0;
  static constexpr int64_t kGroupBytes = 256;
  static constexpr int64_t kBlockBytes = 288;
};

// d * (s_g - 32) * t[v] for group g.
struct IQ4_XS {
  static constexpr int64_t kScale = 0;
  static constexpr int64_t kGroupScales = 32;  // 6 x bytes: 8 six-bit scales
  static constexpr int64_t kGroups = 128;
  static constexpr int64_t kLow = 0;
  static constexpr int64_t kGroupBytes = 256;
  static constexpr int64_t kBlockBytes = 2176;
};

// 2^(e - 128) * t[v], with another table t.
struct MXFP4 {
  static constexpr int64_t kExponent = 0;  // bytes: e
  static constexpr int64_t kGroups = 16;
  static constexpr int64_t kLow = 0;
  static constexpr int64_t kGroupBytes = 256;
  static constexpr int64_t kBlockBytes = 272;
};

}  // namespace layout
}  // namespace potluck
