#include "measure/memory_reader.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>

namespace potluck {
namespace {

// What one thread reads at a time: about 0.1 ms, so that unequal or disturbed cores even out.
constexpr uint64_t kChunkBytes = uint64_t{4} << 20;
// Streams that a thread reads concurrently, as a product reads several panels' scales and weights:
// a single one is limited by what a core's prefetcher keeps in flight.
constexpr uint64_t kStreams = 4;
constexpr uint64_t kStreamBytes = kChunkBytes / kStreams;
constexpr uint64_t kLineBytes = 64;
// How far ahead a line is prefetched; a few KiB cover the latency of memory.
constexpr uint64_t kAheadBytes = 2048;

uint64_t whole_chunks(uint64_t num_bytes) {
  return (num_bytes + kChunkBytes - 1) / kChunkBytes * kChunkBytes;
}

// A vector size for which every 64-bit CPU has registers.
using Vector = uint8_t __attribute__((vector_size(16)));
constexpr uint64_t kLineVectors = kLineBytes / sizeof(Vector);

// A number that depends on every byte, so that all must be read. All streams add to the sums of one
// line: these must stay in registers, or the core would be measured instead of the memory.
uint64_t read_chunk(const uint8_t* chunk) {
  Vector sums[kLineVectors] = {};
  for (uint64_t offset = 0; offset < kStreamBytes; offset += kLineBytes) {
#pragma GCC unroll 4
    for (uint64_t stream = 0; stream < kStreams; ++stream) {
      const uint8_t* line = chunk + stream * kStreamBytes + offset;
      __builtin_prefetch(line + kAheadBytes);
#pragma GCC unroll 4
      for (uint64_t i = 0; i < kLineVectors; ++i) {
        Vector part;
        std::memcpy(&part, line + i * sizeof part, sizeof part);
        sums[i] ^= part;
      }
    }
  }
  uint64_t all = 0;
  for (const Vector& sum : sums) {
    uint64_t halves[2];
    std::memcpy(halves, &sum, sizeof halves);
    all ^= halves[0] ^ halves[1];
  }
  return all;
}

}  // namespace

MemoryReader::MemoryReader(uint64_t num_bytes, std::shared_ptr<ThreadPool> pool)
    : pool_(std::move(pool)),
      memory_(whole_chunks(num_bytes), Pages::Huge, "the memory that is read for its rate") {
  ThreadPool::Session session(*pool_);
  session.parallel_for(static_cast<int64_t>(memory_.num_bytes() / kChunkBytes),
                       [&](int64_t chunk, int) {
                         // Any value except zero: untouched pages would all be the same zero page.
                         std::memset(memory_.data() + static_cast<uint64_t>(chunk) * kChunkBytes,
                                     0x5a, kChunkBytes);
                       });
}

double MemoryReader::read() {
  ThreadPool::Session session(*pool_);
  std::atomic<uint64_t> all{0};
  const auto start = std::chrono::steady_clock::now();
  session.parallel_for(static_cast<int64_t>(memory_.num_bytes() / kChunkBytes),
                       [&](int64_t chunk, int) {
                         all.fetch_xor(read_chunk(memory_.data() +
                                                  static_cast<uint64_t>(chunk) * kChunkBytes),
                                       std::memory_order_relaxed);
                       });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return seconds.count();
}

}  // namespace potluck
