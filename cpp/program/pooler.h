// Computes one vector from the rows of a sequence, as specified by potluck.types.step.Pooling.
//
// The result depends, in every bit, neither on how the sequence was divided into slices nor on what
// else was in its steps.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "program/batch.h"

namespace potluck {

struct PooledVector {
  int64_t sequence_id;
  int64_t position;  // of the last token of its last slice
  int64_t token;
  std::vector<float> values;
};

class Pooler {
 public:
  // Throws Error if the slices of a mean do not start at position 0 or are not consecutive.
  void check(const Batch& batch) const;

  // The vectors of slices that are the last of their sequences; `x` is [tokens][width]. Call check
  // first. Throws NonFiniteError for a vector that is not finite.
  std::vector<PooledVector> pool(const Batch& batch, const float* x, int64_t width);

  // Ignores an unknown sequence.
  void close(int64_t sequence_id) { sums_.erase(sequence_id); }

 private:
  struct Sum {
    std::vector<float> values;
    int64_t num_rows = 0;
  };

  std::vector<float> vector_of(const PooledSlice& slice, const float* rows, int64_t width);

  std::unordered_map<int64_t, Sum> sums_;  // of means that are incomplete
};

}  // namespace potluck
