// Finds the most likely tokens of a large vocabulary without looking at every logit again and
// again.
#pragma once

#include <cstdint>

namespace potluck {

// The logits of a vocabulary, and the largest of each block of them.
struct BlockedLogits {
  static constexpr int64_t kBlock = 128;
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

// Candidates in sampling order (larger logit first, lower id first among equals), sorted only as
// far as they are asked for.
class Candidates {
 public:
  // What it writes to: of `count` entries, and of num_blocks(count).
  struct Scratch {
    int32_t* order;
    float* maxima;
  };

  Candidates(const BlockedLogits& blocked, const Scratch& scratch)
      : blocked_(blocked), scratch_(scratch) {}

  // Sorts the first `size`, which may be more than there are.
  void sort_prefix(int64_t size);

  int32_t operator[](int64_t rank);

 private:
  int64_t gather(int64_t size);

  const BlockedLogits blocked_;
  const Scratch scratch_;
  int64_t num_sorted_ = 0;
};

}  // namespace potluck
