// A pool of threads for short parallel loops, and nothing else.
//
// Designed for shared machines with unequal cores: any free thread takes the next chunk, a
// preempted worker delays nobody unless it is in the middle of a chunk, and is excluded for a while
// after that has happened (leave.h); waiting threads spin only for microseconds and then sleep, and
// an idle pool costs nothing. Threads are not bound to cores (docs/adr/0020).
#pragma once

#include <cstdint>
#include <memory>

namespace potluck {

// A reference to a callable `void(int64_t chunk, int worker)`. It must not throw: an exception in a
// chunk terminates the process, because no caller could handle it.
class ChunkFunction {
 public:
  template <typename F>
  ChunkFunction(const F& function)  // NOLINT: implicit, as a lambda is passed
      : object_(&function), call_([](const void* object, int64_t chunk, int worker) noexcept {
          (*static_cast<const F*>(object))(chunk, worker);
        }) {}
  void operator()(int64_t chunk, int worker) const { call_(object_, chunk, worker); }

 private:
  const void* object_;
  void (*call_)(const void*, int64_t, int) noexcept;
};

class ThreadPool {
 public:
  // `num_threads` includes the calling thread: 1 creates none. Throws Error.
  explicit ThreadPool(int num_threads);
  // Waits for the threads to end. In a forked child, which has none of them, it leaves the pool's
  // state alone.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

  // How many threads, including the caller's, take part in the loops of sessions that begin from
  // now on; all of them at first. The others sleep, and no loop wakes them. The number is limited to
  // the range from 1 to num_threads(). Any thread may call it, also during a session.
  void set_num_active(int num_active);
  int num_active() const;

  // The right to use the pool. Sessions are granted one at a time, in the order requested, so that
  // stages that share a pool take turns by whole steps. A thread may hold at most one.
  class Session {
   public:
    explicit Session(ThreadPool& pool);
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    // The number of active threads, which is constant during a session.
    int num_threads() const;

    // Calls function(chunk, worker) exactly once for every chunk in [0, num_chunks), and returns
    // when all are done. Worker w of n has the chunks [num_chunks * w / n, num_chunks * (w + 1) /
    // n) and takes them in ascending order; a worker that has finished its own takes the last ones
    // of others. `worker` is in [0, num_threads), and no two concurrent calls have the same. Must
    // not be nested. Throws Error for 2^32 chunks or more.
    void parallel_for(int64_t num_chunks, const ChunkFunction& function);

   private:
    ThreadPool& pool_;
    const bool in_owner_;
  };

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The unit by which parallel loops are divided, in multiply-adds or operations of the same cost.
// Waking a sleeping thread takes about 5 to 50 us on the intended machines, a spinning one under 1
// us: a loop of less than kMinChunkWork (a few us on one core) is not worth sharing, nor is a
// smaller chunk.
constexpr int64_t kMinChunkWork = 32768;
// More chunks than threads even out unequal cores and preempted threads.
constexpr int64_t kChunksPerThread = 4;

// Calls function(begin, end, worker) on ranges that cover [0, count), each a multiple of
// `granularity` items (except the last) and worth at least kMinChunkWork at `work_per_item`.
template <typename F>
void parallel_ranges(ThreadPool::Session& session, int64_t count, int64_t granularity,
                     int64_t work_per_item, const F& function) {
  if (count <= 0) return;
  const int64_t num_units = (count + granularity - 1) / granularity;
  const int64_t worth = count * work_per_item / kMinChunkWork;
  int64_t num_chunks = session.num_threads() == 1 ? 1 : session.num_threads() * kChunksPerThread;
  if (num_chunks > worth) num_chunks = worth;
  if (num_chunks > num_units) num_chunks = num_units;
  if (num_chunks <= 1) return function(int64_t{0}, count, 0);
  session.parallel_for(num_chunks, [&](int64_t chunk, int worker) {
    const int64_t begin = num_units * chunk / num_chunks * granularity;
    const int64_t end = num_units * (chunk + 1) / num_chunks * granularity;
    function(begin, end < count ? end : count, worker);
  });
}

}  // namespace potluck
