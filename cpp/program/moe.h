// Runs mixtures of experts (op::Moe): selects experts, and computes the selected ones.
//
// Every token's row is copied once for each expert that it goes to, with the rows of one expert
// contiguous, so that an expert's weights are read once for all its tokens, and not at all if no
// token selects it. An output element depends neither on the other tokens nor on how the work is
// divided.
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
#include "program/slice_exchange.h"
#include "program/thread_pool.h"
#include "program/weights.h"

namespace potluck {

// The number of matrices of mapped experts that steps have used, and how many of these were in
// memory.
struct ExpertUse {
  int64_t num_used = 0;
  int64_t num_in_memory = 0;
};

class MoeRunner {
 public:
  // The scratch memory of `run` for any Moe op of the program with up to `max_tokens` tokens: a
  // multiple of 64, or 0 without such an op.
  static uint64_t scratch_bytes(const Program& program, int64_t max_tokens);

  // The size of the messages of all members for any Moe op that is divided.
  static uint64_t message_bytes(const Program& program, int64_t max_tokens);

  // The references and `scratch_bytes` bytes at `scratch`, aligned to 64, must outlive it.
  // Quantized experts are exact in either `arithmetic`.
  MoeRunner(const Program& program, const Kernels& kernels, const WeightStore& weights,
            Arithmetic arithmetic, int64_t max_tokens, uint8_t* scratch);

  // Whether `run` also reads its input as integers.
  bool wants_integers(const op::Moe<int>& o) const;

  // Selects the experts of one token by its logits [o.num_experts], for `run`. May be called for
  // different tokens by different threads at once.
  void choose(const op::Moe<int>& o, const float* logits, int64_t token);

  // Computes the experts that `choose` has selected for tokens [0, num_tokens). Reads x of `input`
  // and, if required, the integers. `out` is [num_tokens][rows of `down`], and may be input.x. If
  // they `may_be_absent`, mapped experts that are not in memory are requested before any is
  // computed. If the op is divided, inner activations go through `slices` and the `exchange`.
  void run(const op::Moe<int>& o, const Activations& input, int64_t num_tokens, float* out,
           bool may_be_absent, SliceExchange& slices, Exchange* exchange,
           ThreadPool::Session& session);

  // Totals since construction. Any thread may call it.
  ExpertUse expert_use() const { return {num_used_.load(), num_in_memory_.load()}; }

 private:
  struct Layout;
  struct Scratch {
    // By token and index among its selected experts, which are in ascending order.
    int32_t* experts;  // the first is kNoExpert if none was selected
    float* shares;
    int32_t* rows;  // the row of its copy
    // By token and expert.
    float* scores;
    float* preferences;  // by which experts are selected
    // By token and group of experts; by token and index among the selected groups.
    float* group_sums;
    int32_t* groups;
    // By row: a token's copy for one expert.
    int32_t* tokens;
    float* x;  // inputs, and then the experts' results
    float* gate;
    float* own_up;  // if the op is divided: the parts that other members do not compute
    float* up;      // and then the inner activations
    int8_t* q;  // for inputs, and then for the experts' inner activations
    float* q_scales;
    int32_t* q_sums;
    uint16_t* bf16;  // likewise
    // By expert, plus one: the first of its rows.
    int32_t* first_rows;
  };
  static constexpr int32_t kNoExpert = -1;

  bool takes_bf16(const Matrix& stack) const;
  SliceForm inner_form(const op::Moe<int>& o) const;
  void leave_groups_out(const op::Moe<int>& o, int64_t token, float* preferences) const;
  int64_t group(const op::Moe<int>& o, int64_t num_tokens);
  void unpack_biases();
  void bring_in(const op::Moe<int>& o, bool may_be_absent);
  void gather(const op::Moe<int>& o, const Activations& input, int64_t row);
  void activate(const op::Moe<int>& o, int64_t row);
  void make_inner_forms(const op::Moe<int>& o, int64_t row);
  void add_products(const op::Moe<int>& o, const Matrix& stack, std::optional<int> bias,
                    const float* x, float* out);
  void add_up(const op::Moe<int>& o, int64_t token, float* out) const;

  const Kernels& kernels_;
  const WeightStore& weights_;
  const Arithmetic arithmetic_;
  SliceExchange* slices_ = nullptr;  // of the running op
  Scratch scratch_{};
  // [num_experts][rows] by the index of the weight, which is in panels like a matrix.
  std::map<int, float*> biases_;
  bool has_unpacked_biases_ = false;
  std::vector<Product> products_;  // of the running op
  std::atomic<int64_t> num_used_{0};
  std::atomic<int64_t> num_in_memory_{0};
};

}  // namespace potluck
