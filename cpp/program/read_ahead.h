// Reads mapped weights from their file before they are needed.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "program/program.h"
#include "program/weights.h"

namespace potluck {

// While one layer computes, a separate thread reads the next: otherwise every page that is not in
// memory would stop all threads until the disk has read it. Embeddings are excluded, as few of
// their rows are used, and so are experts: MoeRunner requests the selected ones. In a step after
// one that read nothing, everything is in memory, and the thread sleeps.
class ReadAhead {
 public:
  // The references must outlive it; weights are accessed when a step begins.
  ReadAhead(const Program& program, const WeightStore& weights);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  void begin_step();
  // Whether something had to be read in the previous step.
  bool is_active() const { return is_active_; }
  // Call before op `op_index` of the program is run; indices are ascending within a step.
  void before_op(size_t op_index) {
    if (is_active_ && layer_of_op_[op_index] != layer_.load(std::memory_order_relaxed)) {
      compute(layer_of_op_[op_index]);
    }
  }

 private:
  void compute(int64_t layer);
  void read();
  void read_layer(int64_t layer);
  void read_slice(int index, uint64_t offset);

  const WeightStore& weights_;
  std::vector<int64_t> layer_of_op_;
  std::vector<std::vector<int>> layers_;  // the weights of each layer
  int64_t num_reads_ = -1;                // of this process, when the last step began
  bool is_active_ = false;

  std::thread reader_;  // created in the first step with mapped weights
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<int64_t> layer_{0};  // being computed; written with the mutex held
  int64_t next_ = 0;               // to be read, at most one after `layer_`
  bool is_ending_ = false;
  bool asks_ = false;  // used only by the reader
};

}  // namespace potluck
