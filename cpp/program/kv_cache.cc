#include "program/kv_cache.h"

#include <cstring>

#include "kernels/kernels.h"

namespace potluck {

uint64_t KvCache::keys_bytes(const CacheSpec& spec, int64_t num_blocks) {
  return static_cast<uint64_t>(num_blocks * spec.num_kv_heads * spec.head_dim * kBlockTokens) *
         sizeof(uint16_t);
}

uint64_t KvCache::values_bytes(const CacheSpec& spec, int64_t num_blocks) {
  return static_cast<uint64_t>(num_blocks * spec.num_kv_heads * kBlockTokens *
                               padded_value_dim(spec.value_dim)) *
         sizeof(uint16_t);
}

KvCache::KvCache(const CacheSpec& spec, int64_t num_blocks)
    : key_block_bytes_(keys_bytes(spec, 1)),
      value_block_bytes_(values_bytes(spec, 1)),
      keys_(keys_bytes(spec, num_blocks), Pages::Huge, "the key cache"),
      values_(values_bytes(spec, num_blocks), Pages::Huge, "the value cache") {}

// Without values there is no destination address either.
void KvCache::copy_block(int64_t source, int64_t target) {
  std::memmove(keys_.data() + target * key_block_bytes_, keys_.data() + source * key_block_bytes_,
               key_block_bytes_);
  if (value_block_bytes_ == 0) return;
  std::memmove(values_.data() + target * value_block_bytes_,
               values_.data() + source * value_block_bytes_, value_block_bytes_);
}

void KvCache::read_block(int64_t block, uint8_t* out) const {
  std::memcpy(out, keys_.data() + block * key_block_bytes_, key_block_bytes_);
  if (value_block_bytes_ == 0) return;
  std::memcpy(out + key_block_bytes_, values_.data() + block * value_block_bytes_,
              value_block_bytes_);
}

void KvCache::write_block(int64_t block, const uint8_t* data) {
  std::memcpy(keys_.data() + block * key_block_bytes_, data, key_block_bytes_);
  if (value_block_bytes_ == 0) return;
  std::memcpy(values_.data() + block * value_block_bytes_, data + key_block_bytes_,
              value_block_bytes_);
}

}  // namespace potluck
