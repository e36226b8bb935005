// Runs every kernel of one instruction set on fixed pseudo-random inputs, compares with a naive
// calculation in double precision, and prints a line per kernel: its name, a checksum of the bits
// of its results, and "ok" or "WRONG". No Python: for machines, and emulators, where there is none.
// Two machines agree if they print the same.
//
//   kernel_check [isa]      the instruction set; otherwise the fastest that runs here
//
// The exit status is 1 if any kernel was wrong, 2 for an unknown instruction set.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <string>
#include <vector>

#include "dispatch/table.h"

namespace {

using namespace potluck;

constexpr int64_t kRows = 37;     // two panels and a part
constexpr int64_t kColumns = 512;  // two of the largest blocks
constexpr int64_t kTokens = 11;    // a tile of each size

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

bool near(double actual, double expected, double tolerance) {
  return fabs(actual - expected) <= tolerance;  // false for NaN
}

float from_half(uint16_t h) {
  const int exponent = h >> 10 & 31;
  const int mantissa = h & 1023;
  const double magnitude = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
  return static_cast<float>(h & 0x8000 ? -magnitude : magnitude);
}

template <class T>
size_t at(T index) {
  return static_cast<size_t>(index);
}

std::vector<uint8_t> make_rows(Format format, Random& random) {
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
      case Format::Q4_1:
      case Format::Q5_1:
      case Format::Q4_K:
      case Format::Q5_K: memcpy(block, halves, 4); break;
      default: memcpy(block, halves, 2);
    }
  }
  return rows;
}

struct Activity {
  std::vector<float> x, scales;
  std::vector<int8_t> q;
  std::vector<int32_t> sums;
};

Activity check_quantize(const Kernels& kernels, Random& random, Report& report) {
  const int64_t num_groups = kTokens * kColumns / kGroupColumns;
  Activity a{random.numbers(kTokens * kColumns), std::vector<float>(at(num_groups)),
             std::vector<int8_t>(at(kTokens * kColumns)), std::vector<int32_t>(at(num_groups))};
  kernels.quantize(a.x.data(), kTokens, kColumns, a.q.data(), a.scales.data(), a.sums.data());
  bool ok = true;
  for (int64_t g = 0; g < num_groups; ++g) {
    double largest = 0;
    int32_t total = 0;
    for (int64_t i = g * 32; i < g * 32 + 32; ++i) {
      largest = fmax(largest, fabs(static_cast<double>(a.x[at(i)])));
      total += a.q[at(i)];
    }
    for (int64_t i = g * 32; i < g * 32 + 32; ++i)
      ok = ok && near(a.q[at(i)], a.x[at(i)] * 127.0 / largest, 0.50002);
    ok = ok && total == a.sums[at(g)] && near(a.scales[at(g)], largest / 127, 1e-7 * largest);
  }
  Checksum sum;
  sum.add(a.q);
  sum.add(a.scales);
  sum.add(a.sums);
  report.line("quantize", sum, ok);
  return a;
}

// What a column of a row is worth, from the file's bytes; written apart from the kernels.
double file_value(Format format, const uint8_t* row, int64_t column) {
  const FormatInfo info = format_info(format);
  const uint8_t* b = row + column / info.block_columns * info.block_bytes;
  const int i = static_cast<int>(column % info.block_columns);
  const auto half = [b](int offset) {
    return static_cast<double>(from_half(static_cast<uint16_t>(b[offset] | b[offset + 1] << 8)));
  };
  const auto nibble = [b, i](int offset) { return b[offset + i % 16] >> (i / 16 * 4) & 15; };
  const auto fifth = [b, i](int offset) { return (b[offset + i / 8] >> i % 8 & 1) * 16; };
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
  }
  return NAN;
}

