// Finds the most likely tokens of a large vocabulary without repeatedly scanning every logit.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace potluck {

// The logits of a vocabulary, and the maximum of each block.
struct BlockedLogits {
  static constexpr int64_t kBlock = kSamplingBlock;
  static int64_t num_blocks(int64_t count) { return (count + kBlock - 1) / kBlock; }

  const float* logits;  // [count]
  int64_t count;
  const float* maxima;  // [num_blocks(count)], from find_maxima

  bool all_finite() const;
  // The lowest index of the largest logit, which is finite.
  int64_t argmax() const;
};

// Writes the maxima of blocks [begin, end) of `logits` [count]; NaN for a block with a number that
// is not finite.
void find_maxima(const float* logits, int64_t count, int64_t begin, int64_t end, float* maxima);

// The same for numbers that are finite or minus infinity.
void find_masked_maxima(const float* logits, int64_t count, int64_t begin, int64_t end,
                        float* maxima);

// The most likely tokens, in sampling order: larger logit first, lower id first among equals.
class Candidates {
 public:
  // The output buffers: of `count` entries, and of num_blocks(count).
  struct Scratch {
    int32_t* order;
    float* maxima;
  };

  Candidates(const BlockedLogits& blocked, const Scratch& scratch)
      : blocked_(blocked), scratch_(scratch) {}

  // The first `size`, or as many as exist. Valid until the next call. For a size of more than a few
  // hundred, CutSearch is faster.
  int32_t* first(int64_t size) const;

 private:
  int64_t gather(int64_t size) const;

  const BlockedLogits blocked_;
  const Scratch scratch_;
};

}  // namespace potluck
