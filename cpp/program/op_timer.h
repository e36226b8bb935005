// Measures how long the parts of a step take.
#pragma once

#include <chrono>
#include <cstddef>
#include <vector>

namespace potluck {

// Ops [first_op, end_op) of a program, which run together, and the seconds that they took. If the
// range is empty, the preparation of registers for the op at `end_op`.
struct TimedOps {
  size_t first_op;
  size_t end_op;
  double seconds;
};

// Disabled, and then free, until it is enabled; reading the clock takes about 25 ns. Not
// thread-safe.
class OpTimer {
 public:
  // Adds a part and returns its index.
  size_t add_part(size_t first_op, size_t end_op) {
    parts_.push_back({first_op, end_op, 0.0});
    return parts_.size() - 1;
  }

  void turn_on() { is_on_ = true; }

  void start() {
    if (is_on_) last_ = Clock::now();
  }
  // Adds the time since the last reading to part `index`.
  void add_to(size_t index) {
    if (!is_on_) return;
    const Clock::time_point now = Clock::now();
    parts_[index].seconds += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

  // In the order in which they were added; times since the timer was enabled.
  const std::vector<TimedOps>& parts() const { return parts_; }

 private:
  using Clock = std::chrono::steady_clock;

  bool is_on_ = false;
  Clock::time_point last_;
  std::vector<TimedOps> parts_;
};

}  // namespace potluck