void check_format(const Kernels& kernels, Format format, const Activity& a, Random& random,
                  Report& report) {
  const int index = static_cast<int>(format);
  const std::string name = format_info(format).name;
  const std::vector<uint8_t> rows = make_rows(format, random);
  std::vector<uint8_t> panels(at(num_panels(kRows) * panel_bytes(format, kColumns)));
  pack_rows(format, kColumns, rows.data(), 0, kRows, panels.data());
  const Matrix weight{format, kRows, kColumns, panels.data()};
  const int64_t row_bytes = panel_bytes(format, kColumns) / kPanelRows;

  std::vector<float> values(at(kRows * kColumns));
  bool ok = true;
  for (int64_t r = 0; r < kRows; ++r) {
    kernels.embed[index](weight, r, values.data() + r * kColumns);
    for (int64_t k = 0; k < kColumns; ++k) {
      const double expected = file_value(format, rows.data() + r * row_bytes, k);
      ok = ok && values[at(r * kColumns + k)] == static_cast<float>(expected);
    }
  }
  Checksum embedded;
  embedded.add(values);
  report.line("embed." + name, embedded, ok);

  const std::vector<float> bias = random.numbers(kRows);
  std::vector<float> out(at(kTokens * kRows));
  const Activations input{a.x.data(), a.q.data(), a.scales.data(), a.sums.data()};
  const LinearArgs args{weight, input, kTokens, bias.data(), out.data(), kRows};
  kernels.linear[index](args, 0, num_panels(kRows));
  ok = true;
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t r = 0; r < kRows; ++r) {
      double expected = bias[at(r)], norm = fabs(expected);
      for (int64_t k = 0; k < kColumns; ++k) {
        const int64_t i = t * kColumns + k;
        const double x = is_quantized(format)
                             ? static_cast<double>(a.q[at(i)]) * a.scales[at(i / kGroupColumns)]
                             : static_cast<double>(a.x[at(i)]);
        expected += x * values[at(r * kColumns + k)];
        norm += fabs(x * values[at(r * kColumns + k)]);
      }
      // One rounding per column at most, 2^-24 each.
      ok = ok && near(out[at(t * kRows + r)], expected, norm * kColumns * 0x1p-24);
    }
  }
  Checksum products;
  products.add(out);
  report.line("linear." + name, products, ok);
}

void check_rms_norm(const Kernels& kernels, Random& random, Report& report) {
  constexpr int64_t kGroup = 40, kNumGroups = 6;
  const std::vector<float> x = random.numbers(kGroup * kNumGroups), weight = random.numbers(kGroup);
  std::vector<float> out(x.size());
  kernels.rms_norm(x.data(), weight.data(), out.data(), 2, 3 * kGroup, kGroup, 1e-5f);
  bool ok = true;
  for (size_t i = 0; i < x.size(); ++i) {
    double squares = 0;
    const size_t start = i / kGroup * kGroup;
    for (size_t j = start; j < start + kGroup; ++j) squares += static_cast<double>(x[j]) * x[j];
    const double expected = x[i] / sqrt(squares / kGroup + 1e-5) * weight[i % kGroup];
    ok = ok && near(out[i], expected, 1e-6 * fabs(expected));
  }
  Checksum sum;
  sum.add(out);
  report.line("rms_norm", sum, ok);
}

void check_rope(const Kernels& kernels, Random& random, Report& report) {
  constexpr size_t kHeads = 3, kHeadDim = 40, kHalf = kHeadDim / 2;
  const std::vector<float> before = random.numbers(kHeads * kHeadDim);
  const std::vector<float> cos = random.numbers(kHalf), sin = random.numbers(kHalf);
  std::vector<float> x = before;
  kernels.rope(x.data(), cos.data(), sin.data(), kHeads, kHeadDim);
  bool ok = true;
  for (size_t h = 0; h < kHeads; ++h) {
    for (size_t i = 0; i < kHalf; ++i) {
      const double a = before[h * kHeadDim + i], b = before[h * kHeadDim + kHalf + i];
      ok = ok && near(x[h * kHeadDim + i], a * cos[i] - b * sin[i], 1e-6) &&
           near(x[h * kHeadDim + kHalf + i], b * cos[i] + a * sin[i], 1e-6);
    }
  }
  Checksum sum;
  sum.add(x);
  report.line("rope", sum, ok);
}

void check_elementwise(const Kernels& kernels, Random& random, Report& report) {
  constexpr size_t kCount = 531;
  std::vector<float> x = random.numbers(kCount), out(kCount);
  const std::vector<float> y = random.numbers(kCount);
  for (float& v : x) v *= 8;

  bool ok = true;
  kernels.silu_gate(x.data(), y.data(), out.data(), kCount);
  for (size_t i = 0; i < kCount; ++i) {
    const double expected = x[i] / (1 + exp(-static_cast<double>(x[i]))) * y[i];
    ok = ok && near(out[i], expected, 5e-7 * fabs(expected));
  }
  Checksum silu;
  silu.add(out);
  report.line("silu_gate", silu, ok);

  ok = true;
  double expected_total = 0;
  const float total = kernels.exp_sum(x.data(), kCount, 16, out.data());
  for (size_t i = 0; i < kCount; ++i) {
    const double expected = exp(static_cast<double>(x[i] - 16.0f));
    ok = ok && near(out[i], expected, 1.3e-7 * expected);
    expected_total += expected;
  }
  ok = ok && near(total, expected_total, 3e-6 * expected_total);
  Checksum exps;
  exps.add(out);
  exps.add_bytes(&total, sizeof total);
  report.line("exp_sum", exps, ok);

  ok = true;
  out = x;
  kernels.add(out.data(), y.data(), kCount);
  for (size_t i = 0; i < kCount; ++i) ok = ok && out[i] == x[i] + y[i];
  Checksum sums;
  sums.add(out);
  report.line("add", sums, ok);
}

