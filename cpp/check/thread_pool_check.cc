// Checks of the thread pool, a program of its own so that it can also be built with sanitizers.
// Usage: thread_pool_check CHECK; exits with 1 and a line on stderr when the check fails.
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
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
#include "program/leave.h"
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
    if (worker < 0 || worker >= session.num_threads() || in_use[worker].fetch_add(1) != 0) {
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

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kLongTime{20'000};

template <typename Condition>
bool comes_true(const Condition& condition, std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  while (!condition()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

// Worker 1 is held in its first chunk: the caller does its own share from the front, then what is
// left of the other from the back.
void shares_and_theft() {
  constexpr int64_t kChunks = 20;
  ThreadPool pool(2);
  ThreadPool::Session session(pool);
  std::vector<int64_t> by_caller;
  std::atomic<int64_t> by_worker{-1};
  std::atomic<int64_t> num_done{0};
  session.parallel_for(kChunks, [&](int64_t chunk, int worker) {
    if (worker == 1) {
      expect(by_worker.exchange(chunk) == -1, "a worker that is held takes nothing more");
      expect(comes_true([&] { return num_done == kChunks - 1; }, kLongTime),
             "the others do what a worker does not get to");
    } else {
      expect(comes_true([&] { return by_worker >= 0; }, kLongTime), "the worker comes");
      by_caller.push_back(chunk);
      ++num_done;
    }
  });
  expect(by_worker == kChunks / 2, "a worker begins with the first chunk of its share");
  std::vector<int64_t> wanted;
  for (int64_t chunk = 0; chunk < kChunks / 2; ++chunk) wanted.push_back(chunk);
  for (int64_t chunk = kChunks - 1; chunk > kChunks / 2; --chunk) wanted.push_back(chunk);
  expect(by_caller == wanted, "own chunks are taken in order, then the last ones of others");
}

// A job in which worker 1, if it takes part, is held for much longer than the caller's chunks take.
// Whether it took part.
bool run_with_late_worker(ThreadPool::Session& session, std::chrono::milliseconds late) {
  std::atomic<bool> took_part{false};
  session.parallel_for(16, [&](int64_t, int worker) {
    if (worker == 1 && !took_part.exchange(true)) {
      std::this_thread::sleep_for(late);
    } else {
      // Long enough for a worker that wakes up to meet the next job.
      const auto end = Clock::now() + std::chrono::microseconds(10);
      while (Clock::now() < end) continue;
    }
  });
  return took_part;
}

// The workers that take part in a loop, whose chunks wait a moment for the others.
std::vector<int> taking_part(ThreadPool& pool) {
  std::vector<std::atomic<int>> chunks(static_cast<size_t>(pool.num_threads()));
  ThreadPool::Session session(pool);
  session.parallel_for(64, [&](int64_t, int worker) {
    expect(worker < session.num_threads(), "only active workers take part");
    ++chunks[static_cast<size_t>(worker)];
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  });
  std::vector<int> workers;
  for (int worker = 0; worker < pool.num_threads(); ++worker) {
    if (chunks[static_cast<size_t>(worker)] > 0) workers.push_back(worker);
  }
  return workers;
}

// As many take part as are set active, from the next session on, and those that come back do.
void active_threads_take_part() {
  ThreadPool pool(4);
  for (int round = 0; round < 20; ++round) {
    for (int num_active = 1; num_active <= 4; ++num_active) {
      pool.set_num_active(num_active);
      ThreadPool::Session session(pool);
      expect(session.num_threads() == num_active, "a session has the active threads");
      pool.set_num_active(4);
      expect(session.num_threads() == num_active, "the number is constant during a session");
    }
  }
  pool.set_num_active(1);
  run_and_count(pool, 100);
  expect(taking_part(pool) == std::vector<int>{0}, "the caller alone takes part");
  pool.set_num_active(4);
  expect(comes_true([&] { return taking_part(pool).size() > 1; }, kLongTime),
         "threads that were inactive come back");
  for (int i = 0; i < 3000; ++i) {
    pool.set_num_active(1 + i % 4);
    run_and_count(pool, 1 + i % 9);
    if (i % 10 == 0) std::this_thread::sleep_for(std::chrono::microseconds(i % 60));
  }
  for (const int nonsense : {-5, 0, 100}) {
    pool.set_num_active(nonsense);
    expect(pool.num_active() == (nonsense < 1 ? 1 : 4), "the number of active threads has limits");
  }
}

// The number may be changed by any thread, while others compute.
void active_changes_during_loops() {
  ThreadPool pool(4);
  std::atomic<bool> done{false};
  std::thread changer([&] {
    for (int i = 0; !done; ++i) {
      pool.set_num_active(1 + i % 4);
      std::this_thread::sleep_for(std::chrono::microseconds(i % 30));
    }
  });
  for (int i = 0; i < 3000; ++i) run_and_count(pool, 1 + i % 9);
  done = true;
  changer.join();
}

// A worker that is late whenever it takes part takes part less and less, and again when it is not.
void late_worker_sits_out() {
  ThreadPool pool(2);
  ThreadPool::Session session(pool);
  const auto start = Clock::now();
  int times_late = 0;
  while (Clock::now() - start < std::chrono::milliseconds(600)) {
    if (run_with_late_worker(session, std::chrono::milliseconds(3))) ++times_late;
  }
  // By doubling some 10 times in 600 ms, and those after which it did well by chance; else 100.
  expect(times_late >= 2 && times_late <= 40, "a late worker is left out longer and longer");
  expect(comes_true([&] { return run_with_late_worker(session, std::chrono::milliseconds(0)); },
                    kLongTime),
         "a worker that was left out comes back");
}

// More threads than cores: the caller does not share its core with them for long.
void one_core_is_not_shared() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<size_t>(sched_getcpu()), &cores);
  expect(sched_setaffinity(0, sizeof cores, &cores) == 0, "a process can be bound to a core");
  ThreadPool pool(4);
  ThreadPool::Session session(pool);
  std::atomic<int64_t> by_caller{0};
  constexpr int64_t kJobs = 2000;
  for (int64_t i = 0; i < kJobs; ++i) {
    session.parallel_for(8, [&](int64_t, int worker) { by_caller += worker == 0 ? 1 : 0; });
  }
  expect(by_caller > 8 * kJobs * 9 / 10, "a caller on the only core does nearly all itself");
}

// The length of a leave: doubled by relapses, up to a second or so, and short again after a time
// without.
void leaves_double() {
  using potluck::Leave;
  Leave leave;
  int64_t now = 1'000'000'000'000;
  int64_t length = Leave::kShortest;
  for (int i = 0; i < 20; ++i) {
    expect(leave.begin(now) == now + length, "a relapse doubles the leave");
    now += length + std::max(length, Leave::kProbation) - 1;  // just not long enough
    length = std::min(2 * length, Leave::kLongest);
  }
  expect(length == Leave::kLongest, "leaves have a limit");
  now = leave.begin(now) + Leave::kLongest;
  expect(leave.begin(now) == now + Leave::kShortest, "who has worked well begins anew");
  now += Leave::kShortest + Leave::kProbation;
  expect(leave.begin(now) == now + Leave::kShortest, "single interruptions cost little each");
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
  else if (check == "shares_and_theft") shares_and_theft();
  else if (check == "active_threads_take_part") active_threads_take_part();
  else if (check == "active_changes_during_loops") active_changes_during_loops();
  else if (check == "late_worker_sits_out") late_worker_sits_out();
  else if (check == "one_core_is_not_shared") one_core_is_not_shared();
  else if (check == "leaves_double") leaves_double();
  else if (check == "idle_costs_nothing") idle_costs_nothing();
  else if (check == "fork_is_safe") fork_is_safe();
  else if (check == "refuses_nonsense") refuses_nonsense();
  else expect(false, "a check of that name exists");
  return 0;
}
