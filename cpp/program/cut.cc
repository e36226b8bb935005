#include "program/cut.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace potluck {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A population this small is sorted (some 15 us); a larger one is narrowed down first.
constexpr int64_t kMaxSorted = 384;
// So many of a population, evenly spread, say where to look. With three standard deviations to both
// sides, some 3 to 5 % of the population remain.
constexpr int64_t kSample = 2048;
constexpr int kBins = 512;
// The range goes at first at most so many times farther down than the sample's estimate.
constexpr int64_t kGenerosity = 2;

}  // namespace

Cut Cut::nothing() { return {-kInfinity, std::numeric_limits<int64_t>::max()}; }

CutSearch::CutSearch(const Kernels& kernels, const BlockedLogits& blocked, const float* weights,
                     const Scratch& scratch, ThreadPool::Session* session)
    : kernels_(kernels),
      blocked_(blocked),
      weights_(weights),
      scratch_(scratch),
      session_(session) {}

Cut CutSearch::find(Measure measure, double limit, double total) {
  int64_t generosity = kGenerosity;
  Range range = guess(measure, {nullptr, blocked_.count, limit, total}, generosity);
  bool is_above = false;
  for (;;) {
    int64_t num_within = 0;
    const double above = split(measure, range, num_within);
    const double within = measured(measure, scratch_.order, num_within);
    if (above >= limit) {
      range = {std::nextafter(range.high, kInfinity), kInfinity};
      is_above = true;
    } else if (is_above || above + within >= limit) {
      return find_among(measure, num_within, limit - above, within);
    } else if (range.low == -kInfinity) {
      return Cut::nothing();
    } else {
      generosity *= 16;
      const float high = std::nextafter(range.low, -kInfinity);
      range = guess(measure, {nullptr, blocked_.count, limit, total}, generosity);
      range.high = high;
      if (!(range.low < high)) range.low = -kInfinity;
    }
  }
}

// The cut that keeps `limit` of the tokens in `order`, which are in ascending order.
Cut CutSearch::find_among(Measure measure, int64_t count, double limit, double total) {
  int32_t* order = scratch_.order;
  const float* logits = blocked_.logits;
  limit = std::min(limit, total);
  while (count > kMaxSorted) {
    const Range range = guess(measure, {order, count, limit, total}, kGenerosity);
    // Without branches on where a logit lies, which nothing could predict.
    double above = 0.0;
    double within = 0.0;
    int64_t num_below = 0;
    for (int64_t i = 0; i < count; ++i) {
      const float x = logits[order[i]];
      const double some = amount(measure, order[i]);
      const double some_above = x > range.high ? some : 0.0;
      const double some_below = x < range.low ? some : 0.0;
      above += some_above;
      within += some - some_above - some_below;
      num_below += x < range.low ? 1 : 0;
    }
    const auto keep = [&](const auto& belongs) {
      int64_t kept = 0;
      for (int64_t i = 0; i < count; ++i) {
        const int32_t token = order[i];
        order[kept] = token;
        kept += belongs(logits[token]) ? 1 : 0;
      }
      return kept;
    };
    int64_t kept;
    if (above >= limit) {
      kept = keep([&](float x) { return x > range.high; });
      total = above;
    } else if (above + within >= limit || num_below == 0) {
      kept = keep([&](float x) { return !(x < range.low) & !(x > range.high); });
      limit -= above;
      total = within;
    } else {
      kept = keep([&](float x) { return x < range.low; });
      limit -= above + within;
      total -= above + within;
    }
    const bool has_shrunk = kept <= count - count / 4;
    count = kept;
    const auto is_tied = [&](int32_t token) { return logits[token] == logits[order[0]]; };
    if (!has_shrunk || std::all_of(order, order + count, is_tied)) break;
  }
  const auto before = [logits](int32_t a, int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  };
  // Where all are equal they are in order already.
  if (!std::is_sorted(order, order + count, before)) std::sort(order, order + count, before);
  double cumulative = 0.0;
  int64_t rank = 0;
  while (rank + 1 < count && (cumulative += amount(measure, order[rank])) < limit) ++rank;
  return {logits[order[rank]], order[rank]};
}

