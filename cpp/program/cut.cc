#include "program/cut.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace potluck {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A population of this size is sorted; a larger one is narrowed down first.
constexpr int64_t kMaxSorted = 64;
// Size of an evenly spread sample that determines where to search. With three standard deviations
// in either direction, about 3 to 5 % of the population remain.
constexpr int64_t kSample = 2048;
constexpr int kBins = 512;
// Initially, the range extends at most this many times farther down than the sample's estimate.
constexpr int64_t kGenerosity = 2;

}  // namespace

int CutSearch::Bins::bin_of(float logit) const {
  const double down = (static_cast<double>(top) - logit) * per_unit;
  return static_cast<int>(std::max(0.0, std::min(down, kBins - 1.0)));
}

Cut Cut::nothing() { return {-kInfinity, std::numeric_limits<int64_t>::max()}; }

CutSearch::CutSearch(const Kernels& kernels, const BlockedLogits& blocked, const float* weights,
                     const Scratch& scratch, ThreadPool::Session* session)
    : kernels_(kernels),
      blocked_(blocked),
      weights_(weights),
      scratch_(scratch),
      session_(session) {}

Cut CutSearch::find(Measure measure, double limit, double total) {
  const double part = std::min(1.0, limit / total);
  int64_t generosity = kGenerosity;
  Range range = guess(measure, part, generosity);
  bool is_above = false;
  for (;;) {
    const Split found = split(measure, range);
    if (found.above >= limit) {
      range = {std::nextafter(range.high, kInfinity), kInfinity};
      is_above = true;
    } else if (is_above || found.above + measured(measure, found.num_within) >= limit) {
      return find_among(measure, found.num_within, limit - found.above);
    } else if (range.low == -kInfinity) {
      return Cut::nothing();
    } else {
      generosity *= 16;
      const float high = std::nextafter(range.low, -kInfinity);
      range = guess(measure, part, generosity);
      range.high = high;
      if (!(range.low < high)) range.low = -kInfinity;
    }
  }
}

// The cut that keeps `limit` of the tokens in `order`, which is ascending.
Cut CutSearch::find_among(Measure measure, int64_t count, double limit) {
  int32_t* order = scratch_.order;
  const float* logits = blocked_.logits;
  // Uses a histogram of all of them, until a single bin remains.
  while (count > kMaxSorted) {
    const Bins bins = bins_of(measure, order, count);
    if (!(bins.width > 0.0)) break;
    double amounts[kBins] = {};
    for (int64_t i = 0; i < count; ++i) {
      amounts[bins.bin_of(logits[order[i]])] += amount(measure, order[i]);
    }
    int bin = 0;
    while (bin < kBins - 1 && amounts[bin] < limit) limit -= amounts[bin++];
    int64_t kept = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int32_t token = order[i];
      order[kept] = token;
      kept += bins.bin_of(logits[token]) == bin ? 1 : 0;
    }
    const bool has_shrunk = kept <= count - count / 4;
    count = kept;
    if (!has_shrunk) break;
  }
  const auto before = [logits](int32_t a, int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  };
  // If all are equal, they are already in order.
  if (!std::is_sorted(order, order + count, before)) std::sort(order, order + count, before);
  double cumulative = 0.0;
  int64_t rank = 0;
  while (rank + 1 < count && (cumulative += amount(measure, order[rank])) < limit) ++rank;
  return {logits[order[rank]], order[rank]};
}

double CutSearch::measured(Measure measure, int64_t count) const {
  if (measure == Measure::Tokens) return static_cast<double>(count);
  double total = 0.0;
  for (int64_t i = 0; i < count; ++i) total += static_cast<double>(weights_[scratch_.order[i]]);
  return total;
}

