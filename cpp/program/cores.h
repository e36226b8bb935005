// The cores that a thread may run on.
#pragma once

#include <sched.h>

#include <vector>

namespace potluck {

constexpr int kNoCore = -1;

// The core that this thread runs on now, which may be another one in the next moment; kNoCore where
// the system does not say.
int current_core();

// Those that a thread might run on when this was made by it.
class AllowedCores {
 public:
  AllowedCores();

  // Moves this thread off `taken` at once, and lets it run on all others. Returns false, and
  // changes nothing, where there is no other.
  bool avoid(const std::vector<int>& taken) const;

 private:
  bool is_known_;
  cpu_set_t cores_;
};

}  // namespace potluck
