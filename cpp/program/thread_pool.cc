#include "program/thread_pool.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "program/error.h"

namespace potluck {
namespace {

// Ops of a step follow one another within a few microseconds, so a worker that waits this long
// meets the next one awake, which saves a wake-up of 5 to 50 us; spinning longer than a wake-up
// costs would only take time from other processes.
constexpr std::chrono::microseconds kSpinTime{30};
// Pauses between two looks at the clock (a pause is 40 to 140 cycles on x86).
constexpr int kPausesPerLook = 16;

constexpr int kMaxThreads = 1024;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

// Whether `ready` came true while spinning.
template <typename Ready>
bool spin_until(const Ready& ready) {
  const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (ready()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return ready();
}

// The gate of a job: its generation, whether workers may still enter, and how many are inside.
// A worker enters by a compare-and-swap that sees the job open, so that one that comes late
// neither touches the next job's state by mistake nor is waited for.
constexpr int kGenerationShift = 24;
constexpr uint64_t kOpen = uint64_t{1} << 23;
constexpr uint64_t kInsideMask = kOpen - 1;

uint64_t generation(uint64_t gate) { return gate >> kGenerationShift; }

}  // namespace

struct ThreadPool::State {
  const pid_t owner = getpid();
  std::vector<std::thread> threads;

  // The job. Written by the session's thread while nobody is inside the gate.
  std::atomic<uint64_t> gate{0};
  std::atomic<int64_t> next_chunk{0};
  int64_t num_chunks = 0;
  const ChunkFunction* function = nullptr;

  // Sleeping. Each flag is set before its owner looks at the gate a last time under the mutex, and
  // read after the gate was changed: one of the two sides always sees the other.
  std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable done;
  std::atomic<int> num_sleeping{0};
  std::atomic<bool> caller_sleeping{false};
  std::atomic<bool> stop{false};

  // Turns of sessions.
  std::mutex turn_mutex;
  std::condition_variable turn_changed;
  uint64_t next_turn = 0;
  uint64_t current_turn = 0;

  ~State() {
    stop.store(true);
    { std::lock_guard<std::mutex> lock(mutex); }
    wake.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  void run_chunks(int worker) {
    for (;;) {
      const int64_t chunk = next_chunk.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= num_chunks) return;
      (*function)(chunk, worker);
    }
  }

  void leave() {
    const uint64_t before = gate.fetch_sub(1);
    const bool was_last = (before & kOpen) == 0 && (before & kInsideMask) == 1;
    if (was_last && caller_sleeping.load()) {
      { std::lock_guard<std::mutex> lock(mutex); }
      done.notify_one();
    }
  }

  void work(int worker) {
    uint64_t seen = 0;
    const auto changed = [&] { return generation(gate.load()) != seen || stop.load(); };
    while (true) {
      if (!spin_until(changed)) {
        std::unique_lock<std::mutex> lock(mutex);
        num_sleeping.fetch_add(1);
        wake.wait(lock, changed);
        num_sleeping.fetch_sub(1);
      }
      if (stop.load()) return;
      uint64_t now = gate.load();
      seen = generation(now);
      while ((now & kOpen) != 0 && generation(now) == seen) {
        if (gate.compare_exchange_weak(now, now + 1)) {
          run_chunks(worker);
          leave();
          break;
        }
      }
    }
  }

  void run(int64_t chunks, const ChunkFunction& f) {
    function = &f;
    num_chunks = chunks;
    next_chunk.store(0, std::memory_order_relaxed);
    gate.store(((generation(gate.load()) + 1) << kGenerationShift) | kOpen);
    if (num_sleeping.load() > 0) {
      { std::lock_guard<std::mutex> lock(mutex); }
      wake.notify_all();
    }
    run_chunks(0);
    gate.fetch_and(~kOpen);
    const auto empty = [&] { return (gate.load() & kInsideMask) == 0; };
    if (spin_until(empty)) return;
    caller_sleeping.store(true);
    {
      std::unique_lock<std::mutex> lock(mutex);
      done.wait(lock, empty);
    }
    caller_sleeping.store(false);
  }
};

ThreadPool::ThreadPool(int num_threads) : state_(std::make_unique<State>()) {
  if (num_threads < 1 || num_threads > kMaxThreads) {
    throw Error("a thread pool has 1 to " + std::to_string(kMaxThreads) + " threads, not " +
                std::to_string(num_threads));
  }
  State& state = *state_;
  try {
    state.threads.reserve(static_cast<size_t>(num_threads) - 1);
    for (int worker = 1; worker < num_threads; ++worker) {
      state.threads.emplace_back([&state, worker] { state.work(worker); });
    }
  } catch (const std::system_error& error) {
    throw Error("cannot start " + std::to_string(num_threads) + " threads: " + error.what());
  }
}

ThreadPool::~ThreadPool() {
  // In a forked child the threads do not exist, and joining them or destroying what they wait on
  // would hang: leave it to the end of the process.
  if (state_ != nullptr && getpid() != state_->owner) static_cast<void>(state_.release());
}

int ThreadPool::num_threads() const { return static_cast<int>(state_->threads.size()) + 1; }

ThreadPool::Session::Session(ThreadPool& pool)
    : pool_(pool), in_owner_(getpid() == pool.state_->owner) {
  // A forked child works alone: it has no workers, and may have inherited a lock that is held.
  if (!in_owner_) return;
  State& state = *pool_.state_;
  std::unique_lock<std::mutex> lock(state.turn_mutex);
  const uint64_t turn = state.next_turn++;
  state.turn_changed.wait(lock, [&] { return state.current_turn == turn; });
}

ThreadPool::Session::~Session() {
  if (!in_owner_) return;
  State& state = *pool_.state_;
  {
    std::lock_guard<std::mutex> lock(state.turn_mutex);
    ++state.current_turn;
  }
  state.turn_changed.notify_all();
}

int ThreadPool::Session::num_threads() const { return in_owner_ ? pool_.num_threads() : 1; }

void ThreadPool::Session::parallel_for(int64_t num_chunks, const ChunkFunction& function) {
  if (num_threads() == 1 || num_chunks <= 1) {
    for (int64_t chunk = 0; chunk < num_chunks; ++chunk) function(chunk, 0);
    return;
  }
  pool_.state_->run(num_chunks, function);
}

}  // namespace potluck
