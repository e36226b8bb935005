// Runs exchanges in a separate thread, while other threads compute what does not depend on them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "program/exchange.h"

namespace potluck {

// Runs exchanges in the order in which they were started: as all members of a group start them in
// the same order, each exchange matches those of the others. For one caller at a time. The thread
// is created on the first exchange.
class ExchangeQueue {
 public:
  ExchangeQueue() = default;
  ~ExchangeQueue();
  ExchangeQueue(const ExchangeQueue&) = delete;
  ExchangeQueue& operator=(const ExchangeQueue&) = delete;

  // The exchanges of one step. After its destruction none of them is running: those that have not
  // begun are dropped.
  class Step final : public Exchange {
   public:
    Step(ExchangeQueue& queue, Exchange& exchange);
    ~Step() override;
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

    // Starts an exchange and returns its number. The vectors must exist until it is complete.
    int64_t start(const std::vector<SentBytes>& sent, const std::vector<ReceivedBytes>& received);
    // Waits for it. Rethrows an exception of it or of an earlier one; no later exchange is then
    // begun.
    void wait(int64_t number);

    // Starts one and waits for it.
    void exchange(const std::vector<SentBytes>& sent,
                  const std::vector<ReceivedBytes>& received) override {
      wait(start(sent, received));
    }

   private:
    ExchangeQueue& queue_;
  };

 private:
  struct Job {
    const std::vector<SentBytes>* sent;
    const std::vector<ReceivedBytes>* received;
  };

  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  Exchange* exchange_ = nullptr;  // of the current step
  int64_t num_started_ = 0;       // in the current step
  int64_t num_over_ = 0;          // likewise
  bool is_running_ = false;
  bool is_ending_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace potluck