double CutSearch::measured(Measure measure, const int32_t* tokens, int64_t count) const {
  if (measure == Measure::Tokens) return static_cast<double>(count);
  double total = 0.0;
  for (int64_t i = 0; i < count; ++i) total += static_cast<double>(weights_[tokens[i]]);
  return total;
}

double CutSearch::split(Measure measure, const Range& range, int64_t& num_within) {
  const int64_t blocks = BlockedLogits::num_blocks(blocked_.count);
  for_blocks(session_, blocks, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kSamplingBlock;
    const int64_t last = std::min(end * kSamplingBlock, blocked_.count);
    kernels_.split_logits(blocked_.logits + first, weights_ + first, last - first, range.low,
                          range.high, scratch_.above + begin, scratch_.num_above + begin,
                          scratch_.order + first, scratch_.num_within + begin);
    // Indices are counted from the first logit of the call.
    for (int64_t block = begin; block < end; ++block) {
      int32_t* within = scratch_.order + block * kSamplingBlock;
      for (int32_t i = 0; i < scratch_.num_within[block]; ++i) {
        within[i] += static_cast<int32_t>(first);
      }
    }
  });
  double above = 0.0;
  num_within = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    above += measure == Measure::Tokens ? static_cast<double>(scratch_.num_above[block])
                                        : scratch_.above[block];
    const int32_t* within = scratch_.order + block * kSamplingBlock;
    std::copy(within, within + scratch_.num_within[block], scratch_.order + num_within);
    num_within += scratch_.num_within[block];
  }
  return above;
}

// A range of logits in which the cut probably is, from a histogram of a sample. Only how long the
// search takes depends on it.
CutSearch::Range CutSearch::guess(Measure measure, const Population& population,
                                  int64_t generosity) const {
  const int64_t size = std::min(population.count, kSample);
  const auto member = [&](int64_t i) {
    const int64_t at = i * population.count / size;
    return population.tokens == nullptr ? at : static_cast<int64_t>(population.tokens[at]);
  };
  float top = -kInfinity;
  float bottom = kInfinity;
  for (int64_t i = 0; i < size; ++i) {
    const float x = blocked_.logits[member(i)];
    if (x == -kInfinity) continue;
    // Far down nothing has any weight.
    if (measure == Measure::Weight && weights_[member(i)] == 0.0f) continue;
    top = std::max(top, x);
    bottom = std::min(bottom, x);
  }
  if (!(bottom < top)) return {top, top == -kInfinity ? kInfinity : top};
  const double width = (static_cast<double>(top) - bottom) / kBins;
  double amounts[kBins] = {};
  double squares[kBins] = {};
  int64_t counts[kBins] = {};
  double sampled = 0.0;
  for (int64_t i = 0; i < size; ++i) {
    const int64_t token = member(i);
    const double down = (static_cast<double>(top) - blocked_.logits[token]) / width;
    const int bin = static_cast<int>(std::min(down, kBins - 1.0));
    const double share = amount(measure, token);
    amounts[bin] += share;
    squares[bin] += share * share;
    ++counts[bin];
    sampled += share;
  }
  const double part = std::min(1.0, population.limit / population.total);
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
  // A sample that is everything has no error.
  const double margin = size == population.count ? 0.0 : 3.0 * std::sqrt(variance);
  int first = 0;
  cumulative = amounts[0];
  while (first < at && cumulative < target - margin) cumulative += amounts[++first];
  int last = first;
  int64_t num_through = 0;
  for (int bin = 0; bin <= last; ++bin) num_through += counts[bin];
  while (last < kBins - 1 &&
         (last < at ||
          (cumulative < target + margin && num_through < generosity * (num_before + 8)))) {
    cumulative += amounts[++last];
    num_through += counts[last];
  }
  return {last == kBins - 1 ? -kInfinity : static_cast<float>(top - (last + 1) * width),
          first == 0 ? kInfinity : static_cast<float>(top - first * width)};
}

}  // namespace potluck
