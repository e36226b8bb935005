#include "program/thread_pool.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "program/error.h"
#include "program/leave.h"

namespace potluck {
namespace {

// Ops of a step follow one another within a few microseconds, so a worker that waits this long
// meets the next one awake, which saves a wake-up of 5 to 50 us; spinning longer than a wake-up
// costs would only take time from other processes.
constexpr std::chrono::microseconds kSpinTime{30};
// Pauses between two looks at the clock (a pause is 40 to 140 cycles on x86).
constexpr int kPausesPerLook = 16;

// How long a worker may stay in a chunk when no other is left: several times what chunks of this
// loop take, as cores and chunks may be unequal, and longer than interrupts take.
constexpr int kPatienceChunks = 8;
constexpr std::chrono::microseconds kLeastPatience{250};

constexpr int kMaxThreads = 1024;

using Clock = std::chrono::steady_clock;

int64_t nanoseconds(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

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
  const auto deadline = Clock::now() + kSpinTime;
  do {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (ready()) return true;
      pause();
    }
  } while (Clock::now() < deadline);
  return ready();
}

// The gate of a job: its generation, whether workers may still enter, and how many are inside.
// A worker enters by a compare-and-swap that sees the job open, so that one that comes late
// neither touches the next job's state by mistake nor is waited for.
constexpr int kGenerationShift = 24;
constexpr uint64_t kOpen = uint64_t{1} << 23;
constexpr uint64_t kInsideMask = kOpen - 1;

uint64_t generation(uint64_t gate) { return gate >> kGenerationShift; }

// Chunks that nobody has taken yet, of one worker's share: its begin in the lower half, its end in
// the upper. Within a job a share never has the same value twice, as it only shrinks.
class Share {
 public:
  void assign(int64_t begin, int64_t end) { bounds_.store(pack(begin, end)); }

  std::optional<int64_t> take_first() {
    uint64_t now = bounds_.load(std::memory_order_relaxed);
    while (begin(now) < end(now)) {
      if (bounds_.compare_exchange_weak(now, pack(begin(now) + 1, end(now)))) return begin(now);
    }
    return std::nullopt;
  }

  std::optional<int64_t> take_last() {
    uint64_t now = bounds_.load(std::memory_order_relaxed);
    while (begin(now) < end(now)) {
      if (bounds_.compare_exchange_weak(now, pack(begin(now), end(now) - 1))) return end(now) - 1;
    }
    return std::nullopt;
  }

 private:
  static uint64_t pack(int64_t begin, int64_t end) {
    return static_cast<uint64_t>(end) << 32 | static_cast<uint64_t>(begin);
  }
  static int64_t begin(uint64_t bounds) { return static_cast<int64_t>(bounds & UINT32_MAX); }
  static int64_t end(uint64_t bounds) { return static_cast<int64_t>(bounds >> 32); }

  std::atomic<uint64_t> bounds_{0};
};

// What a pool keeps of each worker, on a cache line of its own.
struct alignas(64) WorkerState {
  Share share;
  std::atomic<bool> is_inside{false};  // of the gate; for the caller to see who is late
  // When a worker that is left out may come back, in nanoseconds; 0 for one that is not.
  std::atomic<int64_t> left_out_until{0};
  Leave leave;  // of the caller alone
};

}  // namespace

struct ThreadPool::State {
  explicit State(int num_threads) : workers(static_cast<size_t>(num_threads)) {}

  const pid_t owner = getpid();
  std::vector<WorkerState> workers;  // the first is the caller's
  std::vector<std::thread> threads;  // the others

  // The job. Written by the session's thread while nobody is inside the gate.
  std::atomic<uint64_t> gate{0};
  const ChunkFunction* function = nullptr;

  // Sleeping. Each flag is set before its owner looks at the gate a last time under the mutex, and
  // read after the gate was changed: one of the two sides always sees the other.
  std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable come_back;  // for those that are left out, whom no job is to wake
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
    come_back.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  std::optional<int64_t> take(int worker) {
    const auto count = static_cast<int>(workers.size());
    if (const auto own = workers[worker].share.take_first()) return own;
    for (int i = 1; i < count; ++i) {
      if (const auto other = workers[(worker + i) % count].share.take_last()) return other;
    }
    return std::nullopt;
  }

  // How many there were.
  int64_t run_chunks(int worker) {
    int64_t num_run = 0;
    while (const auto chunk = take(worker)) {
      (*function)(*chunk, worker);
      ++num_run;
    }
    return num_run;
  }

  void leave_gate() {
    const uint64_t before = gate.fetch_sub(1);
    const bool was_last = (before & kOpen) == 0 && (before & kInsideMask) == 1;
    if (was_last && caller_sleeping.load()) {
      { std::lock_guard<std::mutex> lock(mutex); }
      done.notify_one();
    }
  }

  // Sleeps for as long as the worker is left out.
  void sit_out(WorkerState& self) {
    const int64_t until = self.left_out_until.load();
    if (until == 0) return;
    std::unique_lock<std::mutex> lock(mutex);
    come_back.wait_until(lock, Clock::time_point(std::chrono::nanoseconds(until)),
                         [&] { return stop.load(); });
    self.left_out_until.store(0);
  }

  void work(int worker) {
    WorkerState& self = workers[worker];
    uint64_t seen = 0;
    const auto changed = [&] { return generation(gate.load()) != seen || stop.load(); };
    while (true) {
      sit_out(self);
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
          self.is_inside.store(true);
          run_chunks(worker);
          self.is_inside.store(false);
          leave_gate();
          break;
        }
      }
    }
  }

  void run(int64_t num_chunks, const ChunkFunction& f) {
    function = &f;
    const auto count = static_cast<int64_t>(workers.size());
    for (int64_t i = 0; i < count; ++i) {
      workers[i].share.assign(num_chunks * i / count, num_chunks * (i + 1) / count);
    }
    const Clock::time_point start = Clock::now();
    gate.store(((generation(gate.load()) + 1) << kGenerationShift) | kOpen);
    if (num_sleeping.load() > 0) {
      { std::lock_guard<std::mutex> lock(mutex); }
      wake.notify_all();
    }
    const int64_t num_run = run_chunks(0);
    gate.fetch_and(~kOpen);
    const Clock::duration run_time = Clock::now() - start;
    const auto empty = [&] { return (gate.load() & kInsideMask) == 0; };
    if (spin_until(empty)) return;
    caller_sleeping.store(true);
    {
      std::unique_lock<std::mutex> lock(mutex);
      // A caller that has run no chunk does not know how long one takes.
      if (num_run > 0) {
        const Clock::duration patience =
            std::max<Clock::duration>(kLeastPatience, kPatienceChunks * run_time / num_run);
        if (!done.wait_for(lock, patience, empty)) leave_out_who_is_inside();
      }
      done.wait(lock, empty);
    }
    caller_sleeping.store(false);
  }

  void leave_out_who_is_inside() {
    const int64_t now = nanoseconds(Clock::now());
    for (WorkerState& worker : workers) {
      if (worker.is_inside.load()) worker.left_out_until.store(worker.leave.begin(now));
    }
  }
};

ThreadPool::ThreadPool(int num_threads) {
  if (num_threads < 1 || num_threads > kMaxThreads) {
    throw Error("a thread pool has 1 to " + std::to_string(kMaxThreads) + " threads, not " +
                std::to_string(num_threads));
  }
  state_ = std::make_unique<State>(num_threads);
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
  if (num_chunks > UINT32_MAX) {
    throw Error("a loop of " + std::to_string(num_chunks) + " chunks is too long");
  }
  pool_.state_->run(num_chunks, function);
}

}  // namespace potluck
