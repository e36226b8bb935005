// SHA-256 (FIPS 180-4) with a state that can be saved, so that one machine can hash the beginning
// of a file and another can continue. Python's hashlib does not support that.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace potluck {

class Sha256State {
 public:
  static constexpr size_t kDigestBytes = 32;
  static constexpr size_t kBlockBytes = 64;

  // The state of the empty message.
  Sha256State();

  // Restores the result of `save`. Throws std::invalid_argument if `state` is not one.
  explicit Sha256State(const std::string& saved);

  // Appends to the message.
  void update(const uint8_t* data, size_t num_bytes);

  // The eight words and the length in bytes, big-endian, followed by the last bytes of the message
  // that do not fill a block: 40 to 103 bytes.
  std::string save() const;

  // The hash of the message so far; more data can be appended afterwards.
  std::string digest() const;

  uint64_t num_bytes() const { return num_bytes_; }

 private:
  std::array<uint32_t, 8> words_;
  uint64_t num_bytes_ = 0;
  std::array<uint8_t, kBlockBytes> rest_{};  // num_bytes_ % kBlockBytes of them are used
};

}  // namespace potluck
