// Ops with a state, checked against the definitions of potluck.types.program.
#include <math.h>

#include <algorithm>
#include <utility>

#include "check/kernel_check.h"

namespace potluck {
namespace {

using namespace check;

constexpr int64_t kTokens = 7;

double logistic(double x) { return 1 / (1 + exp(-x)); }
double softplus(double x) { return x > 20 ? x : log1p(exp(x)); }

void check_conv(const Kernels& kernels, Random& random, Report& report) {
  constexpr int64_t kWidth = 291, kKernel = 4;
  const std::vector<float> x = random.numbers(kTokens * kWidth);
  const std::vector<float> weight = random.numbers(kWidth * kKernel), bias = random.numbers(kWidth);
  const std::vector<float> start = random.numbers((kKernel - 1) * kWidth);
  std::vector<float> state = start, out(x.size());
  // Computed in two parts, by tokens and by columns.
  for (const auto& [t, end] : {std::pair<int64_t, int64_t>{0, 2}, {2, kTokens}})
    for (const auto& [c, end_c] : {std::pair<int64_t, int64_t>{0, 272}, {272, kWidth}})
      kernels.causal_conv({x.data() + t * kWidth, out.data() + t * kWidth, end - t, kWidth, kKernel,
                           weight.data(), bias.data(), state.data(), false, true, c, end_c});
  bool ok = true;
  const auto row = [&](int64_t t) {  // starts kKernel - 1 rows before the first
    return t < 0 ? start.data() + (t + kKernel - 1) * kWidth : x.data() + t * kWidth;
  };
  for (int64_t t = 0; t < kTokens; ++t)
    for (int64_t c = 0; c < kWidth; ++c) {
      double sum = bias[at(c)];
      for (int64_t j = 0; j < kKernel; ++j)
        sum += static_cast<double>(weight[at(c * kKernel + j)]) * row(t - kKernel + 1 + j)[c];
      const double expected = sum * logistic(sum);
      ok = ok && near(out[at(t * kWidth + c)], expected, 1e-5);
    }
  for (int64_t j = 0; j < kKernel - 1; ++j)
    ok = ok && memcmp(state.data() + j * kWidth, row(kTokens - kKernel + 1 + j),
                      kWidth * sizeof(float)) == 0;
  Checksum sum;
  sum.add(out);
  sum.add(state);
  report.line("causal_conv", sum, ok);
}

// The last column of the last head, whose strip is not full.
void check_delta(const Kernels& kernels, Random& random, Report& report) {
  constexpr int64_t kHeads = 6, kKeyHeads = 3, kKeyDim = 33, kValueDim = 84;
  constexpr int64_t kKeys = 2 * kKeyHeads * kKeyDim, kValues = kHeads * kValueDim;
  constexpr int64_t kStrips = (kValueDim + 15) / 16;
  const std::vector<float> x = random.numbers(kTokens * (kKeys + kValues));
  const std::vector<float> decay = random.numbers(kTokens * kHeads);
  const std::vector<float> beta = random.numbers(kTokens * kHeads);
  const std::vector<float> rate = random.numbers(kHeads), bias = random.numbers(kHeads);
  std::vector<float> keys(at(kKeyHeads * kTokens * 2 * kKeyDim));
  std::vector<float> products(at(kTokens * kKeyHeads));
  std::vector<float> decays(decay.size()), betas(beta.size());
  for (int64_t t = 0; t < kTokens; ++t)
    kernels.delta_inputs({x.data() + t * (kKeys + kValues), decay.data() + t * kHeads,
                          beta.data() + t * kHeads, rate.data(), bias.data(), kHeads, kKeyHeads,
                          kKeyDim, 0.01f, keys.data() + t * 2 * kKeyDim, kTokens * 2 * kKeyDim,
                          products.data() + t * kKeyHeads, decays.data() + t * kHeads,
                          betas.data() + t * kHeads});
  bool ok = true;
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t h = 0; h < kHeads; ++h) {
      const size_t i = at(t * kHeads + h);
      const double step = softplus(static_cast<double>(decay[i] + bias[at(h)]));
      ok = ok && near(decays[i], exp(rate[at(h)] * step), 1e-5 * exp(rate[at(h)] * step)) &&
           near(betas[i], logistic(beta[i]), 1e-6);
    }
    for (int64_t h = 0; h < kKeyHeads; ++h) {
      const float* query = x.data() + t * (kKeys + kValues) + h * kKeyDim;
      const float* key = query + kKeyHeads * kKeyDim;
      const float* made = keys.data() + (h * kTokens + t) * 2 * kKeyDim;
      double key_norm = 0.01f, query_norm = 0.01f, product = 0;
      for (int64_t i = 0; i < kKeyDim; ++i) {
        key_norm += static_cast<double>(key[i]) * key[i];
        query_norm += static_cast<double>(query[i]) * query[i];
        product += static_cast<double>(key[i]) * query[i];
      }
      const double key_factor = 1 / sqrt(key_norm), query_factor = 1 / sqrt(query_norm * kKeyDim);
      for (int64_t i = 0; i < kKeyDim; ++i)
        ok = ok && near(made[i], key[i] * key_factor, 1e-6) &&
             near(made[kKeyDim + i], query[i] * query_factor, 1e-6);
      ok = ok && near(products[at(t * kKeyHeads + h)], product * key_factor * query_factor, 1e-6);
    }
  }
  Checksum inputs;
  for (const auto* made : {&keys, &products, &decays, &betas}) inputs.add(*made);
  report.line("delta_inputs", inputs, ok);

