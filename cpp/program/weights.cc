#include "program/weights.h"

#include <sys/mman.h>
#include <unistd.h>

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

void pack_rows_on(ThreadPool::Session& session, Format format, int64_t columns,
                  const uint8_t* rows, int64_t start_row, int64_t num_rows, uint8_t* panels) {
  if (num_rows == 0) return;
  // Whole panels, so that no two threads write to the same cache line.
  const int64_t stored_row_bytes = row_bytes(format, columns);
  const int64_t end_row = start_row + num_rows;
  const int64_t first_panel = start_row / kPanelRows;
  parallel_ranges(session, num_panels(end_row) - first_panel, 1, kPanelRows * columns,
                  [&](int64_t begin, int64_t end, int) {
                    const int64_t from = std::max(start_row, (first_panel + begin) * kPanelRows);
                    const int64_t to = std::min(end_row, (first_panel + end) * kPanelRows);
                    pack_rows(format, columns, rows + (from - start_row) * stored_row_bytes, from,
                              to - from, panels);
                  });
}

WeightStore::WeightStore(const std::vector<WeightSpec>& specs)
    : specs_(specs), entries_(specs.size()) {
  for (size_t i = 0; i < specs.size(); ++i) index_.emplace(specs[i].name, static_cast<int>(i));
}

WeightStore::Entry& WeightStore::absent(const std::string& name,
                                        const std::vector<int64_t>& shape, Format format) {
  const auto found = index_.find(name);
  if (found == index_.end()) throw Error("the program has no weight '" + name + "'");
  Entry& entry = entries_[found->second];
  if (shape != specs_[found->second].shape) {
    throw Error("weight '" + name + "' does not have the shape that the program expects");
  }
  if (entry.state != State::Absent) throw Error("weight '" + name + "' was begun before");
  const bool is_vector = shape.size() == 1;
  const int64_t columns = shape.back();
  // For a stack, the size of all its matrices.
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
  const FormatInfo info = format_info(format);
  if (is_vector && is_quantized(format)) {
    throw Error("vector '" + name + "' is stored as " + info.name +
                ", but vectors must be stored as floats");
  }
  if (columns % info.block_columns != 0) {
    throw Error("weight '" + name + "' has " + std::to_string(columns) +
                " columns, which are not whole " + info.name + " blocks");
  }
  entry.num_bytes = static_cast<uint64_t>(is_vector
                                              ? columns * static_cast<int64_t>(sizeof(float))
                                              : num_panels(rows) * panel_bytes(format, columns));
  entry.matrix = {format, rows, columns, nullptr};
  return entry;
}

void WeightStore::begin(const std::string& name, const std::vector<int64_t>& shape,
                        Format format) {
  Entry& entry = absent(name, shape, format);
  entry.buffer = Buffer(entry.num_bytes, Pages::Huge, "weight '" + name + "'");
  entry.data = entry.buffer.data();
  if (shape.size() > 1) entry.matrix.data = entry.data;
  entry.state = State::Begun;
}

void WeightStore::map(const std::string& name, const std::vector<int64_t>& shape, Format format,
                      const uint8_t* data, uint64_t num_bytes, std::shared_ptr<const void> owner) {
  Entry& entry = absent(name, shape, format);
  const bool is_vector = shape.size() == 1;
  if (is_vector && format != Format::F32) {
    throw Error("vector '" + name + "' is mapped as " + format_info(format).name +
                ", but must be f32");
  }
  if (num_bytes != entry.num_bytes) {
    throw Error("weight '" + name + "' is mapped with " + std::to_string(num_bytes) +
                " bytes instead of " + std::to_string(entry.num_bytes));
  }
  if (reinterpret_cast<uintptr_t>(data) % kWeightAlignment != 0) {
    throw Error("weight '" + name + "' is mapped at an address that is not aligned");
  }
  entry.owner = std::move(owner);
  entry.data = data;
  if (!is_vector) entry.matrix.data = data;
  entry.state = State::Finished;
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
  // Ascending, without gaps, so that counting rows is enough to detect missing ones.
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
                 reinterpret_cast<float*>(entry.buffer.data()));
  } else {
    ThreadPool::Session session(pool);
    pack_rows_on(session, matrix.format, matrix.columns, data, start_row, end_row - start_row,
                 entry.buffer.data());
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

bool WeightStore::fault_in(int index, uint64_t offset, uint64_t num_bytes) const {
#ifndef MADV_POPULATE_READ
  constexpr int MADV_POPULATE_READ = 22;  // since Linux 5.14
#endif
  const Range pages = pages_of(index, offset, num_bytes);
  return madvise(reinterpret_cast<void*>(pages.start), pages.end - pages.start,
                 MADV_POPULATE_READ) == 0;
}

void WeightStore::ask_for(int index, uint64_t offset, uint64_t num_bytes) const {
  // The kernel limits a request to its read-ahead size, which is 128 KiB by default
  // (mm/readahead.c, force_page_cache_ra).
  constexpr uint64_t kRequestBytes = uint64_t{128} << 10;
  const Range pages = pages_of(index, offset, num_bytes);
  for (uintptr_t at = pages.start; at < pages.end; at += kRequestBytes) {
    madvise(reinterpret_cast<void*>(at), std::min<uint64_t>(kRequestBytes, pages.end - at),
            MADV_WILLNEED);
  }
}

bool WeightStore::is_in_memory(int index, uint64_t offset, uint64_t num_bytes) const {
  static const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const Range pages = pages_of(index, offset, num_bytes);
  std::vector<unsigned char> is_there((pages.end - pages.start + page - 1) / page);
  if (mincore(reinterpret_cast<void*>(pages.start), pages.end - pages.start, is_there.data())) {
    return true;
  }
  return std::all_of(is_there.begin(), is_there.end(), [](unsigned char each) { return each & 1; });
}

WeightStore::Range WeightStore::pages_of(int index, uint64_t offset, uint64_t num_bytes) const {
  static const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const Entry& entry = entries_[index];
  offset = std::min(offset, entry.num_bytes);
  const uintptr_t address = reinterpret_cast<uintptr_t>(entry.data) + offset;
  return {address / page * page, address + std::min(num_bytes, entry.num_bytes - offset)};
}

uint64_t WeightStore::num_bytes() const {
  uint64_t sum = 0;
  for (const Entry& entry : entries_) sum += entry.buffer.num_bytes();
  return sum;
}

uint64_t WeightStore::num_mapped_bytes() const {
  uint64_t sum = 0;
  for (const Entry& entry : entries_) sum += entry.owner != nullptr ? entry.num_bytes : 0;
  return sum;
}

}  // namespace potluck
