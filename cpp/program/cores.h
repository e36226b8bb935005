// The cores on which the threads of this process are allowed to run.
#pragma once

#include <vector>

namespace potluck {

constexpr int kNoCore = -1;

// The core on which this thread currently runs, which can change at any time; kNoCore if the system
// does not report it.
int current_core();

// Moves this thread off `taken` immediately, and allows it to run on all other cores that the
// process may use now. Returns false, and changes nothing, if there is no other.
bool avoid_cores(const std::vector<int>& taken);

}  // namespace potluck
