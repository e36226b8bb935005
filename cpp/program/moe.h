// Runs mixtures of experts (op::Moe): chooses experts, and computes those that were chosen.
//
// Every token's row is copied once for each expert that it goes to, rows of one expert lying
// together, so that an expert's weights are read once for all its tokens and those of an expert
// that no token chose never. What an element of the output is does not depend on the other tokens,
// nor on how the work is divided.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "kernels/kernels.h"
#include "program/op.h"
#include "program/products.h"
#include "program/program.h"
#include "program/thread_pool.h"
#include "program/weights.h"

namespace potluck {

// Matrices of mapped experts that steps have used, and those of them that were in memory.
struct ExpertUse {
  int64_t num_used = 0;
  int64_t num_in_memory = 0;
};

class MoeRunner {
 public:
  // What `run` needs for any Moe op of the program with up to `max_tokens` tokens: a multiple of
  // 64, 0 without such an op.
  static uint64_t scratch_bytes(const Program& program, int64_t max_tokens);

  // The references and `scratch_bytes` bytes at `scratch`, aligned to 64, must outlive it.
  // Quantized experts are exact in either `arithmetic`.
  MoeRunner(const Program& program, const Kernels& kernels, const WeightStore& weights,
            Arithmetic arithmetic, int64_t max_tokens, uint8_t* scratch);

  // Whether `run` takes its input as integers too.
  bool wants_integers(const op::Moe<int>& o) const;

  // Chooses the experts of one token by its logits [o.num_experts], for `run`. Tokens may be taken
  // by different threads at once.
  void choose(const op::Moe<int>& o, const float* logits, int64_t token);

  // Computes what `choose` has chosen for tokens [0, num_tokens). Of `input`, x is read and, where
  // they are wanted, the integers. `out` is [num_tokens][rows of `down`], and may be input.x.
  // If they `may_be_absent`, mapped experts that are not in memory are asked for before any is
  // computed.
  void run(const op::Moe<int>& o, const Activations& input, int64_t num_tokens, float* out,
           bool may_be_absent, ThreadPool::Session& session);

  // Since this was made. Any thread may ask.
  ExpertUse expert_use() const { return {num_used_.load(), num_in_memory_.load()}; }

 private:
  struct Layout;
  struct Scratch {
    // By token and place among its chosen experts, which are ascending.
    int32_t* experts;  // the first is kNoExpert if none was chosen
    float* shares;
    int32_t* rows;  // where its copy lies
    // By token and expert.
    float* scores;
    float* preferences;  // what experts are chosen by
    // By token and group of experts; by token and place among the groups used.
    float* group_sums;
    int32_t* groups;
    // By row: a token's copy for one expert.
    int32_t* tokens;
    float* x;  // inputs, and then what the experts make of them
    float* gate;
    float* up;  // and then the inner activations
    int8_t* q;  // of inputs, and then of the experts' inner activations
    float* q_scales;
    int32_t* q_sums;
    uint16_t* bf16;  // likewise
    // By expert, and one more: the first of its rows.
    int32_t* first_rows;
  };
  static constexpr int32_t kNoExpert = -1;

  bool takes_bf16(const Matrix& stack) const;
  void leave_groups_out(const op::Moe<int>& o, int64_t token, float* preferences) const;
  int64_t group(const op::Moe<int>& o, int64_t num_tokens);
  void unpack_biases();
  void bring_in(const op::Moe<int>& o, bool may_be_absent);
  void gather(const op::Moe<int>& o, const Activations& input, int64_t row);
  void activate(const op::Moe<int>& o, int64_t row);
  void add_products(const op::Moe<int>& o, const Matrix& stack, std::optional<int> bias,
                    const float* x, float* out);
  void add_up(const op::Moe<int>& o, int64_t token, float* out) const;

  const Kernels& kernels_;
  const WeightStore& weights_;
  const Arithmetic arithmetic_;
  Scratch scratch_{};
  // [num_experts][rows] by the index of the weight, in which they lie in panels as matrices do.
  std::map<int, float*> biases_;
  bool has_unpacked_biases_ = false;
  std::vector<Product> products_;  // of the op that runs
  std::atomic<int64_t> num_used_{0};
  std::atomic<int64_t> num_in_memory_{0};
};

}  // namespace potluck
