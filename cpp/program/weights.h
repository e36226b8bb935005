// The weights of one stage: matrices in panels, in their file's format, and vectors as float32; in
// memory of their own, or where somebody else keeps them.
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

// Takes tensors row range by row range: begin, write_rows until all rows are there, finish; or as
// a whole where they lie. Not safe for concurrent use.
class WeightStore {
 public:
  explicit WeightStore(const std::vector<WeightSpec>& specs);

  // Makes room. Throws Error for a name or shape that the program does not have, a tensor begun
  // before, and a format that cannot hold it (a vector is F32, F16 or BF16); OutOfMemoryError.
  void begin(const std::string& name, const std::vector<int64_t>& shape, Format format);

  // Stored rows [start_row, start_row + num_bytes / row bytes) in the file's layout. A vector is
  // one row.
  void write_rows(const std::string& name, int64_t start_row, int64_t end_row,
                  const uint8_t* data, uint64_t num_bytes, ThreadPool& pool);

  // Throws Error when rows are missing.
  void finish(const std::string& name);

  // Takes a whole tensor as it would be here, panels or (for a vector, which is F32) numbers:
  // `num_bytes` at `data`, aligned to kWeightAlignment. `owner` keeps them there, as long as this
  // lives. Throws Error as begin does, and for another size or alignment.
  void map(const std::string& name, const std::vector<int64_t>& shape, Format format,
           const uint8_t* data, uint64_t num_bytes, std::shared_ptr<const void> owner);
  static constexpr uint64_t kWeightAlignment = 64;

  // Throws Error, naming the first tensor that is not finished.
  void check_complete() const;

  // By index in the program's list; valid once complete.
  const Matrix& matrix(int index) const { return entries_[index].matrix; }
  const float* vector(int index) const {
    return reinterpret_cast<const float*>(entries_[index].data);
  }

  // Whether its bytes are in a file, and need not be in memory.
  bool is_mapped(int index) const { return entries_[index].owner != nullptr; }
  uint64_t mapped_bytes(int index) const {
    return is_mapped(index) ? entries_[index].num_bytes : 0;
  }
  // Brings some of those bytes, as far as there are any, into memory as if they were read, and
  // waits for it; false where the operating system cannot. Safe while others read them, as are
  // requests to have them read soon, which may not be heeded.
  bool fault_in(int index, uint64_t offset, uint64_t num_bytes) const;
  void ask_for(int index, uint64_t offset, uint64_t num_bytes) const;
  // Whether all of those bytes are in memory, as far as the operating system tells.
  bool is_in_memory(int index, uint64_t offset, uint64_t num_bytes) const;

  // In memory of their own, and where somebody else keeps them.
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
    std::shared_ptr<const void> owner;  // null if not
  };

  // The entry, checked to be absent and of this shape, with its matrix (but for the data) and size.
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
