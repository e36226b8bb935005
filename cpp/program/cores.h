// The cores on which a thread is allowed to run.
#pragma once

#include <sched.h>

#include <vector>

namespace potluck {

constexpr int kNoCore = -1;

// The core on which this thread currently runs, which can change at any time; kNoCore if the system
// does not report it.
int current_core();

// Records the cores on which the constructing thread is allowed to run.
class AllowedCores {
 public:
  AllowedCores();

  // Moves this thread off `taken` immediately, and allows it to run on all others. Returns false,
  // and changes nothing, if there is no other.
  bool avoid(const std::vector<int>& taken) const;

 private:
  bool is_known_;
  cpu_set_t cores_;
};

}  // namespace potluck
