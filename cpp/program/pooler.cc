#include "program/pooler.h"

#include <cmath>
#include <string>

#include "program/error.h"

namespace potluck {

void Pooler::check(const Batch& batch) const {
  for (const PooledSlice& slice : batch.pooled()) {
    if (slice.pooling != Pooling::Mean || slice.rows.position == 0) continue;
    const auto known = sums_.find(slice.sequence_id);
    const int64_t expected = known == sums_.end() ? 0 : known->second.num_rows;
    if (slice.rows.position != expected) {
      throw Error("sequence " + std::to_string(slice.sequence_id) + ": its mean has the tokens before " +
                  std::to_string(expected) + ", and the slice begins at " +
                  std::to_string(slice.rows.position));
    }
  }
}

std::vector<float> Pooler::vector_of(const PooledSlice& slice, const float* rows, int64_t width) {
  const int64_t num_rows = slice.rows.num_tokens;
  if (slice.pooling != Pooling::Mean) {
    const float* row = rows + (slice.pooling == Pooling::Last ? num_rows - 1 : 0) * width;
    return {row, row + width};
  }
  Sum& sum = sums_[slice.sequence_id];
  if (slice.rows.position == 0) sum = {std::vector<float>(static_cast<size_t>(width)), 0};
  float* values = sum.values.data();
  for (int64_t t = 0; t < num_rows; ++t) {
    const float* row = rows + t * width;
    for (int64_t i = 0; i < width; ++i) values[i] += row[i];
  }
  sum.num_rows += num_rows;
  if (!slice.is_last) return {};
  const auto count = static_cast<float>(sum.num_rows);
  for (int64_t i = 0; i < width; ++i) values[i] /= count;
  std::vector<float> mean = std::move(sum.values);
  sums_.erase(slice.sequence_id);
  return mean;
}

std::vector<PooledVector> Pooler::pool(const Batch& batch, const float* x, int64_t width) {
  std::vector<PooledVector> vectors;
  for (const PooledSlice& slice : batch.pooled()) {
    if (!slice.is_last && slice.pooling != Pooling::Mean) continue;
    std::vector<float> values =
        vector_of(slice, x + slice.rows.first_row * width, width);
    if (!slice.is_last) continue;
    for (const float value : values) {
      if (!std::isfinite(value)) {
        throw NonFiniteError("sequence " + std::to_string(slice.sequence_id) +
                             ": its hidden states are not finite");
      }
    }
    const int64_t last = slice.rows.num_tokens - 1;
    const BatchRow& token = batch.rows()[static_cast<size_t>(slice.rows.first_row + last)];
    vectors.push_back({slice.sequence_id, token.position, token.token, std::move(values)});
  }
  return vectors;
}

}  // namespace potluck
