// Reads memory as fast as the threads of a pool can: what decoding could reach at best.
#pragma once

#include <cstdint>
#include <memory>

#include "program/memory.h"
#include "program/thread_pool.h"

namespace potluck {

class MemoryReader {
 public:
  // Touches `num_bytes` in large pages, rounded up to whole chunks, on all threads of `pool`. For
  // the rate of memory they must be several times the last cache. Throws OutOfMemoryError.
  MemoryReader(uint64_t num_bytes, std::shared_ptr<ThreadPool> pool);

  uint64_t num_bytes() const { return memory_.num_bytes(); }

  // Reads all of it once, and returns the seconds that took.
  double read();

 private:
  std::shared_ptr<ThreadPool> pool_;
  Buffer memory_;
};

}  // namespace potluck
