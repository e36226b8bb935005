// Reads memory as fast as the threads of a pool can: the upper bound for decoding.
#pragma once

#include <cstdint>
#include <memory>

#include "program/memory.h"
#include "program/thread_pool.h"

namespace potluck {

class MemoryReader {
 public:
  // Touches `num_bytes` in large pages, rounded up to whole chunks, on all threads of `pool`. To
  // measure the memory's rate, this must be several times the last-level cache. Throws
  // OutOfMemoryError.
  MemoryReader(uint64_t num_bytes, std::shared_ptr<ThreadPool> pool);

  uint64_t num_bytes() const { return memory_.num_bytes(); }

  // Reads all of it once, and returns the elapsed seconds.
  double read();

 private:
  std::shared_ptr<ThreadPool> pool_;
  Buffer memory_;
};

}  // namespace potluck
