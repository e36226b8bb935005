// Makes one vector of the rows of a sequence, as potluck.types.step.Pooling specifies it.
//
// The bits depend neither on how the sequence was cut into slices nor on what else was in its steps.
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
  // Throws Error for a mean whose slices do not begin at position 0 and follow one another.
  void check(const Batch& batch) const;

  // The vectors of slices that are the last of their sequences; `x` is [tokens][width]. After
  // check. Throws NonFiniteError for a vector that is not finite.
  std::vector<PooledVector> pool(const Batch& batch, const float* x, int64_t width);

  // A sequence that is not known is none of our concern.
  void close(int64_t sequence_id) { sums_.erase(sequence_id); }

 private:
  struct Sum {
    std::vector<float> values;
    int64_t num_rows = 0;
  };

  std::vector<float> vector_of(const PooledSlice& slice, const float* rows, int64_t width);

  std::unordered_map<int64_t, Sum> sums_;  // of means that are not complete
};

}  // namespace potluck