// A sequence of 45 positions in three shuffled blocks of four, positions 5 to 41 visible.
void check_attention(const Kernels& kernels, Random& random, Report& report) {
  constexpr int64_t kHeads = 10, kKvHeads = 2, kHeadDim = 24, kPositions = 45;
  constexpr int64_t kFirst = 5, kLast = 41, kPadded = 32, kNumBlocks = 4;
  const int32_t block_table[] = {2, 0, 3};
  const uint16_t nan_half = 0x7e00;
  std::vector<uint16_t> keys(at(kNumBlocks * kKvHeads * kHeadDim * kBlockTokens), nan_half);
  std::vector<uint16_t> values(at(kNumBlocks * kKvHeads * kBlockTokens * kPadded), nan_half);
  const std::vector<float> k = random.numbers(kPositions * kKvHeads * kHeadDim);
  const std::vector<float> v = random.numbers(kPositions * kKvHeads * kHeadDim);
  for (int64_t p = 0; p < kPositions; ++p)
    kernels.append_kv(k.data() + p * kKvHeads * kHeadDim, v.data() + p * kKvHeads * kHeadDim,
                      keys.data(), values.data(), block_table[p / 16], p % 16, kKvHeads, kHeadDim);
  const auto key = [&](int64_t p, int64_t head, int64_t d) {
    const int64_t i = ((block_table[p / 16] * kKvHeads + head) * kHeadDim + d) * 16 + p % 16;
    return static_cast<double>(from_half(keys[at(i)]));
  };
  const auto value = [&](int64_t p, int64_t head, int64_t d) {
    const int64_t i = ((block_table[p / 16] * kKvHeads + head) * 16 + p % 16) * kPadded + d;
    return static_cast<double>(from_half(values[at(i)]));
  };
  bool ok = true;
  for (int64_t p = 0; p < kPositions; ++p)
    for (int64_t head = 0; head < kKvHeads; ++head)
      for (int64_t d = 0; d < kHeadDim; ++d) {
        const size_t i = at((p * kKvHeads + head) * kHeadDim + d);
        // Half an ulp of f16: 2^-11 of the value, 2^-25 for subnormals.
        ok = ok && near(key(p, head, d), k[i], fabs(k[i]) * 0x1p-11 + 0x1p-25) &&
             near(value(p, head, d), v[i], fabs(v[i]) * 0x1p-11 + 0x1p-25);
      }
  Checksum cache;
  cache.add(keys);
  cache.add(values);
  report.line("append_kv", cache, ok);

  const std::vector<float> q = random.numbers(kHeads * kHeadDim);
  std::vector<float> out(q.size());
  std::vector<float> scratch(at(attention_scratch_floats(kHeads, kKvHeads, kPositions)));
  const AttentionArgs args{q.data(), out.data(), keys.data(), values.data(), block_table,
                           kFirst,   kLast,      kHeads,      kKvHeads,      kHeadDim,
                           0.2f,     scratch.data()};
  for (int64_t head = 0; head < kKvHeads; ++head) kernels.attention(args, head);
  ok = true;
  for (int64_t h = 0; h < kHeads; ++h) {
    const int64_t kv_head = h / (kHeads / kKvHeads);
    std::vector<double> weighted(kHeadDim);
    double total = 0;
    for (int64_t p = kFirst; p <= kLast; ++p) {
      double score = 0;
      for (int64_t d = 0; d < kHeadDim; ++d) score += key(p, kv_head, d) * q[at(h * kHeadDim + d)];
      const double term = exp(score * static_cast<double>(0.2f));
      total += term;
      for (int64_t d = 0; d < kHeadDim; ++d) weighted[at(d)] += term * value(p, kv_head, d);
    }
    for (int64_t d = 0; d < kHeadDim; ++d)
      ok = ok && near(out[at(h * kHeadDim + d)], weighted[at(d)] / total, 2e-5);
  }
  Checksum sum;
  sum.add(out);
  report.line("attention", sum, ok);
}

}  // namespace

int main(int argc, char** argv) {
  const Kernels* kernels = argc > 1 ? kernels_for(argv[1]) : best_kernels();
  if (!kernels) {
    fprintf(stderr, "no kernels for '%s' here\n", argv[1]);
    return 2;
  }
  Random random;
  Report report;
  const Activity activity = check_quantize(*kernels, random, report);
  for (int f = 0; f < kNumFormats; ++f)
    check_format(*kernels, static_cast<Format>(f), activity, random, report);
  check_rms_norm(*kernels, random, report);
  check_rope(*kernels, random, report);
  check_elementwise(*kernels, random, report);
  check_attention(*kernels, random, report);
  return report.all_ok() ? 0 : 1;
}
