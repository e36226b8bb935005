// The data that the ops of a program keep of whole sequences: a fixed number of slots, each for the
// states of all ops of one sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "program/memory.h"
#include "program/program.h"
#include "program/thread_pool.h"

namespace potluck {

// The layout of the states of a program within a slot. The state of an op has the layout that the
// op's kernel expects (ConvArgs, DeltaArgs, ScanArgs in kernels.h), and starts at a cache line.
struct StateLayout {
  explicit StateLayout(const Program& program);

  std::vector<uint64_t> offsets;  // size of each state in bytes
  uint64_t slot_bytes = 0;
};

// The scheduler decides who owns which slot; here a slot is just a place.
class StateCache {
 public:
  // Throws OutOfMemoryError.
  StateCache(const Program& program, int64_t num_slots);

  static uint64_t num_bytes(const Program& program, int64_t num_slots);

  float* state(int64_t slot, int64_t state_index) const {
    return reinterpret_cast<float*>(at(slot) +
                                    layout_.offsets[static_cast<size_t>(state_index)]);
  }

  // Copies the slot `source` to `target`; both exist, and differ.
  void copy_slot(int64_t source, int64_t target, ThreadPool::Session& session);

  // The contents of a slot, as bytes.
  uint64_t slot_bytes() const { return layout_.slot_bytes; }
  void read_slot(int64_t slot, uint8_t* out) const;
  void write_slot(int64_t slot, const uint8_t* data);

 private:
  uint8_t* at(int64_t slot) const {
    return slots_.data() + static_cast<uint64_t>(slot) * layout_.slot_bytes;
  }

  const StateLayout layout_;
  Buffer slots_;
};

}  // namespace potluck
