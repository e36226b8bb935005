// Checks of the thread pool, a program of its own so that it can also be built with sanitizers.
// Usage: thread_pool_check CHECK; exits with 1 and a line on stderr when the check fails.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "program/error.h"
#include "program/thread_pool.h"

namespace {

using potluck::ThreadPool;

void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

// Plain ints: a chunk that ran twice at once would also be a data race.
void run_and_count(ThreadPool& pool, int64_t num_chunks) {
  std::vector<int> counts(static_cast<size_t>(num_chunks), 0);
  std::vector<std::atomic<int>> in_use(static_cast<size_t>(pool.num_threads()));
  std::atomic<bool> valid{true};
  ThreadPool::Session session(pool);
  session.parallel_for(num_chunks, [&](int64_t chunk, int worker) {
    if (worker < 0 || worker >= pool.num_threads() || in_use[worker].fetch_add(1) != 0) {
      valid = false;
    }
    ++counts[chunk];
    in_use[worker].fetch_sub(1);
  });
  expect(valid, "a worker number belongs to one running chunk");
  for (const int count : counts) expect(count == 1, "every chunk runs exactly once");
}

void exactly_once() {
  for (int threads = 1; threads <= 8; ++threads) {
    ThreadPool pool(threads);
    expect(pool.num_threads() == threads, "the pool has the threads asked for");
    for (int64_t num_chunks : {0, 1, 2, 3, 7, 64, 1000}) run_and_count(pool, num_chunks);
  }
}

// Loops shorter than a wake-up, with pauses around the spinning time, where lost wake-ups and
// workers that come late would show.
void short_loops() {
  ThreadPool pool(4);
  for (int i = 0; i < 3000; ++i) {
    run_and_count(pool, 1 + i % 9);
    if (i % 10 == 0) std::this_thread::sleep_for(std::chrono::microseconds(i % 60));
  }
}

void concurrent_callers() {
  ThreadPool pool(3);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 5; ++caller) {
    callers.emplace_back([&pool] {
      for (int i = 0; i < 200; ++i) run_and_count(pool, 1 + i % 5);
    });
  }
  for (std::thread& caller : callers) caller.join();
}

void ranges_cover() {
  ThreadPool pool(3);
  ThreadPool::Session session(pool);
  for (int64_t count : {1, 15, 16, 17, 1000, 4099}) {
    for (int64_t granularity : {1, 16}) {
      std::vector<int> seen(static_cast<size_t>(count), 0);
      std::atomic<bool> valid{true};
      potluck::parallel_ranges(session, count, granularity, potluck::kMinChunkWork,
                               [&](int64_t begin, int64_t end, int) {
                                 if (begin % granularity != 0) valid = false;
                                 for (int64_t i = begin; i < end; ++i) ++seen[i];
                               });
      expect(valid, "ranges begin at multiples of the granularity");
      for (const int times : seen) expect(times == 1, "ranges cover every item once");
    }
  }
}

// Work that is too small runs on the caller.
void small_work_is_inline() {
  ThreadPool pool(4);
  ThreadPool::Session session(pool);
  const auto caller = std::this_thread::get_id();
  int calls = 0;
  potluck::parallel_ranges(session, 100, 1, 10, [&](int64_t begin, int64_t end, int worker) {
    ++calls;
    expect(begin == 0 && end == 100 && worker == 0, "small work is one range");
    expect(std::this_thread::get_id() == caller, "small work runs on the caller");
  });
  expect(calls == 1, "small work runs once");
}

// The workers must really help: two chunks that wait for each other need two threads.
void runs_in_parallel() {
  ThreadPool pool(2);
  for (int i = 0; i < 50; ++i) {
    std::atomic<int> arrived{0};
    ThreadPool::Session session(pool);
    session.parallel_for(2, [&](int64_t, int) {
      ++arrived;
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (arrived < 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
      if (arrived < 2) std::abort();
    });
  }
}

double process_cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void idle_costs_nothing() {
  ThreadPool pool(8);
  run_and_count(pool, 100);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const double before = process_cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  expect(process_cpu_seconds() - before < 0.005, "an idle pool uses under 1 % of one core");
}

// A forked child has no workers, and must neither hang nor crash: it computes alone.
void fork_is_safe() {
  auto pool = std::make_unique<ThreadPool>(4);
  run_and_count(*pool, 50);
  ThreadPool::Session session(*pool);  // held while forking: the child must not wait for it
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    run_and_count(*pool, 50);
    pool.reset();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a forked child works and ends");
}

void refuses_nonsense() {
  for (const int threads : {-1, 0, 100000}) {
    bool refused = false;
    try {
      ThreadPool pool(threads);
    } catch (const potluck::Error&) {
      refused = true;
    }
    expect(refused, "a nonsensical number of threads is refused");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string check = argc > 1 ? argv[1] : "";
  if (check == "exactly_once") exactly_once();
  else if (check == "short_loops") short_loops();
  else if (check == "concurrent_callers") concurrent_callers();
  else if (check == "ranges_cover") ranges_cover();
  else if (check == "small_work_is_inline") small_work_is_inline();
  else if (check == "runs_in_parallel") runs_in_parallel();
  else if (check == "idle_costs_nothing") idle_costs_nothing();
  else if (check == "fork_is_safe") fork_is_safe();
  else if (check == "refuses_nonsense") refuses_nonsense();
  else expect(false, "a check of that name exists");
  return 0;
}
