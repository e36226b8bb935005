// Converts the file's rows to panels. Plain C++: the same on every machine.
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/linear/file_blocks.h"
#include "kernels/linear/layout.h"

namespace potluck {
namespace {

// `block` is a panel's block, `row` the row within the panel. Four bytes are processed as one word,
// with bytes in little-endian order.

uint32_t word_at(const uint8_t* p) {
  uint32_t word;
  memcpy(&word, p, 4);
  return word;
}

// Word `row` of line `index`.
void put_word(uint32_t word, uint8_t* lines, int64_t index, int64_t row) {
  memcpy(lines + layout::kLineBytes * index + 4 * row, &word, 4);
}

void put_half(const uint8_t* source, uint8_t* halves, int64_t row) {
  memcpy(halves + 2 * row, source, 2);
}

void put_bytes(const uint8_t* source, int64_t count, uint8_t* bytes, int64_t row) {
  for (int64_t i = 0; i < count; ++i) bytes[kPanelRows * i + row] = source[i];
}

// For formats with 32 columns per block, whose 16 bytes of nibbles have the layout of the lines.
void put_nibbles(const uint8_t* nibbles, uint8_t* lines, int64_t row) {
  for (int64_t i = 0; i < 4; ++i) put_word(word_at(nibbles + 4 * i), lines, i, row);
}

// For K formats: 32 columns are the low or the high nibbles of 32 bytes.
void put_k_nibbles(const uint8_t* nibbles, bool high, uint8_t* lines, int64_t row) {
  const int shift = high ? 4 : 0;
  for (int64_t i = 0; i < 4; ++i) {
    const uint32_t first = word_at(nibbles + 4 * i) >> shift & 0x0F0F0F0F;
    const uint32_t second = word_at(nibbles + 4 * i + 16) >> shift & 0x0F0F0F0F;
    put_word(first | second << 4, lines, i, row);
  }
}

// For blocks of 32 columns: bit i of a little-endian word is for column i. The product moves bit j
// of a nibble to bit 8 j; its four terms do not overlap.
void put_fifth_bits(const uint8_t* high, uint8_t* line, int64_t row) {
  const uint32_t bits = word_at(high);
  uint32_t packed = 0;
  for (int64_t i = 0; i < 8; ++i)
    packed |= ((bits >> (4 * i) & 15) * 0x00204081 & 0x01010101) << i;
  put_word(packed, line, 0, row);
}

// Q5_K: bit g of byte i is the fifth bit of column i of group g.
void put_k_fifth_bits(const uint8_t* high, int64_t group, uint8_t* line, int64_t row) {
  uint32_t packed = 0;
  for (int64_t i = 0; i < 8; ++i) packed |= (word_at(high + 4 * i) >> group & 0x01010101) << i;
  put_word(packed, line, 0, row);
}

// Q6_K: bits [2 g, 2 g + 2) of byte i are the upper bits of column i of group g.
void put_upper_bits(const uint8_t* upper, int64_t group, uint8_t* lines, int64_t row) {
  for (int64_t half = 0; half < 2; ++half) {
    uint32_t packed = 0;
    for (int64_t i = 0; i < 4; ++i)
      packed |= (word_at(upper + 16 * half + 4 * i) >> (2 * group) & 0x03030303) << (2 * i);
    put_word(packed, lines, half, row);
  }
}

void pack_q8_0(const uint8_t* file, uint8_t* block, int64_t row) {
  using L = layout::Q8_0;
  put_half(file, block + L::kScale, row);
  for (int64_t i = 0; i < 8; ++i)
    put_word(word_at(file + 2 + 4 * i) ^ 0x80808080, block + L::kGroups, i, row);
}

void pack_q4_0(const uint8_t* file, uint8_t* block, int64_t row) {
  using L = layout::Q4_0;
  put_half(file, block + L::kScale, row);
  put_nibbles(file + 2, block + L::kGroups + L::kLow, row);
}

void pack_q4_1(const uint8_t* file, uint8_t* block, int64_t row) {
  using L = layout::Q4_1;
  put_half(file, block + L::kScale, row);
  put_half(file + 2, block + L::kMinimum, row);
  put_nibbles(file + 4, block + L::kGroups + L::kLow, row);
}

void pack_q5_0(const uint8_t* file, uint8_t* block, int64_t row) {
  using L = layout::Q5_0;
  put_half(file, block + L::kScale, row);
  put_fifth_bits(file + 2, block + L::kGroups + L::kHigh, row);
  put_nibbles(file + 6, block + L::kGroups + L::kLow, row);
}

void pack_q5_1(const uint8_t* file, uint8_t* block, int64_t row) {
  using L = layout::Q5_1;
  put_half(file, block + L::kScale, row);
  put_half(file + 2, block + L::kMinimum, row);
  put_fifth_bits(file + 4, block + L::kGroups + L::kHigh, row);
  put_nibbles(file + 8, block + L::kGroups + L::kLow, row);
}

void pack_q4_k(const uint8_t* file, uint8_t* block, int64_t row) {
  using L = layout::Q4_K;
  put_half(file, block + L::kScale, row);
  put_half(file + 2, block + L::kMinimum, row);
  put_bytes(file + 4, 12, block + L::kGroupScales, row);
  for (int64_t group = 0; group < 8; ++group) {
    uint8_t* packed = block + L::kGroups + group * L::kGroupBytes;
    put_k_nibbles(file + 16 + 32 * (group / 2), group % 2 != 0, packed + L::kLow, row);
  }
}

void pack_q5_k(const uint8_t* file, uint8_t* block, int64_t row) {
  using L = layout::Q5_K;
  put_half(file, block + L::kScale, row);
  put_half(file + 2, block + L::kMinimum, row);
  put_bytes(file + 4, 12, block + L::kGroupScales, row);
  for (int64_t group = 0; group < 8; ++group) {
    uint8_t* packed = block + L::kGroups + group * L::kGroupBytes;
    put_k_fifth_bits(file + 16, group, packed + L::kHigh, row);
    put_k_nibbles(file + 48 + 32 * (group / 2), group % 2 != 0, packed + L::kLow, row);
  }
}

// In each 128 columns (four groups), the nibbles of groups 0 and 2 share 32 bytes, those of 1 and 3
// the next 32; their upper bits are in 32 bytes.
void pack_q6_k(const uint8_t* file, uint8_t* block, int64_t row) {
  using L = layout::Q6_K;
  put_half(file + 208, block + L::kScale, row);
  put_bytes(file + 192, 16, block + L::kHalfScales, row);
  for (int64_t group = 0; group < 8; ++group) {
    const int64_t quarter = group % 4;
    const uint8_t* nibbles = file + 64 * (group / 4) + 32 * (quarter % 2);
    uint8_t* packed = block + L::kGroups + group * L::kGroupBytes;
    put_upper_bits(file + 128 + 32 * (group / 4), quarter, packed + L::kHigh, row);
    put_k_nibbles(nibbles, quarter >= 2, packed + L::kLow, row);
  }
}

// Q2_K, Q3_K: bits [2 g, 2 g + 2) of byte i are the low bits of column i of group g, for four
// groups that share 32 bytes.
void put_low_pairs(const uint8_t* pairs, int64_t group, uint8_t* lines, int64_t row) {
  put_upper_bits(pairs + 32 * (group / 4), group % 4, lines, row);
}

// Six-bit scales, each less than 64 (see layout.h).
void put_six_bits(const uint8_t* scales, int64_t count, uint8_t* bytes, int64_t row) {
  const int64_t num_bytes = count / 4 * 3;
  for (int64_t i = 0; i < num_bytes; ++i) {
    const int top = scales[num_bytes + i / 3] >> (2 * (i % 3)) & 3;
    bytes[kPanelRows * i + row] = static_cast<uint8_t>(scales[i] | top << 6);
  }
}

void pack_q2_k(const uint8_t* file, uint8_t* block, int64_t row) {
  using L = layout::Q2_K;
  put_half(file + 80, block + L::kScale, row);
  put_half(file + 82, block + L::kMinimum, row);
  put_bytes(file, 16, block + L::kHalfScales, row);
  for (int64_t group = 0; group < 8; ++group)
    put_low_pairs(file + 16, group, block + L::kGroups + group * L::kGroupBytes + L::kPairs, row);
}

void pack_q3_k(const uint8_t* file, uint8_t* block, int64_t row) {
  using L = layout::Q3_K;
  uint8_t scales[16];
  get_q3_k_scales(file + 96, scales);
  put_half(file + 108, block + L::kScale, row);
  put_six_bits(scales, 16, block + L::kHalfScales, row);
  for (int64_t group = 0; group < 8; ++group) {
    uint8_t* packed = block + L::kGroups + group * L::kGroupBytes;
    put_k_fifth_bits(file, group, packed + L::kHigh, row);
    put_low_pairs(file + 32, group, packed + L::kPairs, row);
  }
}

void pack_iq4_nl(const uint8_t* file, uint8_t* block, int64_t row) {
  using L = layout::IQ4_NL;
  put_half(file, block + L::kScale, row);
  put_nibbles(file + 2, block + L::kGroups + L::kLow, row);
}

void pack_iq4_xs(const uint8_t* file, uint8_t* block, int64_t row) {
  using L = layout::IQ4_XS;
  uint8_t scales[8];
  for (int64_t group = 0; group < 8; ++group) scales[group] = get_iq4_xs_scale(file, group);
  put_half(file, block + L::kScale, row);
  put_six_bits(scales, 8, block + L::kGroupScales, row);
  for (int64_t group = 0; group < 8; ++group)
    put_nibbles(file + 8 + 16 * group, block + L::kGroups + group * L::kGroupBytes + L::kLow, row);
}

void pack_mxfp4(const uint8_t* file, uint8_t* block, int64_t row) {
  using L = layout::MXFP4;
  put_bytes(file, 1, block + L::kExponent, row);
  put_nibbles(file + 1, block + L::kGroups + L::kLow, row);
}

// Rows [first, first + count) of one panel; `rows` points to the first.
using PackPanel = void (*)(const uint8_t* rows, int64_t columns, int64_t first, int64_t count,
                           uint8_t* panel);

// Block by block, and within it row by row: the block stays in the L1 cache while it is written in
// pieces of two and four bytes.
template <void (*pack_block)(const uint8_t*, uint8_t*, int64_t), Format format>
void pack_quantized(const uint8_t* rows, int64_t columns, int64_t first, int64_t count,
                    uint8_t* panel) {
  const FormatInfo info = format_info(format);
  const int64_t num_blocks = columns / info.block_columns;
  const int64_t row_bytes = num_blocks * info.block_bytes;
  for (int64_t b = 0; b < num_blocks; ++b) {
    const uint8_t* file = rows + b * info.block_bytes;
    uint8_t* block = panel + b * kPanelRows * info.block_bytes;
    for (int64_t i = 0; i < count; ++i) pack_block(file + i * row_bytes, block, first + i);
  }
}

// 64 bytes of each row at a time, for the same reason, and because row sizes are often a multiple
// of 4096 bytes: then all rows map to the same few sets of the L1 cache, and a line that is not
// consumed immediately is read again.
constexpr int64_t kStripBytes = 64;

template <typename Bits>
void pack_float(const uint8_t* rows, int64_t columns, int64_t first, int64_t count,
                uint8_t* panel) {
  constexpr int64_t kSize = sizeof(Bits);
  constexpr int64_t kStrip = kStripBytes / kSize;
  const int64_t row_bytes = columns * kSize;
  for (int64_t column = 0; column < columns; column += kStrip) {
    const int64_t end = column + kStrip < columns ? column + kStrip : columns;
    for (int64_t i = 0; i < count; ++i) {
      const uint8_t* source = rows + i * row_bytes;
      uint8_t* out = panel + kSize * (first + i);
      for (int64_t c = column; c < end; ++c)
        memcpy(out + kPanelRows * kSize * c, source + kSize * c, kSize);
    }
  }
}

// Pairs of columns as words, and halves for a last column without a partner.
void pack_bf16(const uint8_t* rows, int64_t columns, int64_t first, int64_t count,
               uint8_t* panel) {
  const int64_t row_bytes = 2 * columns;
  const int64_t num_pairs = columns / layout::BF16::kPairColumns;
  constexpr int64_t kStrip = kStripBytes / 4;
  for (int64_t pair = 0; pair < num_pairs; pair += kStrip) {
    const int64_t end = pair + kStrip < num_pairs ? pair + kStrip : num_pairs;
    for (int64_t i = 0; i < count; ++i)
      for (int64_t p = pair; p < end; ++p)
        put_word(word_at(rows + i * row_bytes + 4 * p), panel, p, first + i);
  }
  if (columns % layout::BF16::kPairColumns == 0) return;
  for (int64_t i = 0; i < count; ++i)
    put_half(rows + (i + 1) * row_bytes - 2, panel + layout::kLineBytes * num_pairs, first + i);
}

// Transposes four columns of four rows, by exchanging the halves of words and then the numbers in
// halves.
void transpose_4(const uint8_t* const source[4], uint8_t* out) {
  uint64_t w[4];
  for (int i = 0; i < 4; ++i) memcpy(&w[i], source[i], 8);
  constexpr uint64_t kHalf = 0x00000000FFFFFFFF, kEven = 0x0000FFFF0000FFFF;
  for (int i = 0; i < 2; ++i) {
    const uint64_t moved = (w[i] >> 32 ^ w[i + 2]) & kHalf;
    w[i + 2] ^= moved;
    w[i] ^= moved << 32;
  }
  for (int i = 0; i < 4; i += 2) {
    const uint64_t moved = (w[i] >> 16 ^ w[i + 1]) & kEven;
    w[i + 1] ^= moved;
    w[i] ^= moved << 16;
  }
  for (int i = 0; i < 4; ++i) memcpy(out + 2 * kPanelRows * i, &w[i], 8);
}

// Like pack_float, four rows and columns at a time where possible.
void pack_f16(const uint8_t* rows, int64_t columns, int64_t first, int64_t count,
                 uint8_t* panel) {
  constexpr int64_t kStrip = kStripBytes / 2;
  if (first != 0 || count != kPanelRows || columns % kStrip != 0)
    return pack_float<uint16_t>(rows, columns, first, count, panel);
  const int64_t row_bytes = 2 * columns;
  for (int64_t column = 0; column < columns; column += kStrip)
    for (int64_t row = 0; row < kPanelRows; row += 4)
      for (int64_t c = column; c < column + kStrip; c += 4) {
        const uint8_t* source = rows + row * row_bytes + 2 * c;
        const uint8_t* const sources[4] = {source, source + row_bytes, source + 2 * row_bytes,
                                           source + 3 * row_bytes};
        transpose_4(sources, panel + 2 * (kPanelRows * c + row));
      }
}

constexpr PackPanel kPackPanel[kNumFormats] = {
    pack_float<uint32_t>,
    pack_f16,
    pack_bf16,
    pack_quantized<pack_q8_0, Format::Q8_0>,
    pack_quantized<pack_q4_0, Format::Q4_0>,
    pack_quantized<pack_q4_1, Format::Q4_1>,
    pack_quantized<pack_q5_0, Format::Q5_0>,
    pack_quantized<pack_q5_1, Format::Q5_1>,
    pack_quantized<pack_q4_k, Format::Q4_K>,
    pack_quantized<pack_q5_k, Format::Q5_K>,
    pack_quantized<pack_q6_k, Format::Q6_K>,
    pack_quantized<pack_q2_k, Format::Q2_K>,
    pack_quantized<pack_q3_k, Format::Q3_K>,
    pack_quantized<pack_iq4_nl, Format::IQ4_NL>,
    pack_quantized<pack_iq4_xs, Format::IQ4_XS>,
    pack_quantized<pack_mxfp4, Format::MXFP4>,
};

}  // namespace

void pack_rows(Format format, int64_t columns, const uint8_t* rows, int64_t start_row,
               int64_t num_rows, uint8_t* panels) {
  const FormatInfo info = format_info(format);
  const PackPanel pack_panel = kPackPanel[static_cast<int>(format)];
  const int64_t row_bytes = columns / info.block_columns * info.block_bytes;
  const int64_t bytes_per_panel = panel_bytes(format, columns);
  const int64_t end_row = start_row + num_rows;
  for (int64_t row = start_row; row < end_row;) {
    const int64_t first = row % kPanelRows;
    const int64_t count = end_row - row < kPanelRows - first ? end_row - row : kPanelRows - first;
    pack_panel(rows, columns, first, count, panels + row / kPanelRows * bytes_per_panel);
    rows += count * row_bytes;
    row += count;
  }
}

}  // namespace potluck
