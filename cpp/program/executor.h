// Runs the ops of a program on a batch: owns the registers and the key-value caches, and divides
// every op among the threads. Each output element has an order of operations of its own, so the
// result does not depend on how many there are.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/kernels.h"
#include "program/attention_division.h"
#include "program/batch.h"
#include "program/head_linear.h"
#include "program/kv_cache.h"
#include "program/memory.h"
#include "program/moe.h"
#include "program/op_timer.h"
#include "program/products.h"
#include "program/program.h"
#include "program/read_ahead.h"
#include "program/schedule.h"
#include "program/state_cache.h"
#include "program/state_division.h"
#include "program/thread_pool.h"
#include "program/weights.h"

namespace potluck {

class Executor {
 public:
  // Allocates all that any step needs. The references must outlive it. Throws OutOfMemoryError.
  Executor(const Program& program, const Kernels& kernels, const WeightStore& weights,
           int64_t num_blocks, int64_t num_states, int64_t max_step_tokens, int num_threads,
           Arithmetic arithmetic);

  static uint64_t cache_bytes(const Program& program, int64_t num_blocks, int64_t num_states);
  static uint64_t scratch_bytes(const Program& program, int64_t max_step_tokens, int num_threads,
                                Arithmetic arithmetic);

  // The register `hidden`, [tokens][hidden_size]: the input before `run` without an embedding, the
  // output after it without a head.
  float* hidden() { return register_data(program_.hidden()); }

  // In every cache, in order.
  void copy_blocks(const std::vector<BlockCopy>& copies);

  // In order.
  void copy_states(const std::vector<StateCopy>& copies, ThreadPool::Session& session);
  StateCache& states() { return states_; }
  const StateCache& states() const { return states_; }

  // What a block holds in every cache, one after another.
  ExpertUse expert_use() const { return moe_->expert_use(); }

  uint64_t block_bytes() const;
  void read_block(int64_t block, uint8_t* out) const;
  void write_block(int64_t block, const uint8_t* data);

  // All ops but the head.
  void run(const Batch& batch, ThreadPool::Session& session);

  // The head's input [tokens][width] after `run`.
  const float* head_input() { return register_data(program_.head_input()); }

  // Logits [num_rows][vocab_size] of rows that `run` has computed; the head has a weight.
  void head(const WantedRow* rows, int64_t num_rows, float* logits, ThreadPool::Session& session);
  // As many rows at a time as the head takes.
  static constexpr int64_t kMaxHeadRows = 32;

  OpTimer& timer() { return timer_; }

 private:
  struct Layout;
  // What kernels take of rows besides float32.
  struct Forms {
    bool integers = false;
    bool bf16 = false;
  };

  float* register_data(int index) { return floats(register_offsets_[index]); }
  float* floats(uint64_t offset) { return reinterpret_cast<float*>(scratch_.data() + offset); }

  float* row(int index, int64_t token) {
    return register_data(index) + token * program_.width(index);
  }
  const float* vector(std::optional<int> weight) const {
    return weight ? weights_.vector(*weight) : nullptr;
  }

  // The row-wise ops of a phase, and the input of its wide op.
  void run_rows(const Phase& phase, const Batch& batch, ThreadPool::Session& session);

  // One token's row, and how much work that is (see kMinChunkWork).
  void run_row(const op::Embed<int>& o, const Batch& batch, int64_t t);
  void run_row(const op::RmsNorm<int>& o, const Batch& batch, int64_t t);
  void run_row(const op::LayerNorm<int>& o, const Batch& batch, int64_t t);
  void run_row(const op::Rope<int>& o, const Batch& batch, int64_t t);
  void run_row(const op::GatedActivation<int>& o, const Batch& batch, int64_t t);
  void run_row(const op::CopyColumns<int>& o, const Batch& batch, int64_t t);
  void run_row(const op::SigmoidGate<int>& o, const Batch& batch, int64_t t);
  void run_row(const op::Scale<int>& o, const Batch& batch, int64_t t);
  void run_row(const op::Multiply<int>& o, const Batch& batch, int64_t t);
  void run_row(const op::Add<int>& o, const Batch& batch, int64_t t);
  int64_t row_work(const op::Embed<int>& o) const;
  int64_t row_work(const op::RmsNorm<int>& o) const;
  int64_t row_work(const op::LayerNorm<int>& o) const;
  int64_t row_work(const op::Rope<int>& o) const;
  int64_t row_work(const op::GatedActivation<int>& o) const;
  int64_t row_work(const op::CopyColumns<int>& o) const;
  int64_t row_work(const op::SigmoidGate<int>& o) const;
  int64_t row_work(const op::Scale<int>& o) const;
  int64_t row_work(const op::Multiply<int>& o) const;
  int64_t row_work(const op::Add<int>& o) const;

