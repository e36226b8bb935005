// Finds the most likely tokens of a large vocabulary without looking at every logit again and
// again.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace potluck {

// The logits of a vocabulary, and the largest of each block of them.
struct BlockedLogits {
  static constexpr int64_t kBlock = kSamplingBlock;
  static int64_t num_blocks(int64_t count) { return (count + kBlock - 1) / kBlock; }

  const float* logits;  // [count]
  int64_t count;
  const float* maxima;  // [num_blocks(count)], from find_maxima

  bool all_finite() const;
  // The lowest index of the largest logit; it is finite.
  int64_t argmax() const;
};

// Writes the maxima of blocks [begin, end) of `logits` [count]; NaN for a block in which not all
// numbers are finite.
void find_maxima(const float* logits, int64_t count, int64_t begin, int64_t end, float* maxima);

// The same for numbers that are finite or minus infinity.
void find_masked_maxima(const float* logits, int64_t count, int64_t begin, int64_t end,
                        float* maxima);

// The most likely tokens, in sampling order: larger logit first, lower id first among equals.
class Candidates {
 public:
  // What it writes to: of `count` entries, and of num_blocks(count).
  struct Scratch {
    int32_t* order;
    float* maxima;
  };

  Candidates(const BlockedLogits& blocked, const Scratch& scratch)
      : blocked_(blocked), scratch_(scratch) {}

  // The first `size`, or as many as there are. Valid until it is called again. A size of more than a
  // few hundred is better served by CutSearch.
  int32_t* first(int64_t size) const;

 private:
  int64_t gather(int64_t size) const;

  const BlockedLogits blocked_;
  const Scratch scratch_;
};

}  // namespace potluck
