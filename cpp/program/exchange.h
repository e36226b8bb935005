// The connection to the other members of a group, as in potluck.types.engine.
#pragma once

#include <cstdint>
#include <vector>

namespace potluck {

// Data to send to a member, and where to put data received from it; either may be empty.
struct SentBytes {
  const uint8_t* data = nullptr;
  uint64_t num_bytes = 0;
};
struct ReceivedBytes {
  uint8_t* data = nullptr;
  uint64_t num_bytes = 0;
};

class Exchange {
 public:
  virtual ~Exchange() = default;

  // Both have an entry for every member, of which the caller's own is empty. Returns when
  // everything has been received and `sent` may be overwritten. May throw any exception on failure.
  virtual void exchange(const std::vector<SentBytes>& sent,
                        const std::vector<ReceivedBytes>& received) = 0;
};

}  // namespace potluck
