#include "dispatch/isa_trial.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "dispatch/amx_support.h"
#include "dispatch/table.h"

namespace potluck {
namespace {

constexpr int64_t kTokens = 17;   // two tiles, of which the second is not full
constexpr int64_t kRows = 24;     // two panels, of which the second is not full
constexpr int64_t kColumns = 256;  // one of the largest blocks
constexpr unsigned kDeadlineSeconds = 10;  // a thousand times the usual duration

// Integer activations in every form, with scales of 1: products of BF16 weights that are small
// integers, and of Q4_0 weights with power-of-two scales, are then exact in any order.
struct Input {
  std::vector<float> x, scales;
  std::vector<int8_t> q;
  std::vector<int32_t> sums;
  std::vector<uint16_t> bf16;
};

size_t size(int64_t count) { return static_cast<size_t>(count); }

// The upper bits of a linear congruential generator (Knuth's constants).
class Draws {
 public:
  int below(int bound) {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<int>((state_ >> 33) % static_cast<uint64_t>(bound));
  }

 private:
  uint64_t state_ = 1;
};

uint16_t bf16_of_integer(int value) {  // |value| < 256: exact
  const float number = static_cast<float>(value);
  uint32_t bits;
  memcpy(&bits, &number, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);
}

Input make_input(Draws& draws) {
  Input input;
  for (int64_t i = 0; i < kTokens * kColumns; ++i) {
    const int value = draws.below(255) - 127;
    input.q.push_back(static_cast<int8_t>(value));
    input.x.push_back(static_cast<float>(value));
    input.bf16.push_back(bf16_of_integer(value));
    if (i % kGroupColumns == 0) {
      input.scales.push_back(1.0f);
      input.sums.push_back(0);
    }
    input.sums.back() += value;
  }
  return input;
}

// The offsets of a block's f16 scales and minimums in the file (ggml-common.h); -1: none.
constexpr int64_t kHalves[kNumFormats][2] = {{-1, -1}, {-1, -1}, {-1, -1}, {0, -1}, {0, -1}, {0, 2},
                                             {0, -1},  {0, 2},   {0, 2},   {0, 2},  {208, -1},
                                             {80, 82}, {108, -1}, {0, -1},  {0, -1},  {-1, -1}};

// Random integers with scales of 1/16 to 2, or small integers as BF16.
std::vector<uint8_t> make_rows(Format format, Draws& draws) {
  const FormatInfo info = format_info(format);
  const int64_t num_blocks = kRows * kColumns / info.block_columns;
  std::vector<uint8_t> rows(size(num_blocks * info.block_bytes));
  for (uint8_t& byte : rows) byte = static_cast<uint8_t>(draws.below(256));
  for (int64_t b = 0; b < num_blocks; ++b) {
    uint8_t* block = rows.data() + b * info.block_bytes;
    if (format == Format::BF16) {
      const uint16_t weight = bf16_of_integer(draws.below(63) - 31);
      memcpy(block, &weight, sizeof weight);
    }
    if (format == Format::MXFP4) block[0] = static_cast<uint8_t>(120 + draws.below(8));
    for (int64_t at : kHalves[static_cast<int>(format)]) {
      const uint16_t half = static_cast<uint16_t>((11 + draws.below(6)) << 10);  // a power of two
      if (at >= 0) memcpy(block + at, &half, sizeof half);
    }
  }
  return rows;
}

struct Case {
  Format format;
  void (*linear)(const LinearArgs&, int64_t, int64_t);
  std::vector<uint8_t> panels;
  std::vector<float> expected, out;
};

LinearArgs arguments(const Case& one, const Input& input, float* out) {
  LinearArgs args{};
  args.weight = {one.format, kRows, kColumns, one.panels.data()};
  args.input = {input.x.data(), input.q.data(), input.scales.data(), input.sums.data(),
                input.bf16.data()};
  args.num_tokens = kTokens;
  args.out = out;
  args.out_stride = kRows;
  return args;
}

Case make_case(Format format, void (*linear)(const LinearArgs&, int64_t, int64_t),
               const Input& input, Draws& draws) {
  Case made{format, linear, {}, {}, {}};
  made.panels.resize(size(num_panels(kRows) * panel_bytes(format, kColumns)));
  pack_rows(format, kColumns, make_rows(format, draws).data(), 0, kRows, made.panels.data());
  made.expected.resize(size(kTokens * kRows));
  made.out.resize(size(kTokens * kRows));
  const LinearArgs args = arguments(made, input, made.expected.data());
  kernels_at(0)->linear[static_cast<int>(format)](args, 0, num_panels(kRows));
  return made;
}

// Shared memory that the child writes and the parent reads: the exit status is lost if SIGCHLD is
// ignored, which this process may have inherited, or if another thread waits for all children.
class SharedInt {
 public:
  SharedInt()
      : place_(mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                    0)) {}
  ~SharedInt() {
    if (is_there()) munmap(place_, sizeof(int));
  }
  SharedInt(const SharedInt&) = delete;
  SharedInt& operator=(const SharedInt&) = delete;

