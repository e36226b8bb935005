// How long the ops of a program take, for whoever asks.
#pragma once

#include <chrono>
#include <cstddef>
#include <vector>

namespace potluck {

// Off, and then free, until it is turned on; a reading of the clock costs some 25 ns. Not
// thread-safe.
class OpTimer {
 public:
  explicit OpTimer(size_t num_ops) : seconds_(num_ops, 0.0) {}

  void turn(bool on) { is_on_ = on; }

  void start() {
    if (is_on_) last_ = Clock::now();
  }
  // Adds the time since the last reading to op `index`.
  void add_to(size_t index) {
    if (!is_on_) return;
    const Clock::time_point now = Clock::now();
    seconds_[index] += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

  // Since the timer was made, by op.
  const std::vector<double>& seconds() const { return seconds_; }

 private:
  using Clock = std::chrono::steady_clock;

  bool is_on_ = false;
  Clock::time_point last_;
  std::vector<double> seconds_;
};

}  // namespace potluck
