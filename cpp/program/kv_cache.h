// Keys and values of one attention op: a fixed number of blocks of 16 positions, in f16.
#pragma once

#include <cstdint>

#include "program/memory.h"
#include "program/program.h"

namespace potluck {

// Who owns which block is the scheduler's business; here a block is a place. The layout is that of
// AttentionArgs in kernels.h.
class KvCache {
 public:
  // Throws OutOfMemoryError.
  KvCache(const CacheSpec& spec, int64_t num_blocks);

  uint16_t* keys() const { return reinterpret_cast<uint16_t*>(keys_.data()); }
  uint16_t* values() const { return reinterpret_cast<uint16_t*>(values_.data()); }

  static uint64_t keys_bytes(const CacheSpec& spec, int64_t num_blocks);
  static uint64_t values_bytes(const CacheSpec& spec, int64_t num_blocks);

 private:
  Buffer keys_;
  Buffer values_;
};

}  // namespace potluck