CutSearch::Split CutSearch::split(Measure measure, const Range& range) {
  const int64_t blocks = BlockedLogits::num_blocks(blocked_.count);
  for_blocks(session_, blocks, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kSamplingBlock;
    const int64_t last = std::min(end * kSamplingBlock, blocked_.count);
    kernels_.split_logits(blocked_.logits + first, weights_ + first, last - first, range.low,
                          range.high, scratch_.above + begin, scratch_.num_above + begin,
                          scratch_.order + first, scratch_.num_within + begin);
  });
  Split found{0.0, 0};
  for (int64_t block = 0; block < blocks; ++block) {
    found.above += measure == Measure::Tokens ? static_cast<double>(scratch_.num_above[block])
                                              : scratch_.above[block];
    const int32_t* within = scratch_.order + block * kSamplingBlock;
    int32_t* out = scratch_.order + found.num_within;
    const auto first = static_cast<int32_t>(block * kSamplingBlock);
    const int32_t count = scratch_.num_within[block];
    for (int32_t i = 0; i < count; ++i) out[i] = first + within[i];
    found.num_within += count;
  }
  return found;
}

CutSearch::Bins CutSearch::bins_of(Measure measure, const int32_t* tokens, int64_t count) const {
  float top = -kInfinity;
  float bottom = kInfinity;
  for (int64_t i = 0; i < count; ++i) {
    const float x = blocked_.logits[tokens[i]];
    // Far below the maximum, nothing has any weight.
    const bool counts =
        x != -kInfinity && !(measure == Measure::Weight && weights_[tokens[i]] == 0.0f);
    top = std::max(top, counts ? x : -kInfinity);
    bottom = std::min(bottom, counts ? x : kInfinity);
  }
  const double width = bottom < top ? (static_cast<double>(top) - bottom) / kBins : 0.0;
  return {top, width, 1.0 / width};
}

// A range of logits that probably contains the cut, from a histogram of a sample. Only the duration
// of the search depends on it.
CutSearch::Range CutSearch::guess(Measure measure, double part, int64_t generosity) const {
  int32_t sample[kSample] = {};
  const int64_t size = std::min(blocked_.count, kSample);
  for (int64_t i = 0; i < size; ++i) {
    sample[i] = static_cast<int32_t>(i * blocked_.count / size);
  }
  const Bins bins = bins_of(measure, sample, size);
  if (!(bins.width > 0.0)) {
    return {bins.top, bins.top == -kInfinity ? kInfinity : bins.top};
  }
  double amounts[kBins] = {};
  double squares[kBins] = {};
  int64_t counts[kBins] = {};
  double sampled = 0.0;
  for (int64_t i = 0; i < size; ++i) {
    const int bin = bins.bin_of(blocked_.logits[sample[i]]);
    const double share = amount(measure, sample[i]);
    amounts[bin] += share;
    squares[bin] += share * share;
    ++counts[bin];
    sampled += share;
  }
  const double target = part * sampled;
  int at = 0;
  double cumulative = amounts[0];
  int64_t num_before = counts[0];
  double variance = (1.0 - part) * (1.0 - part) * squares[0];
  while (at < kBins - 1 && cumulative < target) {
    ++at;
    cumulative += amounts[at];
    num_before += counts[at];
    variance += (1.0 - part) * (1.0 - part) * squares[at];
  }
  for (int bin = at + 1; bin < kBins; ++bin) variance += part * part * squares[bin];
  // A sample of the whole population has no error.
  const double margin = size == blocked_.count ? 0.0 : 3.0 * std::sqrt(variance);
  int first = 0;
  cumulative = amounts[0];
  int64_t num_through = counts[0];
  while (first < at && cumulative < target - margin) {
    cumulative += amounts[++first];
    num_through += counts[first];
  }
  int last = first;
  while (last < kBins - 1 &&
         (last < at ||
          (cumulative < target + margin && num_through < generosity * (num_before + 8)))) {
    cumulative += amounts[++last];
    num_through += counts[last];
  }
  return {last == kBins - 1 ? -kInfinity : bins.edge(last + 1),
          first == 0 ? kInfinity : bins.edge(first)};
}

}  // namespace potluck
