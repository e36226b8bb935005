// Divides an op with a state among threads: by slices of the batch, and by independent units of
// columns. In every unit, the tokens of a slice are processed one after another. No result depends
// on any of this.
#pragma once

#include <cstdint>
#include <vector>

#include "program/batch.h"

namespace potluck {

struct StateShape {
  int64_t num_units;
  int64_t granularity;  // parts have a multiple of this many units, except the last
  int64_t unit_work;    // per token, in multiply-adds or work that takes as long
};
bool operator==(const StateShape& a, const StateShape& b);

// Units [first_unit, end_unit) of a slice.
struct StatePart {
  int64_t slice;
  int64_t first_unit;
  int64_t end_unit;
  int64_t work;
};

struct StateDivision {
  std::vector<StatePart> parts;  // the most expensive first
  // Parts [chunks[i], chunks[i + 1]) are assigned together.
  std::vector<int64_t> chunks;

  int64_t num_chunks() const { return static_cast<int64_t>(chunks.size()) - 1; }
};

StateDivision divide_states(const std::vector<BatchSlice>& slices, const StateShape& shape,
                            int num_threads);

}  // namespace potluck
