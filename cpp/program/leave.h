// How long a thread that has kept the others waiting is excluded from a team.
#pragma once

#include <algorithm>
#include <cstdint>

namespace potluck {

// The record of one worker. If a core has other work as well, a worker may be preempted in the
// middle of a chunk, and everyone waits for it: for about 4 ms while another process runs, or as
// long as the caller spins on the very core that the worker needs. Such a core costs more than it
// contributes. So the worker is excluded, and tried again after a period that doubles with every
// failure: a single interruption costs little, and a core that stays busy eventually costs one wait
// per second. Times are in nanoseconds of one clock.
class Leave {
 public:
  static constexpr int64_t kShortest = 2'000'000;
  static constexpr int64_t kLongest = 1'280'000'000;
  // It is considered to have a free core again if it works for this long, which is several times
  // the time slices of operating systems, and for as long as it was excluded before.
  static constexpr int64_t kProbation = 20'000'000;

  // Records that the worker keeps others waiting at `now`; returns when it may return.
  int64_t begin(int64_t now) {
    const bool is_relapse = length_ > 0 && now < end_ + std::max(length_, kProbation);
    length_ = is_relapse ? std::min(2 * length_, kLongest) : kShortest;
    end_ = now + length_;
    return end_;
  }

 private:
  int64_t length_ = 0;
  int64_t end_ = 0;
};

}  // namespace potluck
