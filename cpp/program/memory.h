// Large zeroed memory that is freed with its owner.
#pragma once

#include <cstdint>
#include <string>

namespace potluck {

// Whether to request 2 MB pages, which save page walks: weights are read completely in every step,
// a block here and there of the key-value cache, and scratch memory in every prompt (1 to 6 % of
// its time with 256 tokens of a 0.6B model).
enum class Pages { Normal, Huge };

// Zeroed bytes, aligned to at least 64 bytes, and with huge pages to 2 MB from that size on. The
// operating system provides (and zeroes) a page when it is first touched.
class Buffer {
 public:
  Buffer() = default;
  // `what_for` names the contents in the error. Throws OutOfMemoryError.
  Buffer(uint64_t num_bytes, Pages pages, const std::string& what_for);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  uint8_t* data() const { return data_; }
  uint64_t num_bytes() const { return num_bytes_; }

 private:
  uint8_t* data_ = nullptr;
  uint64_t num_bytes_ = 0;
};

}  // namespace potluck