  std::vector<float> state(at(kHeads * kStrips * kKeyDim * 16)), out(at(kTokens * kValues));
  std::fill(state.begin(), state.end(), NAN);  // starts with zeros
  DeltaArgs args{};
  args.key_head_stride = kTokens * 2 * kKeyDim;
  args.value_stride = kKeys + kValues;
  args.out_stride = kValues;
  args.num_heads = kHeads;
  args.num_key_heads = kKeyHeads;
  args.key_dim = kKeyDim;
  args.value_dim = kValueDim;
  args.state = state.data();
  for (const auto& [t, end] : {std::pair<int64_t, int64_t>{0, 1}, {1, kTokens}})
    for (const auto& [strip, end_strip] :
         {std::pair<int64_t, int64_t>{0, 8}, {8, kHeads * kStrips}}) {
      args.keys = keys.data() + t * 2 * kKeyDim;
      args.products = products.data() + t * kKeyHeads;
      args.decays = decays.data() + t * kHeads;
      args.betas = betas.data() + t * kHeads;
      args.values = x.data() + t * (kKeys + kValues) + kKeys;
      args.out = out.data() + t * kValues;
      args.num_tokens = end - t;
      args.is_fresh = t == 0;
      args.first_strip = strip;
      args.end_strip = end_strip;
      kernels.gated_delta(args);
    }
  ok = true;
  for (int64_t h = 0; h < kHeads; ++h)
    for (int64_t c = 0; c < kValueDim; ++c) {
      std::vector<double> s(at(kKeyDim));
      for (int64_t t = 0; t < kTokens; ++t) {
        const float* key = keys.data() + (h / 2 * kTokens + t) * 2 * kKeyDim;
        double known = 0, expected = 0;
        for (int64_t i = 0; i < kKeyDim; ++i) {
          s[at(i)] *= decays[at(t * kHeads + h)];
          known += key[i] * s[at(i)];
        }
        const double value = x[at(t * (kKeys + kValues) + kKeys + h * kValueDim + c)];
        for (int64_t i = 0; i < kKeyDim; ++i) {
          s[at(i)] += key[i] * (betas[at(t * kHeads + h)] * (value - known));
          expected += key[kKeyDim + i] * s[at(i)];
        }
        // The norm of a key and a query is 1, and so is its root; rates have both signs.
        const double size = 1 + fabs(expected) + fabs(known);
        ok = ok && near(out[at(t * kValues + h * kValueDim + c)], expected, 1e-4 * size);
      }
    }
  Checksum sum;
  sum.add(state);
  sum.add(out);
  report.line("gated_delta", sum, ok);
}

