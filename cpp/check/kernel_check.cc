// Runs every kernel of one instruction set on fixed pseudo-random inputs, compares with a naive
// calculation in double precision, and prints a line per kernel: its name, a checksum of the bits
// of its results, and "ok" or "WRONG". No Python: for machines, and emulators, where there is none.
// Two machines agree if they print the same.
//
//   kernel_check --list                  the instruction sets that run here, slowest first
//   kernel_check isa [perturbation]      the instruction set; perhaps with one kernel spoilt
//
// The exit status is 1 if any kernel was wrong, 2 for an unknown argument.
#include "check/kernel_check.h"

#include "check/perturb.h"
#include "dispatch/table.h"

namespace {

using namespace potluck;
using namespace potluck::check;

constexpr int64_t kTokens = 19;  // a tile of each size, and more than one of AMX

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

// Whether out[t][r] is the sum over `columns` k of x(t, k) * w(r, k), plus the bias.
template <class X, class W>
bool are_products(const std::vector<float>& out, const std::vector<float>& bias, int64_t columns,
                  const X& x, const W& w) {
  bool ok = true;
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t r = 0; r < kRows; ++r) {
      double expected = bias[at(r)], norm = fabs(expected);
      for (int64_t k = 0; k < columns; ++k) {
        const double product = x(t, k) * w(r, k);
        expected += product;
        norm += fabs(product);
      }
      // At most one rounding per column, 2^-24 each.
      const double error = norm * static_cast<double>(columns) * 0x1p-24;
      ok = ok && near(out[at(t * kRows + r)], expected, error);
    }
  }
  return ok;
}

using Linear = void (*)(const LinearArgs& args, int64_t first_panel, int64_t end_panel);

// Adds the results of `linear` for kRows rows of `columns` columns to `sum`. The products must be
// close to those of the values x(t, k) and w(r, k) in double precision, and bit-identical for any
// number of tokens at once.
template <class X, class W>
bool check_products(Linear linear, Format format, const std::vector<uint8_t>& rows, int64_t columns,
                    const Activity& a, const std::vector<float>& bias, const X& x, const W& w,
                    Checksum& sum) {
  std::vector<uint8_t> panels(at(num_panels(kRows) * panel_bytes(format, columns)));
  pack_rows(format, columns, rows.data(), 0, kRows, panels.data());
  const Matrix weight{format, kRows, columns, panels.data()};
  const int64_t groups = columns / kGroupColumns;
  const auto run = [&](int64_t step) {
    std::vector<float> out(at(kTokens * kRows));
    for (int64_t t = 0; t < kTokens; t += step) {
      const Activations input{a.x.data() + t * columns, a.q.data() + t * columns,
                              a.scales.data() + t * groups, a.sums.data() + t * groups,
                              a.bf16.data() + t * columns};
      const int64_t count = t + step < kTokens ? step : kTokens - t;
      linear({weight, input, count, bias.data(), out.data() + t * kRows, kRows}, 0,
             num_panels(kRows));
    }
    return out;
  };
  const std::vector<float> out = run(kTokens);
  bool ok = are_products(out, bias, columns, x, w);
  for (int64_t step = 1; step <= 5; ++step) {
    const std::vector<float> parts = run(step);
    ok = ok && memcmp(parts.data(), out.data(), out.size() * sizeof(float)) == 0;
  }
  sum.add(out);
  return ok;
}