  // What a wide op takes of one token's row that is not in a register, and how much work it is to
  // make it; then the op itself, of all tokens.
  void make_input(std::monostate, const Batch&, int64_t) {}
  void make_input(const Linears& linears, const Batch& batch, int64_t t);
  void make_input(const op::HeadLinear<int>&, const Batch&, int64_t) {}
  void make_input(const op::Attention<int>& o, const Batch& batch, int64_t t);
  void make_input(const op::CausalConv<int>&, const Batch&, int64_t) {}
  void make_input(const op::GatedDelta<int>& o, const Batch& batch, int64_t t);
  void make_input(const op::StateScan<int>& o, const Batch& batch, int64_t t);
  void make_input(const op::Moe<int>& o, const Batch& batch, int64_t t);
  void make_input(const op::Head<int>&, const Batch&, int64_t) {}
  int64_t input_work(std::monostate) const { return 0; }
  int64_t input_work(const Linears& linears) const;
  int64_t input_work(const op::HeadLinear<int>&) const { return 0; }
  int64_t input_work(const op::Attention<int>& o) const;
  int64_t input_work(const op::CausalConv<int>&) const { return 0; }
  int64_t input_work(const op::GatedDelta<int>& o) const;
  int64_t input_work(const op::StateScan<int>& o) const;
  int64_t input_work(const op::Moe<int>& o) const;
  int64_t input_work(const op::Head<int>&) const { return 0; }
  void run_op(std::monostate, const Batch&, ThreadPool::Session&) {}
  void run_op(const Linears& linears, const Batch& batch, ThreadPool::Session& session);
  void run_op(const op::HeadLinear<int>& o, const Batch& batch, ThreadPool::Session& session);
  void run_op(const op::Attention<int>& o, const Batch& batch, ThreadPool::Session& session);
  void run_op(const op::CausalConv<int>& o, const Batch& batch, ThreadPool::Session& session);
  void run_op(const op::GatedDelta<int>& o, const Batch& batch, ThreadPool::Session& session);
  void run_op(const op::StateScan<int>& o, const Batch& batch, ThreadPool::Session& session);
  void run_op(const op::Moe<int>& o, const Batch& batch, ThreadPool::Session& session);
  void run_op(const op::Head<int>&, const Batch&, ThreadPool::Session&) {}

  bool uses_fast(const Matrix& weight, bool is_prefill) const;
  Forms forms(const Matrix& weight, bool is_prefill) const;
  Forms forms(const Linears& linears, bool is_prefill) const;

  // `x` as kernels take it, with what `make_forms` has made of it, if it has.
  Activations activations(const float* x);
  // Of rows that are all decoded, or all of prompts.
  Product product(const Matrix& weight, const float* bias, const float* x, int64_t num_tokens,
                  float* out, bool is_prefill);
  // Adds to products_: one product, or one for every range of rows where only prompts are fast.
  void add_products(const op::Linear<int>& o, const Batch& batch);
  void make_forms(Forms forms, const float* x, int64_t num_tokens, int64_t columns,
                  ThreadPool::Session& session);
  void make_form_rows(Forms forms, const float* x, int64_t columns, int64_t begin, int64_t end);

  // Scales and caps `count` logits, as the head says.
  void shape_logits(const op::Head<int>& o, float* logits, int64_t count,
                    ThreadPool::Session& session);

  // What make_input makes of the tokens for recurrences, in the scratch memory.
  struct DeltaInputs;
  struct ScanInputs;
  DeltaInputs delta_inputs(const op::GatedDelta<int>& o, const Batch& batch);
  ScanInputs scan_inputs(const op::StateScan<int>& o, const Batch& batch);

  // Calls function(slice, state, first_unit, end_unit) for parts of all slices, on all threads.
  template <typename F>
  void run_states(const StateShape& shape, int64_t state_index, const Batch& batch,
                  ThreadPool::Session& session, const F& function);

  // How the batch of this step is divided, remembered from one layer to the next.
  const AttentionDivision& division_for(const AttentionShape& shape, const Batch& batch);
  const StateDivision& division_for(const StateShape& shape, const Batch& batch);

  const Program& program_;
  const Kernels& kernels_;
  const Arithmetic arithmetic_;
  const WeightStore& weights_;
  const std::vector<Phase> phases_;
  ReadAhead read_ahead_;
  std::vector<KvCache> caches_;
  StateCache states_;
  Buffer scratch_;
  std::vector<uint64_t> register_offsets_;
  uint64_t q_offset_;
  uint64_t q_scales_offset_;
  uint64_t q_sums_offset_;
  uint64_t bf16_offset_;
  uint64_t attention_offset_;
  uint64_t attention_floats_;
  uint64_t partials_offset_;
  uint64_t state_inputs_offset_;
  uint64_t head_input_offset_;
  std::optional<HeadLinearRunner> head_linear_;
  std::optional<MoeRunner> moe_;
  std::vector<Product> products_;  // of the op that runs
  OpTimer timer_;
  // The first of a phase's two parts, its rows; the other is the wide op. The head has its own.
  std::vector<size_t> timed_phases_;
  size_t timed_head_ = 0;
  const AttentionLimits attention_limits_;
  std::vector<std::pair<AttentionShape, AttentionDivision>> divisions_;
  std::vector<std::pair<StateShape, StateDivision>> state_divisions_;
};

}  // namespace potluck