void check_scan(const Kernels& kernels, Random& random, Report& report) {
  constexpr int64_t kHeads = 6, kGroups = 2, kStateDim = 33, kHeadDim = 84;
  constexpr int64_t kInner = kHeads * kHeadDim, kWidth = kInner + 2 * kGroups * kStateDim;
  constexpr int64_t kStrips = (kHeadDim + 15) / 16;
  constexpr float kLeast = 0.3f, kLargest = 1.7f;
  const std::vector<float> x = random.numbers(kTokens * kWidth);
  const std::vector<float> step = random.numbers(kTokens * kHeads);
  const std::vector<float> rate = random.numbers(kHeads), bias = random.numbers(kHeads);
  const std::vector<float> skip = random.numbers(kHeads);
  std::vector<float> steps(step.size()), decays(step.size());
  for (int64_t t = 0; t < kTokens; ++t)
    kernels.scan_inputs({step.data() + t * kHeads, bias.data(), rate.data(), kHeads, kLeast,
                         kLargest, steps.data() + t * kHeads, decays.data() + t * kHeads});
  bool ok = true;
  for (int64_t i = 0; i < kTokens * kHeads; ++i) {
    const double wide = softplus(static_cast<double>(step[at(i)] + bias[at(i % kHeads)]));
    const double expected = fmin(fmax(wide, kLeast), kLargest);
    const double factor = exp(rate[at(i % kHeads)] * expected);
    ok = ok && near(steps[at(i)], expected, 1e-6 * expected) &&
         near(decays[at(i)], factor, 1e-5 * factor);
  }
  Checksum inputs;
  inputs.add(steps);
  inputs.add(decays);
  report.line("scan_inputs", inputs, ok);

  std::vector<float> state(at(kHeads * kStrips * kStateDim * 16)), out(at(kTokens * kInner));
  std::fill(state.begin(), state.end(), NAN);  // starts with zeros
  ScanArgs args{};
  args.x_stride = kWidth;
  args.skip = skip.data();
  args.out_stride = kInner;
  args.num_heads = kHeads;
  args.head_dim = kHeadDim;
  args.num_groups = kGroups;
  args.state_dim = kStateDim;
  args.state = state.data();
  for (const auto& [t, end] : {std::pair<int64_t, int64_t>{0, 1}, {1, kTokens}})
    for (const auto& [strip, end_strip] :
         {std::pair<int64_t, int64_t>{0, 8}, {8, kHeads * kStrips}}) {
      args.x = x.data() + t * kWidth;
      args.steps = steps.data() + t * kHeads;
      args.decays = decays.data() + t * kHeads;
      args.out = out.data() + t * kInner;
      args.num_tokens = end - t;
      args.is_fresh = t == 0;
      args.first_strip = strip;
      args.end_strip = end_strip;
      kernels.state_scan(args);
    }
  ok = true;
  for (int64_t h = 0; h < kHeads; ++h)
    for (int64_t c = 0; c < kHeadDim; ++c) {
      std::vector<double> s(at(kStateDim));
      for (int64_t t = 0; t < kTokens; ++t) {
        const float* row = x.data() + t * kWidth;
        const float* b = row + kInner + h / 3 * kStateDim;
        const double in = row[h * kHeadDim + c];
        double expected = skip[at(h)] * in, size = fabs(expected);
        for (int64_t i = 0; i < kStateDim; ++i) {
          s[at(i)] = s[at(i)] * decays[at(t * kHeads + h)] + b[i] * (steps[at(t * kHeads + h)] * in);
          expected += b[kGroups * kStateDim + i] * s[at(i)];
          size += fabs(b[kGroups * kStateDim + i] * s[at(i)]);
        }
        ok = ok && near(out[at(t * kInner + h * kHeadDim + c)], expected, 1e-5 * size + 1e-6);
      }
    }
  Checksum sum;
  sum.add(state);
  sum.add(out);
  report.line("state_scan", sum, ok);
}

}  // namespace

void check_states(const Kernels& kernels, check::Report& report) {
  Random random;
  check_conv(kernels, random, report);
  check_delta(kernels, random, report);
  check_scan(kernels, random, report);
}

}  // namespace potluck
