// From the file's rows to panels. Plain C++: the same on every machine.
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/linear/file_blocks.h"
#include "kernels/linear/layout.h"

namespace potluck {
namespace {

// `block` is a panel's block, `row` the row within the panel.

void put_half(const uint8_t* source, uint8_t* halves, int64_t row) {
  memcpy(halves + 2 * row, source, 2);
}

void put_bytes(const uint8_t* source, int64_t count, uint8_t* bytes, int64_t row) {
  for (int64_t i = 0; i < count; ++i) bytes[kPanelRows * i + row] = source[i];
}

void put_low_nibbles(const uint8_t v[32], uint8_t* lines, int64_t row) {
  for (int64_t i = 0; i < 16; ++i)
    lines[layout::kLineBytes * (i / 4) + 4 * row + i % 4] =
        static_cast<uint8_t>((v[i] & 15) | (v[i + 16] & 15) << 4);
}

void put_fifth_bits(const uint8_t v[32], uint8_t* line, int64_t row) {
  uint8_t packed[4] = {};
  for (int64_t i = 0; i < 32; ++i)
    packed[i % 4] = static_cast<uint8_t>(packed[i % 4] | (v[i] >> 4 & 1) << (i / 4));
  memcpy(line + 4 * row, packed, 4);
}

void put_upper_bits(const uint8_t v[32], uint8_t* lines, int64_t row) {
  for (int64_t half = 0; half < 2; ++half) {
    uint8_t packed[4] = {};
    for (int64_t i = 0; i < 16; ++i)
      packed[i % 4] =
          static_cast<uint8_t>(packed[i % 4] | (v[16 * half + i] >> 4 & 3) << (2 * (i / 4)));
    memcpy(lines + layout::kLineBytes * half + 4 * row, packed, 4);
  }
}

void pack_q8_0(const uint8_t* file, uint8_t* block, int64_t row) {
  using L = layout::Q8_0;
  put_half(file, block + L::kScale, row);
  for (int64_t i = 0; i < 32; ++i)
    block[L::kGroups + layout::kLineBytes * (i / 4) + 4 * row + i % 4] = file[2 + i] ^ 0x80;
}

void pack_q4_0(const uint8_t* file, uint8_t* block, int64_t row) {
  using L = layout::Q4_0;
  uint8_t v[32];
  put_half(file, block + L::kScale, row);
  split_nibbles(file + 2, v);
  put_low_nibbles(v, block + L::kGroups + L::kLow, row);
}

void pack_q4_1(const uint8_t* file, uint8_t* block, int64_t row) {
  using L = layout::Q4_1;
  uint8_t v[32];
  put_half(file, block + L::kScale, row);
  put_half(file + 2, block + L::kMinimum, row);
  split_nibbles(file + 4, v);
  put_low_nibbles(v, block + L::kGroups + L::kLow, row);
}

void pack_q5_0(const uint8_t* file, uint8_t* block, int64_t row) {
  using L = layout::Q5_0;
  uint8_t v[32];
  put_half(file, block + L::kScale, row);
  split_nibbles(file + 6, v);
  add_fifth_bits(file + 2, v);
  put_fifth_bits(v, block + L::kGroups + L::kHigh, row);
  put_low_nibbles(v, block + L::kGroups + L::kLow, row);
}

void pack_q5_1(const uint8_t* file, uint8_t* block, int64_t row) {
  using L = layout::Q5_1;
  uint8_t v[32];
  put_half(file, block + L::kScale, row);
  put_half(file + 2, block + L::kMinimum, row);
  split_nibbles(file + 8, v);
  add_fifth_bits(file + 4, v);
  put_fifth_bits(v, block + L::kGroups + L::kHigh, row);
  put_low_nibbles(v, block + L::kGroups + L::kLow, row);
}

void pack_q4_k(const uint8_t* file, uint8_t* block, int64_t row) {
  using L = layout::Q4_K;
  uint8_t v[32];
  put_half(file, block + L::kScale, row);
  put_half(file + 2, block + L::kMinimum, row);
  put_bytes(file + 4, 12, block + L::kGroupScales, row);
  for (int64_t group = 0; group < 8; ++group) {
    split_k_nibbles(file + 16, group, v);
    put_low_nibbles(v, block + L::kGroups + group * L::kGroupBytes + L::kLow, row);
  }
}

void pack_q5_k(const uint8_t* file, uint8_t* block, int64_t row) {
  using L = layout::Q5_K;
  uint8_t v[32];
  put_half(file, block + L::kScale, row);
  put_half(file + 2, block + L::kMinimum, row);
  put_bytes(file + 4, 12, block + L::kGroupScales, row);
  for (int64_t group = 0; group < 8; ++group) {
    uint8_t* packed = block + L::kGroups + group * L::kGroupBytes;
    split_k_nibbles(file + 48, group, v);
    add_k_fifth_bits(file + 16, group, v);
    put_fifth_bits(v, packed + L::kHigh, row);
    put_low_nibbles(v, packed + L::kLow, row);
  }
}

void pack_q6_k(const uint8_t* file, uint8_t* block, int64_t row) {
  using L = layout::Q6_K;
  uint8_t v[32];
  put_half(file + 208, block + L::kScale, row);
  put_bytes(file + 192, 16, block + L::kHalfScales, row);
  for (int64_t group = 0; group < 8; ++group) {
    uint8_t* packed = block + L::kGroups + group * L::kGroupBytes;
    split_q6_k(file, group, v);
    put_upper_bits(v, packed + L::kHigh, row);
    put_low_nibbles(v, packed + L::kLow, row);
  }
}

template <int64_t bytes>
void pack_float(const uint8_t* file, uint8_t* block, int64_t row) {
  memcpy(block + bytes * row, file, bytes);
}

using PackBlock = void (*)(const uint8_t* file, uint8_t* block, int64_t row);
constexpr PackBlock kPackBlock[kNumFormats] = {
    pack_float<4>, pack_float<2>, pack_float<2>, pack_q8_0, pack_q4_0, pack_q4_1,
    pack_q5_0,     pack_q5_1,     pack_q4_k,     pack_q5_k, pack_q6_k,
};

}  // namespace

void pack_rows(Format format, int64_t columns, const uint8_t* rows, int64_t start_row,
               int64_t num_rows, uint8_t* panels) {
  const FormatInfo info = format_info(format);
  const PackBlock pack_block = kPackBlock[static_cast<int>(format)];
  const int64_t num_blocks = columns / info.block_columns;
  for (int64_t i = 0; i < num_rows; ++i) {
    const int64_t row = start_row + i;
    uint8_t* block = panels + row / kPanelRows * panel_bytes(format, columns);
    for (int64_t b = 0; b < num_blocks; ++b) {
      pack_block(rows, block, row % kPanelRows);
      rows += info.block_bytes;
      block += kPanelRows * info.block_bytes;
    }
  }
}

}  // namespace potluck
