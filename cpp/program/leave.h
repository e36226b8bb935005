// How long a thread that has kept the others waiting is left out of a team.
#pragma once

#include <algorithm>
#include <cstdint>

namespace potluck {

// One worker's record. Where a core has other work as well, a worker may be stopped in the middle
// of a chunk, and everybody waits for it: for some 4 ms while another process runs, or for as long
// as the caller spins on the very core that the worker needs. Such a core costs more than it
// brings. So the worker is left out, and tried again after a while which doubles every time that it
// goes wrong: a single interruption costs little, and a core that stays busy one wait a second in
// the end. Times are nanoseconds of one clock.
class Leave {
 public:
  static constexpr int64_t kShortest = 2'000'000;
  static constexpr int64_t kLongest = 1'280'000'000;
  // It has a free core again if it works for this long, which is several times what systems let a
  // process run at once, and for as long as it was left out before.
  static constexpr int64_t kProbation = 20'000'000;

  // The worker keeps others waiting at `now`: when it may come back.
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