void check_format(const Kernels& kernels, Format format, const Activity& a, Random& random,
                  Report& report) {
  const auto index = static_cast<int>(format);
  const std::string name = format_info(format).name;
  const std::vector<uint8_t> rows = make_rows(format, random);
  std::vector<uint8_t> panels(at(num_panels(kRows) * panel_bytes(format, kColumns)));
  pack_rows(format, kColumns, rows.data(), 0, kRows, panels.data());
  const Matrix weight{format, kRows, kColumns, panels.data()};
  const int64_t row_bytes = panel_bytes(format, kColumns) / kPanelRows;

  std::vector<float> embedded(kColumns);
  std::vector<double> values(at(kRows * kColumns));
  bool ok = true;
  Checksum embeddings;
  for (int64_t r = 0; r < kRows; ++r) {
    kernels.embed[index](weight, r, embedded.data());
    for (int64_t k = 0; k < kColumns; ++k) {
      double& value = values[at(r * kColumns + k)];
      value = file_value(format, rows.data() + r * row_bytes, k);
      ok = ok && embedded[at(k)] == static_cast<float>(value);
    }
    embeddings.add(embedded);
  }
  report.line("embed." + name, embeddings, ok);

  const std::vector<float> bias = random.numbers(kRows);
  Checksum products;
  const auto check = [&](int64_t columns) {
    const auto exact = [&](int64_t t, int64_t k) {
      const int64_t i = t * columns + k;
      if (is_quantized(format))
        return static_cast<double>(a.q[at(i)]) * a.scales[at(i / kGroupColumns)];
      return static_cast<double>(a.x[at(i)]);
    };
    const auto value = [&](int64_t r, int64_t k) { return values[at(r * columns + k)]; };
    return check_products(kernels.linear[index], format, rows, columns, a, bias, exact, value,
                          products);
  };
  ok = check(kColumns);
  // An odd last column: the same bytes and values, as rows with one column less.
  if (!is_quantized(format)) ok = check(kColumns - 1) && ok;
  report.line("linear." + name, products, ok);

  if (!kernels.linear_fast[index]) return;
  Checksum fast_products;
  const auto check_fast = [&](int64_t columns) {
    const auto rounded = [&](int64_t t, int64_t k) {
      return static_cast<double>(from_bf16(a.bf16[at(t * columns + k)]));
    };
    const auto value = [&](int64_t r, int64_t k) {
      return static_cast<double>(nearest_bf16(static_cast<float>(values[at(r * columns + k)])));
    };
    return check_products(kernels.linear_fast[index], format, rows, columns, a, bias, rounded,
                          value, fast_products);
  };
  ok = check_fast(kColumns);
  if (!is_quantized(format)) ok = check_fast(kColumns - 1) && ok;
  report.line("linear_fast." + name, fast_products, ok);
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
  // Without a weight, the result is that of ones.
  const std::vector<float> ones(kGroup, 1.0f);
  std::vector<float> unweighted(x.size());
  kernels.rms_norm(x.data(), ones.data(), out.data(), 2, 3 * kGroup, kGroup, 1e-5f);
  kernels.rms_norm(x.data(), nullptr, unweighted.data(), 2, 3 * kGroup, kGroup, 1e-5f);
  report.line("rms_norm", sum, ok && unweighted == out);
}

void check_layer_norm(const Kernels& kernels, Report& report) {
  constexpr int64_t kWidth = 83, kRows = 3;
  Random random;
  const std::vector<float> x = random.numbers(kWidth * kRows), weight = random.numbers(kWidth);
  std::vector<float> out(x.size());
  kernels.layer_norm(x.data(), weight.data(), out.data(), kRows, kWidth, 1e-5f);
  bool ok = true;
  for (int64_t t = 0; t < kRows; ++t) {
    const float* row = x.data() + t * kWidth;
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < kWidth; ++i) mean += row[i] / static_cast<double>(kWidth);
    for (int64_t i = 0; i < kWidth; ++i)
      variance += (row[i] - mean) * (row[i] - mean) / static_cast<double>(kWidth);
    for (int64_t i = 0; i < kWidth; ++i) {
      const double expected = (row[i] - mean) / sqrt(variance + 1e-5) * weight[at(i)];
      ok = ok && near(out[at(t * kWidth + i)], expected, 3e-6 * fabs(weight[at(i)]));
    }
  }
  Checksum sum;
  sum.add(out);
  report.line("layer_norm", sum, ok);
}

