// Runs every kernel of one instruction set on fixed pseudo-random inputs, compares with a naive
// calculation in double precision, and prints a line per kernel: its name, a checksum of the bits
// of its results, and "ok" or "WRONG". No Python: for machines, and emulators, where there is none.
// Two machines agree if they print the same.
//
//   kernel_check [isa]      the instruction set; otherwise the fastest that runs here
//
// The exit status is 1 if any kernel was wrong, 2 for an unknown instruction set.
#include "check/kernel_check.h"

#include "dispatch/table.h"

namespace {

using namespace potluck;
using namespace potluck::check;

constexpr int64_t kTokens = 11;  // a tile of each size

struct Activity {
  std::vector<float> x, scales;
  std::vector<int8_t> q;
  std::vector<int32_t> sums;
  std::vector<uint16_t> bf16;
};

Activity check_quantize(const Kernels& kernels, Random& random, Report& report) {
  const int64_t num_groups = kTokens * kColumns / kGroupColumns;
  Activity a{random.numbers(kTokens * kColumns), std::vector<float>(at(num_groups)),
             std::vector<int8_t>(at(kTokens * kColumns)), std::vector<int32_t>(at(num_groups)),
             {}};
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

void check_round_bf16(const Kernels& kernels, Activity& a, Report& report) {
  a.bf16.resize(a.x.size());
  kernels.round_bf16(a.x.data(), kTokens * kColumns, a.bf16.data());
  bool ok = true;
  for (size_t i = 0; i < a.x.size(); ++i)
    ok = ok && near(from_bf16(a.bf16[i]), a.x[i], fabs(a.x[i]) * 0x1p-8);
  Checksum sum;
  sum.add(a.bf16);
  report.line("round_bf16", sum, ok);
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
  const Activations input{a.x.data(), a.q.data(), a.scales.data(), a.sums.data(),
                          a.bf16.data()};
  const bool takes_bf16 = format == Format::BF16 && kernels.bf16_activations;
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
                             : static_cast<double>(takes_bf16 ? from_bf16(a.bf16[at(i)])
                                                              : a.x[at(i)]);
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
  Activity activity = check_quantize(*kernels, random, report);
  check_round_bf16(*kernels, activity, report);
  for (int f = 0; f < kNumFormats; ++f)
    check_format(*kernels, static_cast<Format>(f), activity, random, report);
  check_rms_norm(*kernels, random, report);
  check_rope(*kernels, random, report);
  check_elementwise(*kernels, random, report);
  check_attention(*kernels, random, report);
  check_convert(*kernels, random, report);
  return report.all_ok() ? 0 : 1;
}
