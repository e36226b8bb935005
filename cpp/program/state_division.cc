#include "program/state_division.h"

#include <algorithm>

#include "program/thread_pool.h"

namespace potluck {

bool operator==(const StateShape& a, const StateShape& b) {
  return a.num_units == b.num_units && a.granularity == b.granularity &&
         a.unit_work == b.unit_work;
}

StateDivision divide_states(const std::vector<BatchSlice>& slices, const StateShape& shape,
                            int num_threads) {
  StateDivision division;
  int64_t num_tokens = 0;
  for (const BatchSlice& slice : slices) num_tokens += slice.num_tokens;
  const int64_t step = shape.granularity * shape.unit_work;
  const int64_t num_steps = (shape.num_units + shape.granularity - 1) / shape.granularity;
  const int64_t fair_work =
      std::max(kMinChunkWork, num_tokens * num_steps * step / (num_threads * kChunksPerThread));
  for (size_t i = 0; i < slices.size(); ++i) {
    const int64_t step_work = slices[i].num_tokens * step;
    const int64_t steps = std::clamp<int64_t>(fair_work / step_work, 1, num_steps);
    const int64_t units = num_threads == 1 ? shape.num_units : steps * shape.granularity;
    for (int64_t first = 0; first < shape.num_units; first += units) {
      const int64_t end = std::min(first + units, shape.num_units);
      division.parts.push_back({static_cast<int64_t>(i), first, end,
                                (end - first) * slices[i].num_tokens * shape.unit_work});
    }
  }
  std::stable_sort(division.parts.begin(), division.parts.end(),
                   [](const StatePart& a, const StatePart& b) { return a.work > b.work; });
  int64_t work = kMinChunkWork;
  for (size_t i = 0; i < division.parts.size(); ++i) {
    if (work >= kMinChunkWork) {
      division.chunks.push_back(static_cast<int64_t>(i));
      work = 0;
    }
    work += division.parts[i].work;
  }
  division.chunks.push_back(static_cast<int64_t>(division.parts.size()));
  return division;
}

}  // namespace potluck
