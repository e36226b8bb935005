#include "program/candidates.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

namespace potluck {
namespace {

// Compilers vectorize loops over this many independent results.
constexpr int64_t kLanes = 16;

template <bool kMustBeFinite>
void find_block_maxima(const float* logits, int64_t count, int64_t begin, int64_t end,
                       float* maxima) {
  for (int64_t block = begin; block < end; ++block) {
    const int64_t first = block * BlockedLogits::kBlock;
    const int64_t last = std::min(first + BlockedLogits::kBlock, count);
    float differences[kLanes] = {};  // x - x is 0 for a finite x and NaN otherwise
    float largest[kLanes];
    std::fill_n(largest, kLanes, -std::numeric_limits<float>::infinity());
    int64_t i = first;
    for (; i + kLanes <= last; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const float x = logits[i + lane];
        if (kMustBeFinite) differences[lane] += x - x;
        largest[lane] = x > largest[lane] ? x : largest[lane];
      }
    }
    for (; i < last; ++i) {
      if (kMustBeFinite) differences[0] += logits[i] - logits[i];
      largest[0] = std::max(largest[0], logits[i]);
    }
    for (int64_t half = kLanes / 2; half > 0; half /= 2) {
      for (int64_t lane = 0; lane < half; ++lane) {
        differences[lane] += differences[lane + half];
        largest[lane] = std::max(largest[lane], largest[lane + half]);
      }
    }
    maxima[block] = largest[0] + differences[0];
  }
}

}  // namespace

void find_maxima(const float* logits, int64_t count, int64_t begin, int64_t end, float* maxima) {
  find_block_maxima<true>(logits, count, begin, end, maxima);
}

void find_masked_maxima(const float* logits, int64_t count, int64_t begin, int64_t end,
                        float* maxima) {
  find_block_maxima<false>(logits, count, begin, end, maxima);
}

bool BlockedLogits::all_finite() const {
  return std::all_of(maxima, maxima + num_blocks(count), [](float x) { return x - x == 0.0f; });
}

int64_t BlockedLogits::argmax() const {
  const float* largest = std::max_element(maxima, maxima + num_blocks(count));
  const int64_t first = (largest - maxima) * kBlock;
  return std::find(logits + first, logits + std::min(first + kBlock, count), *largest) - logits;
}

// Writes the indices of the `size` largest logits, and a few others, to `order`, and returns how
// many it has written. At least `size` blocks have a logit that is at least the `size`-th largest
// of the maxima, so smaller logits are not among the `size` largest.
int64_t Candidates::gather(int64_t size) const {
  const int64_t blocks = BlockedLogits::num_blocks(blocked_.count);
  if (size == 0) return 0;
  if (size >= blocks) {
    std::iota(scratch_.order, scratch_.order + blocked_.count, 0);
    return blocked_.count;
  }
  std::copy_n(blocked_.maxima, blocks, scratch_.maxima);
  std::nth_element(scratch_.maxima, scratch_.maxima + size - 1, scratch_.maxima + blocks,
                   std::greater<float>());
  const float least = scratch_.maxima[size - 1];
  int64_t num_gathered = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    if (blocked_.maxima[block] < least) continue;
    const int64_t first = block * BlockedLogits::kBlock;
    const int64_t last = std::min(first + BlockedLogits::kBlock, blocked_.count);
    for (int64_t i = first; i < last; ++i) {
      if (blocked_.logits[i] >= least) scratch_.order[num_gathered++] = static_cast<int32_t>(i);
    }
  }
  return num_gathered;
}

int32_t* Candidates::first(int64_t size) const {
  size = std::min(size, blocked_.count);
  int32_t* order = scratch_.order;
  const int64_t num_gathered = gather(size);
  const auto before = [logits = blocked_.logits](int32_t a, int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  };
  if (size < num_gathered) std::nth_element(order, order + size, order + num_gathered, before);
  std::sort(order, order + size, before);
  return order;
}

}  // namespace potluck
