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

#include "program/cores.h"
#include "program/error.h"
#include "program/leave.h"

namespace potluck {
namespace {

// Ops of a step follow one another within a few microseconds, so a worker that spins this long is
// awake for the next one, which saves a wake-up of 5 to 50 us; spinning longer than a wake-up costs
// would only take time from other processes.
constexpr std::chrono::microseconds kSpinTime{30};
// Pauses between two reads of the clock (a pause is 40 to 140 cycles on x86).
constexpr int kPausesPerLook = 16;

// How many times as long as the caller's own chunks a worker may take for its last one, as cores
// and chunks are unequal; but at least kSpinTime.
constexpr int kPatienceChunks = 8;

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

// Returns whether `ready` became true while spinning.
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

// The gate of a job: its generation, whether workers may still enter, and how many are inside. A
// worker enters by a compare-and-swap that requires an open job, so that a late worker neither
// modifies the next job's state nor is waited for.
constexpr int kGenerationShift = 24;
constexpr uint64_t kOpen = uint64_t{1} << 23;
constexpr uint64_t kInsideMask = kOpen - 1;

uint64_t generation(uint64_t gate) { return gate >> kGenerationShift; }

// The chunks of one worker's share that nobody has taken yet: its begin in the lower half, its end
// in the upper. Within a job, a share never has the same value twice, because it only shrinks.
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

// The pool's data about each worker, on a separate cache line.
struct alignas(64) WorkerState {
  Share share;
  // The core on which it was when it started to spin for jobs; for the caller, when it started a
  // job.
  std::atomic<int> core{kNoCore};
  // The rest is used only by the worker itself.
  Leave leave;
  bool is_late = false;  // has kept others waiting, and has not yet been excluded for it
};

}  // namespace

struct ThreadPool::State {
  explicit State(int num_threads)
      : workers(static_cast<size_t>(num_threads)), wanted_active(num_threads),
        num_active(num_threads) {}

  const pid_t owner = getpid();
  std::vector<WorkerState> workers;  // the first is the caller's
  std::vector<std::thread> threads;  // the others

  std::atomic<int> wanted_active;  // from the next session on
  // The workers below this number take part. It is written when a session begins, so that it is
  // constant during a job.
  std::atomic<int> num_active;

  // The job. Written by the session's thread while nobody is inside the gate.
  std::atomic<uint64_t> gate{0};
  const ChunkFunction* function = nullptr;
  // Set before the gate is closed: a worker that leaves it later was late. In nanoseconds.
  std::atomic<int64_t> late_after{0};

  // Sleeping. Each flag is set before its owner checks the gate a last time under the mutex, and
  // read after the gate was changed: one of the two sides always sees the other.
  std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable come_back;  // for excluded and inactive workers: no job should wake them
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

  // For the thread whose turn it is.
  void begin_session() {
    const int wanted = wanted_active.load();
    if (wanted == num_active.load()) return;
    {
      std::lock_guard<std::mutex> lock(mutex);
      num_active.store(wanted);
    }
    come_back.notify_all();
  }

  std::optional<int64_t> take(int worker) {
    const int count = num_active.load(std::memory_order_relaxed);
    if (const auto own = workers[worker].share.take_first()) return own;
    for (int i = 1; i < count; ++i) {
      if (const auto other = workers[(worker + i) % count].share.take_last()) return other;
    }
    return std::nullopt;
  }

  // Runs chunks until none are left; returns how many it has run.
  int64_t run_chunks(int worker) {
    int64_t num_run = 0;
    while (const auto chunk = take(worker)) {
      (*function)(*chunk, worker);
      ++num_run;
    }
    return num_run;
  }

  void leave_gate(WorkerState& self) {
    if ((gate.load() & kOpen) == 0) self.is_late = nanoseconds(Clock::now()) > late_after.load();
    const uint64_t before = gate.fetch_sub(1);
    const bool was_last = (before & kOpen) == 0 && (before & kInsideMask) == 1;
    if (was_last && caller_sleeping.load()) {
      { std::lock_guard<std::mutex> lock(mutex); }
      done.notify_one();
    }
  }

  // Sleeps until there is a job and a core for this worker.
  template <typename Changed>
  void sleep(WorkerState& self, const Changed& changed) {
    self.core.store(kNoCore);
    if (self.is_late) sit_out(self);
    wait_for_job(changed);
    while (!stop.load() && !has_core_to_itself(self)) {
      self.core.store(kNoCore);
      sit_out(self);
      wait_for_job(changed);
    }
  }