  bool is_there() const { return place_ != MAP_FAILED; }
  volatile int& value() const { return *static_cast<volatile int*>(place_); }

 private:
  void* const place_;
};

// The child's result until it has compared everything; afterwards see first_wrong.
constexpr int kUnfinished = -1;

std::string not_tried() { return std::string("it could not be tried: ") + strerror(errno); }

// Runs in the child: returns 0, or 1 + the number of the first wrong case.
int first_wrong(std::vector<Case>& cases, const Input& input) {
  for (size_t i = 0; i < cases.size(); ++i) {
    Case& one = cases[i];
    one.linear(arguments(one, input, one.out.data()), 0, num_panels(kRows));
    if (memcmp(one.out.data(), one.expected.data(), one.out.size() * sizeof(float)) != 0)
      return static_cast<int>(i) + 1;
  }
  return 0;
}

}  // namespace

std::string isa_problem(const Kernels& kernels) {
  if (!uses_tiles(kernels)) return "";
  if (!request_amx_permission()) return "the Linux kernel denies this process permission to use AMX tiles";
  Draws draws;
  const Input input = make_input(draws);
  std::vector<Case> cases;
  const auto fast = [&](Format format) {
    const auto linear = kernels.linear_fast[static_cast<int>(format)];
    cases.push_back(make_case(format, linear, input, draws));
  };
  fast(Format::BF16);
  for (int f = static_cast<int>(Format::Q8_0); f < kNumFormats; ++f)
    cases.push_back(make_case(static_cast<Format>(f), kernels.linear[f], input, draws));
  fast(Format::Q4_0);  // 4-bit weights times a power of two are exact in bf16

  const SharedInt found;
  if (!found.is_there()) return not_tried();
  found.value() = kUnfinished;
  const pid_t child = fork();
  if (child < 0) return not_tried();
  if (child == 0) {
    prctl(PR_SET_DUMPABLE, 0);  // no core dump for an expected crash
    signal(SIGALRM, SIG_DFL);
    sigset_t deadline;
    sigemptyset(&deadline);
    sigaddset(&deadline, SIGALRM);
    sigprocmask(SIG_UNBLOCK, &deadline, nullptr);  // the calling thread may have blocked it
    alarm(kDeadlineSeconds);
    found.value() = first_wrong(cases, input);
    _exit(0);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR) break;  // it has ended, but its status is unknown
  const int wrong = found.value();
  if (wrong == kUnfinished && WIFSIGNALED(status))
    return std::string("it ended by the signal ") + strsignal(WTERMSIG(status));
  if (wrong == kUnfinished) return "it ended too early";
  if (wrong == 0) return "";
  return std::string("wrong products of ") +
         format_info(cases[static_cast<size_t>(wrong) - 1].format).name + " weights";
}

}  // namespace potluck
