// Keys and values of one attention op: a fixed number of blocks of 16 positions, in f16. Values
// that are columns of the keys take no memory.
#pragma once

#include <cstdint>

#include "program/memory.h"
#include "program/program.h"

namespace potluck {

// The scheduler decides who owns which block; here a block is just a place. The layout is that of
// AttentionArgs in kernels.h.
class KvCache {
 public:
  // Throws OutOfMemoryError.
  KvCache(const CacheSpec& spec, int64_t num_blocks);

  uint16_t* keys() const { return reinterpret_cast<uint16_t*>(keys_.data()); }
  // Null if values are columns of the keys.
  uint16_t* values() const { return reinterpret_cast<uint16_t*>(values_.data()); }

  // Copies the block `source` to `target`; both exist.
  void copy_block(int64_t source, int64_t target);

  // The contents of a block, as bytes: its keys, then its values.
  uint64_t block_bytes() const { return key_block_bytes_ + value_block_bytes_; }
  void read_block(int64_t block, uint8_t* out) const;
  void write_block(int64_t block, const uint8_t* data);

  static uint64_t keys_bytes(const CacheSpec& spec, int64_t num_blocks);
  static uint64_t values_bytes(const CacheSpec& spec, int64_t num_blocks);

 private:
  uint64_t key_block_bytes_;
  uint64_t value_block_bytes_;
  Buffer keys_;
  Buffer values_;
};

}  // namespace potluck
