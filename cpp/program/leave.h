// How long a thread that has kept the others waiting is left out of a team.
#pragma once

#include <algorithm>
#include <cstdint>

namespace potluck {

// One worker's record. A worker that the system takes off its core in the middle of a chunk keeps
// everybody waiting for as long as another process may run, some 3 or 4 ms, so that a core which it
// has for half of the time costs more than it brings. Such a worker is left out for a while and
// then tried again; every time that goes wrong it is left out for twice as long, so that a core
// which stays busy costs one such wait a second in the end. Times are nanoseconds of one clock.
class Leave {
 public:
  // A single interruption, as any system has some, must not cost much.
  static constexpr int64_t kShortest = 20'000'000;
  static constexpr int64_t kLongest = 1'280'000'000;

  // The worker keeps others waiting at `now`: when it may come back.
  int64_t begin(int64_t now) {
    // One that has worked well for as long as it was left out before has a free core again.
    const bool is_relapse = length_ > 0 && now < end_ + length_;
    length_ = is_relapse ? std::min(2 * length_, kLongest) : kShortest;
    end_ = now + length_;
    return end_;
  }

 private:
  int64_t length_ = 0;
  int64_t end_ = 0;
};

}  // namespace potluck
