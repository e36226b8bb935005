#include "program/exchange_queue.h"

#include <utility>

namespace potluck {

ExchangeQueue::~ExchangeQueue() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ExchangeQueue::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return is_ending_ || !jobs_.empty(); });
    if (is_ending_) return;
    const Job job = jobs_.front();
    jobs_.pop_front();
    is_running_ = true;
    std::exception_ptr failure;
    lock.unlock();
    try {
      exchange_->exchange(*job.sent, *job.received);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    is_running_ = false;
    ++num_over_;
    if (failure) {
      failure_ = std::move(failure);
      jobs_.clear();
    }
    changed_.notify_all();
  }
}

ExchangeQueue::Step::Step(ExchangeQueue& queue, Exchange& exchange) : queue_(queue) {
  const std::lock_guard<std::mutex> lock(queue_.mutex_);
  queue_.exchange_ = &exchange;
  queue_.num_started_ = queue_.num_over_ = 0;
  queue_.failure_ = nullptr;
  if (!queue_.thread_.joinable()) queue_.thread_ = std::thread([&queue] { queue.run(); });
}

ExchangeQueue::Step::~Step() {
  std::unique_lock<std::mutex> lock(queue_.mutex_);
  queue_.jobs_.clear();
  queue_.changed_.wait(lock, [this] { return !queue_.is_running_; });
  queue_.failure_ = nullptr;
}

int64_t ExchangeQueue::Step::start(const std::vector<SentBytes>& sent,
                                   const std::vector<ReceivedBytes>& received) {
  int64_t number = 0;
  {
    const std::lock_guard<std::mutex> lock(queue_.mutex_);
    if (queue_.failure_) std::rethrow_exception(queue_.failure_);
    queue_.jobs_.push_back({&sent, &received});
    number = ++queue_.num_started_;
  }
  queue_.changed_.notify_all();
  return number;
}

void ExchangeQueue::Step::wait(int64_t number) {
  std::unique_lock<std::mutex> lock(queue_.mutex_);
  queue_.changed_.wait(lock, [&] { return queue_.num_over_ >= number || queue_.failure_; });
  if (queue_.failure_) std::rethrow_exception(queue_.failure_);
}

}  // namespace potluck