  void sit_out(WorkerState& self) {
    const int64_t until = self.leave.begin(nanoseconds(Clock::now()));
    self.is_late = false;
    std::unique_lock<std::mutex> lock(mutex);
    come_back.wait_until(lock, Clock::time_point(std::chrono::nanoseconds(until)),
                         [&] { return stop.load(); });
  }

  void wait_until_active(WorkerState& self, int worker) {
    self.core.store(kNoCore);
    std::unique_lock<std::mutex> lock(mutex);
    come_back.wait(lock, [&] { return worker < num_active.load() || stop.load(); });
  }

  template <typename Changed>
  void wait_for_job(const Changed& changed) {
    std::unique_lock<std::mutex> lock(mutex);
    num_sleeping.fetch_add(1);
    wake.wait(lock, changed);
    num_sleeping.fetch_sub(1);
  }

  // Two threads on one core repeatedly block each other, as each spins while the other is waited
  // for. The system may place a waking thread on the core of the thread that woke it, and the
  // thread then moves elsewhere; if there is no other core, the others continue without it.
  bool has_core_to_itself(WorkerState& self) const {
    self.core.store(current_core());
    const std::vector<int> taken = cores_of_others(self);
    if (std::find(taken.begin(), taken.end(), self.core.load()) == taken.end()) return true;
    if (!avoid_cores(taken)) return false;
    self.core.store(current_core());
    return true;
  }

  std::vector<int> cores_of_others(const WorkerState& self) const {
    std::vector<int> cores;
    for (const WorkerState& other : workers) {
      const int core = other.core.load();
      if (&other != &self && core != kNoCore) cores.push_back(core);
    }
    return cores;
  }

  void work(int worker) {
    WorkerState& self = workers[worker];
    uint64_t seen = 0;
    const auto changed = [&] { return generation(gate.load()) != seen || stop.load(); };
    while (true) {
      const bool was_active = worker < num_active.load();
      if (!was_active) wait_until_active(self, worker);
      if (!was_active || self.is_late || !spin_until(changed)) sleep(self, changed);
      if (stop.load()) return;
      uint64_t now = gate.load();
      seen = generation(now);
      // The number of active workers is that of this job if the gate has not changed since.
      while ((now & kOpen) != 0 && generation(now) == seen && worker < num_active.load()) {
        if (gate.compare_exchange_weak(now, now + 1)) {
          run_chunks(worker);
          leave_gate(self);
          break;
        }
      }
    }
  }

  void run(int64_t num_chunks, const ChunkFunction& f) {
    function = &f;
    const int64_t count = num_active.load();
    for (int64_t i = 0; i < count; ++i) {
      workers[i].share.assign(num_chunks * i / count, num_chunks * (i + 1) / count);
    }
    workers[0].core.store(current_core());
    const Clock::time_point start = Clock::now();
    gate.store(((generation(gate.load()) + 1) << kGenerationShift) | kOpen);
    if (num_sleeping.load() > 0) {
      { std::lock_guard<std::mutex> lock(mutex); }
      wake.notify_all();
    }
    const int64_t num_run = run_chunks(0);
    const Clock::time_point end = Clock::now();
    late_after.store(nanoseconds(end + patience(end - start, num_run)));
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

  // How long a worker may stay in a chunk after the caller has finished its last one, when the
  // caller has run `num_run` of them in `run_time`.
  static Clock::duration patience(Clock::duration run_time, int64_t num_run) {
    // A caller that has run none does not know how long they take.
    if (num_run == 0) return std::chrono::seconds(1);
    return std::max<Clock::duration>(kSpinTime, kPatienceChunks * run_time / num_run);
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
  // would hang: leave it until the process exits.
  if (state_ != nullptr && getpid() != state_->owner) static_cast<void>(state_.release());
}

int ThreadPool::num_threads() const { return static_cast<int>(state_->threads.size()) + 1; }

void ThreadPool::set_num_active(int num_active) {
  state_->wanted_active.store(std::clamp(num_active, 1, num_threads()));
}

int ThreadPool::num_active() const { return state_->wanted_active.load(); }

ThreadPool::Session::Session(ThreadPool& pool)
    : pool_(pool), in_owner_(getpid() == pool.state_->owner) {
  // A forked child works alone: it has no workers, and may have inherited a locked mutex.
  if (!in_owner_) return;
  State& state = *pool_.state_;
  std::unique_lock<std::mutex> lock(state.turn_mutex);
  const uint64_t turn = state.next_turn++;
  state.turn_changed.wait(lock, [&] { return state.current_turn == turn; });
  state.begin_session();
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

int ThreadPool::Session::num_threads() const {
  return in_owner_ ? pool_.state_->num_active.load(std::memory_order_relaxed) : 1;
}

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