void check_rope(const Kernels& kernels, Random& random, Report& report) {
  constexpr size_t kHeads = 3, kHeadDim = 40, kHalf = kHeadDim / 2;
  const std::vector<float> before = random.numbers(kHeads * kHeadDim);
  const std::vector<float> cos = random.numbers(kHalf), sin = random.numbers(kHalf);
  std::vector<float> x = before;
  kernels.rope(x.data(), cos.data(), sin.data(), kHeads, kHeadDim, kHeadDim);
  // Part of each head separately, as if it were the head.
  constexpr size_t kRotary = 18;
  std::vector<float> partly = before;
  kernels.rope(partly.data(), cos.data(), sin.data(), kHeads, kHeadDim, kRotary);
  bool ok = true;
  for (size_t h = 0; h < kHeads; ++h) {
    for (size_t i = 0; i < kHalf; ++i) {
      const double a = before[h * kHeadDim + i], b = before[h * kHeadDim + kHalf + i];
      ok = ok && near(x[h * kHeadDim + i], a * cos[i] - b * sin[i], 1e-6) &&
           near(x[h * kHeadDim + kHalf + i], b * cos[i] + a * sin[i], 1e-6);
    }
    std::vector<float> head(&before[h * kHeadDim], &before[h * kHeadDim] + kHeadDim);
    kernels.rope(head.data(), cos.data(), sin.data(), 1, kRotary, kRotary);
    ok = ok && memcmp(head.data(), &partly[h * kHeadDim], kHeadDim * sizeof(float)) == 0;
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

void check_other_elementwise(const Kernels& kernels, Report& report) {
  constexpr size_t kCount = 531;
  Random random;
  std::vector<float> x = random.numbers(kCount), out(kCount);
  const std::vector<float> y = random.numbers(kCount);
  for (float& v : x) v *= 8;
  const auto check = [&](const char* name, double tolerance, const auto& expected) {
    bool ok = true;
    for (size_t i = 0; i < kCount; ++i) {
      const double wanted = expected(static_cast<double>(x[i]), static_cast<double>(y[i]));
      ok = ok && near(out[i], wanted, tolerance * fabs(wanted) + 1e-36);
    }
    Checksum sum;
    sum.add(out);
    report.line(name, sum, ok);
  };
  kernels.gelu_gate(x.data(), y.data(), out.data(), kCount);
  check("gelu_gate", 4e-5, [](double g, double up) {
    return g / (1 + exp(-1.5957691216057308 * (g + 0.044715 * g * g * g))) * up;
  });
  kernels.clamped_gate(x.data(), y.data(), out.data(), kCount);
  check("clamped_gate", 6e-6, [](double gate, double up) {
    const double g = fmin(gate, 7), u = fmax(-7, fmin(up, 7));
    return g / (1 + exp(-1.702 * g)) * (u + 1);
  });
  kernels.product_gate(x.data(), y.data(), out.data(), kCount);
  check("product_gate", 0, [](double gate, double up) {
    return static_cast<double>(static_cast<float>(gate) * static_cast<float>(up));
  });
  kernels.relu_squared(x.data(), out.data(), kCount);
  check("relu_squared", 0, [](double v, double) {
    const float positive = fmaxf(static_cast<float>(v), 0);
    return static_cast<double>(positive * positive);
  });
  kernels.sigmoid(x.data(), out.data(), kCount);
  check("sigmoid", 4e-7, [](double v, double) { return 1 / (1 + exp(-v)); });
  out = x;
  kernels.add_scaled(out.data(), y.data(), 0.3f, kCount);
  check("add_scaled", 0, [](double v, double w) {
    const float product = static_cast<float>(w) * 0.3f;
    return static_cast<double>(static_cast<float>(v) + product);
  });
  out = x;
  kernels.scale(out.data(), 0.3f, kCount);
  check("scale", 0, [](double v, double) {
    return static_cast<double>(static_cast<float>(v) * 0.3f);
  });
  out = x;
  kernels.multiply(out.data(), y.data(), kCount);
  check("multiply", 0, [](double v, double w) {
    return static_cast<double>(static_cast<float>(v) * static_cast<float>(w));
  });
}

// Logits of three blocks, of which the last is short; the expected values come from a naive
// calculation.
void check_sampling(const Kernels& kernels, Random& random, Report& report) {
  constexpr int64_t kCount = 2 * kSamplingBlock + 37;
  constexpr int64_t kBlocks = 3;
  constexpr float kLargest = 16.0f;
  constexpr float kTemperature = 0.75f;
  std::vector<float> x = random.numbers(kCount);
  x[5] = -INFINITY;
  std::vector<float> out(at(kCount));
  std::vector<uint32_t> mask(at((kCount + 31) / 32));
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = 0x9e3779b9u * static_cast<uint32_t>(i + 1);

  kernels.copy_allowed(x.data(), mask.data(), kCount, out.data());
  bool ok = true;
  for (int64_t i = 0; i < kCount; ++i)
    ok = ok && out[at(i)] == ((mask[at(i / 32)] >> i % 32 & 1) != 0 ? x[at(i)] : -INFINITY);
  Checksum allowed;
  allowed.add(out);
  report.line("copy_allowed", allowed, ok);

  std::vector<float> weights(at(kCount));
  std::vector<double> sums(at(kBlocks));
  const auto sums_are = [&](const std::vector<double>& made, const auto& counts) {
    bool is_so = true;
    for (int64_t block = 0; block < kBlocks; ++block) {
      double expected = 0;
      for (int64_t i = block * kSamplingBlock; i < kCount && i < (block + 1) * kSamplingBlock; ++i)
        if (counts(i)) expected += weights[at(i)];
      is_so = is_so && near(made[at(block)], expected, 1e-13 * expected);
    }
    return is_so;
  };
  kernels.draw_weights(x.data(), kCount, kLargest, kTemperature, weights.data(), sums.data());
  ok = sums_are(sums, [](int64_t) { return true; });
  for (int64_t i = 0; i < kCount; ++i) {
    const double below = (x[at(i)] - kLargest) / kTemperature;
    const double expected = below < kLeastExponent ? 0 : exp(below);
    ok = ok && near(weights[at(i)], expected, 1.3e-7 * expected);
  }
  Checksum drawn;
  drawn.add(weights);
  drawn.add(sums);
  report.line("draw_weights", drawn, ok);

  const float low = x[40];
  const float high = x[40] + 0.5f;
  kernels.kept_sums(x.data(), weights.data(), kCount, low, weights[50], sums.data());
  ok = sums_are(sums, [&](int64_t i) { return x[at(i)] >= low && weights[at(i)] >= weights[50]; });
  Checksum kept;
  kept.add(sums);
  report.line("kept_sums", kept, ok);

  std::vector<int32_t> num_above(at(kBlocks)), num_within(at(kBlocks));
  std::vector<int32_t> within(at(kBlocks * kSamplingBlock));
  kernels.split_logits(x.data(), weights.data(), kCount, low, high, sums.data(), num_above.data(),
                       within.data(), num_within.data());
  ok = sums_are(sums, [&](int64_t i) { return x[at(i)] > high; });
  Checksum split;
  for (int64_t block = 0; block < kBlocks; ++block) {
    int32_t above = 0;
    int32_t count = 0;
    const int32_t* found = within.data() + block * kSamplingBlock;
    for (int64_t i = block * kSamplingBlock; i < kCount && i < (block + 1) * kSamplingBlock; ++i) {
      above += x[at(i)] > high;
      if (low <= x[at(i)] && x[at(i)] <= high)
        ok = ok && found[count++] == i - block * kSamplingBlock;
    }
    ok = ok && num_above[at(block)] == above && num_within[at(block)] == count;
    split.add_bytes(found, sizeof *found * at(count));
  }
  split.add(sums);
  split.add(num_above);
  split.add(num_within);
  report.line("split_logits", split, ok);
}

// A sequence of 270 positions, two spans, in shuffled blocks; its tokens 254 to 258 have a window
// of 250 positions.
void check_attention(const Kernels& kernels, Random& random, Report& report) {
  constexpr int64_t kHeads = 10, kKvHeads = 2, kHeadDim = 24, kPositions = 270;
  constexpr int64_t kTokens = 5, kPosition = 254, kWindow = 250, kPadded = 32, kNumBlocks = 19;
  int32_t block_table[17];
  for (int32_t i = 0; i < 17; ++i) block_table[i] = (7 * i + 3) % kNumBlocks;
  const uint16_t nan_half = 0x7e00;
  std::vector<uint16_t> keys(at(kNumBlocks * kKvHeads * kHeadDim * kBlockTokens), nan_half);
  std::vector<uint16_t> values(at(kNumBlocks * kKvHeads * kBlockTokens * kPadded), nan_half);
  const std::vector<float> k = random.numbers(kPositions * kKvHeads * kHeadDim);
  const std::vector<float> v = random.numbers(kPositions * kKvHeads * kHeadDim);
  for (int64_t p = 0; p < kPositions; ++p)
    kernels.append_kv(k.data() + p * kKvHeads * kHeadDim, v.data() + p * kKvHeads * kHeadDim,
                      keys.data(), values.data(), block_table[p / 16], p % 16, kKvHeads, kHeadDim,
                      kHeadDim);
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

  const std::vector<float> q = random.numbers(kTokens * kHeads * kHeadDim);
  std::vector<float> out(q.size());
  constexpr int64_t kNumRows = kTokens * kHeads;
  std::vector<float> scratch(at(attention_scratch_floats(kNumRows, kHeadDim, kHeadDim, false)));
  AttentionArgs args{q.data(),    out.data(),    kTokens,     kPosition, kWindow,
                           keys.data(), values.data(), block_table, kHeads,    kKvHeads,
                           kHeadDim,    kHeadDim,      0,           0,         kKvHeads,
                           0,           kHeads / kKvHeads,          0.2f,      0.0f,
                           nullptr,     scratch.data()};
  const auto is_attention = [&] {
    bool is_near = true;
    for (int64_t row = 0; row < kTokens * kHeads; ++row) {
      const int64_t last = kPosition + row / kHeads;
      const int64_t kv_head = row % kHeads / (kHeads / kKvHeads);
      std::vector<double> weighted(kHeadDim);
      double total = args.sinks ? exp(static_cast<double>(args.sinks[row % kHeads])) : 0;
      for (int64_t p = last + 1 - kWindow; p <= last; ++p) {
        double score = 0;
        for (int64_t d = 0; d < kHeadDim; ++d)
          score += key(p, kv_head, d) * q[at(row * kHeadDim + d)];
        score *= static_cast<double>(0.2f);
        if (args.softcap != 0) score = args.softcap * tanh(score / args.softcap);
        const double term = exp(score);
        total += term;
        for (int64_t d = 0; d < kHeadDim; ++d) weighted[at(d)] += term * value(p, kv_head, d);
      }
      for (int64_t d = 0; d < kHeadDim; ++d)
        is_near = is_near && near(out[at(row * kHeadDim + d)], weighted[at(d)] / total, 1e-4);
    }
    return is_near;
  };
  kernels.attention(args);
  ok = is_attention();
  Checksum sum;
  sum.add(out);
  report.line("attention", sum, ok);

  const std::vector<float> whole = out;
  out.assign(out.size(), NAN);
  const int64_t span_floats = attention_partial_floats(kNumRows, kHeadDim);
  std::vector<float> partials(at(2 * span_floats));
  kernels.attention_span(args, 1, partials.data() + span_floats);
  kernels.attention_span(args, 0, partials.data());
  kernels.attention_merge(args, partials.data());
  Checksum spans;
  spans.add(partials);
  Checksum merged;
  merged.add(out);
  report.line("attention_span", spans, out == whole);
  report.line("attention_merge", merged, out == whole);

  // Scores with a cap and sinks, and the kernel for caps by itself.
  Random own;
  const std::vector<float> sinks = own.numbers(kHeads), x = own.numbers(531);
  args.softcap = 0.75f;
  args.sinks = sinks.data();
  kernels.attention(args);
  ok = is_attention();
  Checksum capped;
  capped.add(out);
  out = x;
  kernels.softcap(out.data(), 0.75f, static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = 0.75 * tanh(x[i] / 0.75);
    ok = ok && near(out[i], expected, 5e-7 * fabs(expected));
  }
  capped.add(out);
  report.line("softcap", capped, ok);

  // Values that are columns of the keys give the same bits as separately stored values, however
  // heads are divided.
  constexpr int64_t kStart = 3, kValueDim = 20;
  args.softcap = 0.0f;
  args.sinks = nullptr;
  args.value_dim = kValueDim;
  args.value_start = kStart;
  std::vector<uint16_t> stored(at(kNumBlocks * kKvHeads * kBlockTokens * kPadded), nan_half);
  std::vector<uint16_t> unused(keys.size());
  for (int64_t p = 0; p < kPositions; ++p) {
    std::vector<float> columns;
    for (int64_t head = 0; head < kKvHeads; ++head) {
      const float* first = k.data() + (p * kKvHeads + head) * kHeadDim + kStart;
      columns.insert(columns.end(), first, first + kValueDim);
    }
    kernels.append_kv(k.data() + p * kKvHeads * kHeadDim, columns.data(), unused.data(),
                      stored.data(), block_table[p / 16], p % 16, kKvHeads, kHeadDim, kValueDim);
  }
  args.values = stored.data();
  out.assign(at(kTokens * kHeads * kValueDim), NAN);
  args.out = out.data();
  kernels.attention(args);
  const std::vector<float> of_stored = out;
  out.assign(out.size(), NAN);
  args.values = nullptr;
  for (int64_t i = 0; i < kHeads / kKvHeads; i += 2) {
    args.first_in_group = i;
    args.end_in_group = i + 2 < kHeads / kKvHeads ? i + 2 : kHeads / kKvHeads;
    kernels.attention(args);
  }
  Checksum latent;
  latent.add(out);
  report.line("attention.latent", latent, out == of_stored);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string isa = argc > 1 ? argv[1] : "";
  if (isa == "--list") {
    for (int i = 0; i < num_isas(); ++i) printf("%s\n", kernels_at(i)->isa);
    return 0;
  }
  const Kernels* kernels = perturbed_kernels_for(isa.c_str());
  if (!kernels) {
    fprintf(stderr, "no kernels for '%s' here\n", isa.c_str());
    return 2;
  }
  if (argc > 2 && !set_perturbation(argv[2])) {
    fprintf(stderr, "no such kernel: %s\n", argv[2]);
    return 2;
  }
  Random random;
  Report report;
  Activity activity = check_quantize(*kernels, random, report);
  check_round_bf16(*kernels, activity, report);
  // The others generate their own numbers, so that the checksums of all other checks stay the same.
  constexpr int kOldFormats = static_cast<int>(Format::Q6_K) + 1;
  for (int f = 0; f < kOldFormats; ++f)
    check_format(*kernels, static_cast<Format>(f), activity, random, report);
  check_rms_norm(*kernels, random, report);
  check_layer_norm(*kernels, report);
  check_rope(*kernels, random, report);
  check_elementwise(*kernels, random, report);
  check_other_elementwise(*kernels, report);
  check_attention(*kernels, random, report);
  check_sampling(*kernels, random, report);
  check_convert(*kernels, random, report);
  check_states(*kernels, report);
  Random of_formats;
  for (int f = kOldFormats; f < kNumFormats; ++f)
    check_format(*kernels, static_cast<Format>(f), activity, of_formats, report);
  return report.all_ok() ? 0 : 1;
}
