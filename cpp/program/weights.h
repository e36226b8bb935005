// The weights of one stage: matrices in panels, in their file's format, and vectors as float32.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/kernels.h"
#include "program/memory.h"
#include "program/program.h"
#include "program/thread_pool.h"

namespace potluck {

// Takes tensors row range by row range: begin, write_rows until all rows are there, finish. Not
// safe for concurrent use.
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

  // Throws Error, naming the first tensor that is not finished.
  void check_complete() const;

  // By index in the program's list; valid once complete.
  const Matrix& matrix(int index) const { return entries_[index].matrix; }
  const float* vector(int index) const {
    return reinterpret_cast<const float*>(entries_[index].data.data());
  }

  uint64_t num_bytes() const;

 private:
  enum class State { Absent, Begun, Finished };
  struct Entry {
    State state = State::Absent;
    Matrix matrix{};  // for a vector: one row, and no data
    int64_t rows_written = 0;
    Buffer data;
  };

  Entry& begun(const std::string& name);

  const std::vector<WeightSpec>& specs_;
  std::unordered_map<std::string, int> index_;
  std::vector<Entry> entries_;
};

}  // namespace potluck
