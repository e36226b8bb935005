// The weights of one stage: matrices in panels, in their file's format, and vectors as float32; in
// memory of their own, or in memory owned by someone else.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/kernels.h"
#include "program/memory.h"
#include "program/program.h"
#include "program/thread_pool.h"

namespace potluck {

// The kernels' pack_rows, divided among the threads.
void pack_rows_on(ThreadPool::Session& session, Format format, int64_t columns,
                  const uint8_t* rows, int64_t start_row, int64_t num_rows, uint8_t* panels);

// Receives tensors by ranges of rows: begin, write_rows until all rows are there, finish; or as a
// whole, used in place. Not thread-safe.
class WeightStore {
 public:
  explicit WeightStore(const std::vector<WeightSpec>& specs);

  // Allocates memory. Throws Error for a name or shape that the program does not have, a tensor
  // that was begun before, and an unsupported format (a vector is F32, F16 or BF16);
  // OutOfMemoryError.
  void begin(const std::string& name, const std::vector<int64_t>& shape, Format format);

  // Stored rows [start_row, start_row + num_bytes / row bytes) in the file's layout. A vector is
  // one row.
  void write_rows(const std::string& name, int64_t start_row, int64_t end_row,
                  const uint8_t* data, uint64_t num_bytes, ThreadPool& pool);

  // Throws Error if rows are missing.
  void finish(const std::string& name);

  // Uses a whole tensor in the layout of this class in place, panels or (for a vector, which is
  // F32) numbers: `num_bytes` at `data`, aligned to kWeightAlignment. `owner` keeps them alive as
  // long as this exists. Throws Error like begin, and for another size or alignment.
  void map(const std::string& name, const std::vector<int64_t>& shape, Format format,
           const uint8_t* data, uint64_t num_bytes, std::shared_ptr<const void> owner);
  static constexpr uint64_t kWeightAlignment = 64;

  // Throws Error, naming the first tensor that is not finished.
  void check_complete() const;

  // By index in the program's list; valid once all are complete.
  const Matrix& matrix(int index) const { return entries_[index].matrix; }
  const float* vector(int index) const {
    return reinterpret_cast<const float*>(entries_[index].data);
  }

  // Whether its bytes are in a file, and need not be in memory.
  bool is_mapped(int index) const { return entries_[index].owner != nullptr; }
  uint64_t mapped_bytes(int index) const {
    return is_mapped(index) ? entries_[index].num_bytes : 0;
  }
  // Reads those of the bytes that exist into memory, and waits for that; returns false if the
  // operating system does not support it. Safe while others read them, like requests for
  // asynchronous reads, which may be ignored.
  bool fault_in(int index, uint64_t offset, uint64_t num_bytes) const;
  void ask_for(int index, uint64_t offset, uint64_t num_bytes) const;
  // Whether all of those bytes are in memory, as far as the operating system reports.
  bool is_in_memory(int index, uint64_t offset, uint64_t num_bytes) const;

  // The size of own memory, and of memory owned by others.
  uint64_t num_bytes() const;
  uint64_t num_mapped_bytes() const;

 private:
  enum class State { Absent, Begun, Finished };
  struct Entry {
    State state = State::Absent;
    Matrix matrix{};  // for a vector: one row, and no data
    int64_t rows_written = 0;
    Buffer buffer;  // empty if mapped
    const uint8_t* data = nullptr;
    uint64_t num_bytes = 0;
    std::shared_ptr<const void> owner;  // null if not mapped
  };

  // The entry, checked to be absent and of this shape, with its matrix (except the data) and size.
  Entry& absent(const std::string& name, const std::vector<int64_t>& shape, Format format);
  Entry& begun(const std::string& name);

  struct Range {
    uintptr_t start;  // of a page
    uintptr_t end;
  };
  Range pages_of(int index, uint64_t offset, uint64_t num_bytes) const;

  const std::vector<WeightSpec>& specs_;
  std::unordered_map<std::string, int> index_;
  std::vector<Entry> entries_;
};

}  // namespace potluck
