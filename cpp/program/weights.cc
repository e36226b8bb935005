#include "program/weights.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "program/error.h"

namespace potluck {
namespace {

int64_t row_bytes(Format format, int64_t columns) {
  const FormatInfo info = format_info(format);
  return columns / info.block_columns * info.block_bytes;
}

float from_f16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1F;
  const uint32_t fraction = bits & 0x3FF;
  if (exponent == 0) {
    // Zero and subnormals: fraction * 2^-24, exactly.
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  const uint32_t result = sign | (wide << 23) | (fraction << 13);
  float value;
  std::memcpy(&value, &result, sizeof value);
  return value;
}

float from_bf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

void widen_vector(Format format, int64_t count, const uint8_t* data, float* out) {
  if (format == Format::F32) {
    std::memcpy(out, data, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, data + 2 * i, sizeof bits);
    out[i] = format == Format::F16 ? from_f16(bits) : from_bf16(bits);
  }
}

}  // namespace

WeightStore::WeightStore(const std::vector<WeightSpec>& specs)
    : specs_(specs), entries_(specs.size()) {
  for (size_t i = 0; i < specs.size(); ++i) index_.emplace(specs[i].name, static_cast<int>(i));
}

void WeightStore::begin(const std::string& name, const std::vector<int64_t>& shape,
                        Format format) {
  const auto found = index_.find(name);
  if (found == index_.end()) throw Error("the program has no weight '" + name + "'");
  Entry& entry = entries_[found->second];
  if (shape != specs_[found->second].shape) {
    throw Error("weight '" + name + "' does not have the shape that the program expects");
  }
  if (entry.state != State::Absent) throw Error("weight '" + name + "' was begun before");
  const bool is_vector = shape.size() == 1;
  const int64_t rows = is_vector ? 1 : shape[0];
  const int64_t columns = shape.back();
  const FormatInfo info = format_info(format);
  if (is_vector && is_quantized(format)) {
    throw Error("vector '" + name + "' is stored as " + info.name +
                ", and vectors are taken as floats only");
  }
  if (columns % info.block_columns != 0) {
    throw Error("weight '" + name + "' has " + std::to_string(columns) +
                " columns, which are not whole " + info.name + " blocks");
  }
  const int64_t num_bytes = is_vector
                                ? columns * static_cast<int64_t>(sizeof(float))
                                : num_panels(rows) * panel_bytes(format, columns);
  Buffer data(static_cast<uint64_t>(num_bytes), Pages::Huge, "weight '" + name + "'");
  entry.data = std::move(data);
  entry.matrix = {format, rows, columns, is_vector ? nullptr : entry.data.data()};
  entry.state = State::Begun;
}

WeightStore::Entry& WeightStore::begun(const std::string& name) {
  const auto found = index_.find(name);
  if (found == index_.end() || entries_[found->second].state != State::Begun) {
    throw Error("weight '" + name + "' is not being written");
  }
  return entries_[found->second];
}

void WeightStore::write_rows(const std::string& name, int64_t start_row, int64_t end_row,
                             const uint8_t* data, uint64_t num_bytes, ThreadPool& pool) {
  Entry& entry = begun(name);
  const Matrix& matrix = entry.matrix;
  // Ascending, without gaps: so that counting rows shows that all are there.
  if (start_row != entry.rows_written || end_row < start_row || end_row > matrix.rows) {
    throw Error("rows [" + std::to_string(start_row) + ", " + std::to_string(end_row) +
                ") of weight '" + name + "' do not follow the " +
                std::to_string(entry.rows_written) + " written of " + std::to_string(matrix.rows));
  }
  const int64_t stored_row_bytes = row_bytes(matrix.format, matrix.columns);
  if (num_bytes != static_cast<uint64_t>((end_row - start_row) * stored_row_bytes)) {
    throw Error("rows of weight '" + name + "' come with " + std::to_string(num_bytes) +
                " bytes instead of " + std::to_string((end_row - start_row) * stored_row_bytes));
  }
  if (end_row == start_row) return;
  if (matrix.data == nullptr) {
    widen_vector(matrix.format, matrix.columns, data,
                 reinterpret_cast<float*>(entry.data.data()));
  } else {
    ThreadPool::Session session(pool);
    // Whole panels, so that no two threads write to the same cache line.
    const int64_t first_panel = start_row / kPanelRows;
    const int64_t end_panel = num_panels(end_row);
    parallel_ranges(
        session, end_panel - first_panel, 1, kPanelRows * matrix.columns,
        [&](int64_t begin, int64_t end, int) {
          const int64_t from = std::max(start_row, (first_panel + begin) * kPanelRows);
          const int64_t to = std::min(end_row, (first_panel + end) * kPanelRows);
          pack_rows(matrix.format, matrix.columns, data + (from - start_row) * stored_row_bytes,
                    from, to - from, entry.data.data());
        });
  }
  entry.rows_written = end_row;
}

void WeightStore::finish(const std::string& name) {
  Entry& entry = begun(name);
  if (entry.rows_written != entry.matrix.rows) {
    throw Error("weight '" + name + "' has " + std::to_string(entry.rows_written) + " rows of " +
                std::to_string(entry.matrix.rows));
  }
  entry.state = State::Finished;
}

void WeightStore::check_complete() const {
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].state != State::Finished) {
      throw Error("weight '" + specs_[i].name + "' was not loaded");
    }
  }
}

uint64_t WeightStore::num_bytes() const {
  uint64_t sum = 0;
  for (const Entry& entry : entries_) sum += entry.data.num_bytes();
  return sum;
}

}  // namespace potluck
