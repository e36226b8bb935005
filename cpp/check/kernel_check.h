// Shared by the checks of kernel_check: inputs, checksums, output lines, and the values of a file's
// bytes, written independently of the kernels.
#pragma once

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace potluck {
namespace check {

constexpr int64_t kRows = 69;      // four panels and a part
constexpr int64_t kColumns = 512;  // two of the largest blocks

// xorshift64* (Marsaglia 2003, Vigna 2016).
class Random {
 public:
  uint32_t bits() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return static_cast<uint32_t>(state_ * 0x2545f4914f6cdd1dull >> 32);
  }
  // In [-2, 2), with all 24 bits.
  float number() { return static_cast<float>(static_cast<int32_t>(bits()) >> 8) * 0x1p-22f; }
  std::vector<float> numbers(int64_t count) {
    std::vector<float> v(static_cast<size_t>(count));
    for (float& x : v) x = number();
    return v;
  }
  // An f16 with magnitude in [2^-8, 2^-5) and any sign.
  uint16_t small_half() {
    return static_cast<uint16_t>((bits() & 0x8000) | (0x1c00 + bits() % 0x0c00));
  }

 private:
  uint64_t state_ = 0x9e3779b97f4a7c15ull;
};

// FNV-1a over bytes.
class Checksum {
 public:
  template <class T>
  void add(const std::vector<T>& values) {
    add_bytes(values.data(), values.size() * sizeof(T));
  }
  void add_bytes(const void* data, size_t size) {
    for (size_t i = 0; i < size; ++i)
      value_ = (value_ ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001b3ull;
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325ull;
};

class Report {
 public:
  void line(const std::string& kernel, const Checksum& sum, bool ok) {
    printf("%-12s %016llx %s\n", kernel.c_str(), static_cast<unsigned long long>(sum.value()),
           ok ? "ok" : "WRONG");
    all_ok_ = all_ok_ && ok;
  }
  bool all_ok() const { return all_ok_; }

 private:
  bool all_ok_ = true;
};

inline bool near(double actual, double expected, double tolerance) {
  return fabs(actual - expected) <= tolerance;  // false for NaN
}

inline float from_half(uint16_t h) {
  const int exponent = h >> 10 & 31;
  const int mantissa = h & 1023;
  const double magnitude = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
  return static_cast<float>(h & 0x8000 ? -magnitude : magnitude);
}

inline float from_bf16(uint16_t b) {
  const uint32_t bits = static_cast<uint32_t>(b) << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// Adding half a step, or slightly less if the last kept bit is even, carries into that bit.
inline float nearest_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return from_bf16(static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16));
}

template <class T>
size_t at(T index) {
  return static_cast<size_t>(index);
}

// kRows rows of kColumns random columns in the file's layout.
inline std::vector<uint8_t> make_rows(Format format, Random& random) {
  const FormatInfo info = format_info(format);
  const int64_t num_blocks = kRows * kColumns / info.block_columns;
  std::vector<uint8_t> rows(at(num_blocks * info.block_bytes));
  for (int64_t b = 0; b < num_blocks; ++b) {
    uint8_t* block = rows.data() + b * info.block_bytes;
    for (int64_t i = 0; i < info.block_bytes; ++i) block[i] = static_cast<uint8_t>(random.bits());
    const uint16_t halves[] = {random.small_half(), random.small_half()};
    const float number = random.number();
    switch (format) {
      case Format::F32: memcpy(block, &number, 4); break;
      case Format::BF16: memcpy(block, reinterpret_cast<const char*>(&number) + 2, 2); break;
      case Format::Q6_K: memcpy(block + 208, halves, 2); break;
      case Format::Q2_K: memcpy(block + 80, halves, 4); break;
      case Format::Q3_K: memcpy(block + 108, halves, 2); break;
      case Format::MXFP4: block[0] = static_cast<uint8_t>(118 + block[0] % 8); break;
      case Format::Q4_1:
      case Format::Q5_1:
      case Format::Q4_K:
      case Format::Q5_K: memcpy(block, halves, 4); break;
      default: memcpy(block, halves, 2);
    }
  }
  return rows;
}

// The value of a column of a row, from the file's bytes; written independently of the kernels.
inline double file_value(Format format, const uint8_t* row, int64_t column) {
  const FormatInfo info = format_info(format);
  const uint8_t* b = row + column / info.block_columns * info.block_bytes;
  const int i = static_cast<int>(column % info.block_columns);
  const auto half = [b](int offset) {
    return static_cast<double>(from_half(static_cast<uint16_t>(b[offset] | b[offset + 1] << 8)));
  };
  const auto nibble = [b, i](int offset) { return b[offset + i % 16] >> (i / 16 * 4) & 15; };
  const auto fifth = [b, i](int offset) { return (b[offset + i / 8] >> i % 8 & 1) * 16; };
  const auto iq4 = [](int index) {
    constexpr int kValues[] = {-127, -104, -83, -65, -49, -35, -22, -10,
                               1,    13,   25,  38,  53,  69,  89,  113};
    return kValues[index];
  };
  switch (format) {
    case Format::F32:
    case Format::BF16: {
      uint8_t bytes[4] = {};
      memcpy(bytes + (format == Format::F32 ? 0 : 2), b, format == Format::F32 ? 4 : 2);
      float value;
      memcpy(&value, bytes, 4);
      return value;
    }
    case Format::F16: return half(0);
    case Format::Q8_0: return half(0) * static_cast<int8_t>(b[2 + i]);
    case Format::Q4_0: return half(0) * (nibble(2) - 8);
    case Format::Q4_1: return half(0) * nibble(4) + half(2);
    case Format::Q5_0: return half(0) * ((nibble(6) | fifth(2)) - 16);
    case Format::Q5_1: return half(0) * (nibble(8) | fifth(4)) + half(2);
    case Format::Q4_K:
    case Format::Q5_K: {
      const int g = i / 32;
      const uint8_t* s = b + 4;
      const int scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | (s[g - 4] >> 6) << 4;
      const int minimum = g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | (s[g] >> 6) << 4;
      const int first = format == Format::Q4_K ? 16 : 48;
      int v = b[first + g / 2 * 32 + i % 32] >> (g % 2 * 4) & 15;
      if (format == Format::Q5_K) v |= (b[16 + i % 32] >> g & 1) * 16;
      return half(0) * scale * v - half(2) * minimum;
    }
    case Format::Q6_K: {
      const int part = i / 128, quarter = i % 128 / 32, l = i % 32;
      const int low = b[part * 64 + quarter % 2 * 32 + l] >> (quarter / 2 * 4) & 15;
      const int high = b[128 + part * 32 + l] >> (quarter * 2) & 3;
      return half(208) * static_cast<int8_t>(b[192 + i / 16]) * ((low | high << 4) - 32);
    }
    case Format::Q2_K: {
      const int v = b[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
      return half(80) * (b[i / 16] & 15) * v - half(82) * (b[i / 16] >> 4);
    }
    case Format::Q3_K: {
      const int low = b[32 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
      const int v = low + 4 * (b[i % 32] >> (i / 32) & 1) - 4;
      const uint8_t* s = b + 96;
      const int h = i / 16;
      const int scale = (h < 8 ? s[h] & 15 : s[h - 8] >> 4) | (s[8 + h % 4] >> (h / 4 * 2) & 3) << 4;
      return half(108) * (scale - 32) * v;
    }
    case Format::IQ4_NL: return half(0) * iq4(nibble(2));
    case Format::IQ4_XS: {
      const int g = i / 32;
      const int scale = (b[4 + g / 2] >> (g % 2 * 4) & 15) | (b[2 + g / 4] >> (g % 4 * 2) & 3) << 4;
      return half(0) * (scale - 32) * iq4(b[8 + g * 16 + i % 16] >> (i % 32 / 16 * 4) & 15);
    }
    case Format::MXFP4: {
      const int v = nibble(1), exponent = v >> 1 & 3, mantissa = v & 1;
      const double e2m1 = exponent == 0 ? mantissa * 0.5 : ldexp(1 + mantissa * 0.5, exponent - 1);
      return ldexp(v & 8 ? -e2m1 : e2m1, b[0] - 127);
    }
  }
  return NAN;
}

}  // namespace check

// The kernels that convert weights (convert_check.cc).
void check_convert(const Kernels& kernels, check::Random& random, check::Report& report);

// The kernels of ops with a state (state_check.cc), on their own inputs.
void check_states(const Kernels& kernels, check::Report& report);

}  // namespace potluck
