#include "program/kv_cache.h"

#include "kernels/kernels.h"

namespace potluck {

uint64_t KvCache::keys_bytes(const CacheSpec& spec, int64_t num_blocks) {
  return static_cast<uint64_t>(num_blocks * spec.num_kv_heads * spec.head_dim * kBlockTokens) *
         sizeof(uint16_t);
}

uint64_t KvCache::values_bytes(const CacheSpec& spec, int64_t num_blocks) {
  return static_cast<uint64_t>(num_blocks * spec.num_kv_heads * kBlockTokens *
                               padded_head_dim(spec.head_dim)) *
         sizeof(uint16_t);
}

KvCache::KvCache(const CacheSpec& spec, int64_t num_blocks)
    : keys_(keys_bytes(spec, num_blocks), Pages::Huge, "the key cache"),
      values_(values_bytes(spec, num_blocks), Pages::Huge, "the value cache") {}

}  // namespace potluck
