#include "check/kernel_check.h"

namespace potluck {
namespace {

using namespace check;

void check_widen(const Kernels& kernels, Format format, Random& random, Report& report) {
  const std::vector<uint8_t> rows = make_rows(format, random);
  constexpr int64_t kCount = kRows * kColumns - 5;  // not whole lanes
  std::vector<float> values(at(kCount));
  const float magnitude =
      kernels.widen[static_cast<int>(format)](rows.data(), kCount, values.data());
  double largest = 0;
  bool ok = true;
  for (int64_t i = 0; i < kCount; ++i) {
    const double expected = file_value(format, rows.data(), i);
    ok = ok && values[at(i)] == static_cast<float>(expected);
    largest = fmax(largest, fabs(expected));
  }
  Checksum sum;
  sum.add(values);
  report.line(std::string("widen.") + format_info(format).name, sum, ok && magnitude == largest);
}

// The error of numbers in [-2, 2) is at most a step of the coarsest scale that a block can need,
// max|x| / 8, / 16 or / 32 (for formats with few steps more, since the search clips extremes), for
// Q4_K the range / 15, plus the error of rounding the scales; in Q8_0, which clips nothing, at most
// half a step, max|x| / 127 / 2, plus the same.
double largest_error(Format format) {
  switch (format) {
    case Format::Q8_0: return 2.0 / 127 * 0.57;
    case Format::Q4_0: return 2.0 / 8 * 1.01;
    case Format::Q5_0: return 2.0 / 16 * 1.01;
    case Format::Q4_K: return 4.0 / 15 * 1.05;
    case Format::Q3_K: return 2.0 / 4 * 1.6;    
    case Format::IQ4_NL: return 2.0 / 127 * 25;
    default: return 2.0 / 32 * 1.05;
  }
}

void check_encode(const Kernels& kernels, int target, Random& random, Report& report) {
  const Format format = kTargets[target];
  const FormatInfo info = format_info(format);
  constexpr int64_t kOddColumns = 3 * 256;  // a pair of the largest blocks and a single one
  const int64_t row_bytes = kOddColumns / info.block_columns * info.block_bytes;
  const std::vector<float> x = random.numbers(kRows * kOddColumns);
  std::vector<uint8_t> blocks(at(kRows * row_bytes));
  bool ok = true;
  for (int64_t r = 0; r < kRows; ++r) {
    const float* row = x.data() + r * kOddColumns;
    uint8_t* stored = blocks.data() + r * row_bytes;
    ok = kernels.encode[target](row, kOddColumns, stored) && ok;
    for (int64_t k = 0; k < kOddColumns; ++k)
      ok = ok && near(file_value(format, stored, k), row[k], largest_error(format));
  }
  Checksum sum;
  sum.add(blocks);
  report.line(std::string("encode.") + info.name, sum, ok);
}

}  // namespace

void check_convert(const Kernels& kernels, check::Random& random, check::Report& report) {
  for (int f = 0; f < kNumFloatFormats; ++f)
    check_widen(kernels, static_cast<Format>(f), random, report);
  for (int target = 0; target < kNumTargets; ++target)
    check_encode(kernels, target, random, report);
}

}  // namespace potluck
