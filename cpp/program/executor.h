// Runs the ops of a program on a batch: owns the registers and the key-value caches, and divides
// every op among the threads. Each output element has its own fixed order of operations, so results
// do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/kernels.h"
#include "program/attention_division.h"
#include "program/batch.h"
#include "program/exchange.h"
#include "program/exchange_queue.h"
#include "program/gathers.h"
#include "program/head_linear.h"
#include "program/kv_cache.h"
#include "program/memory.h"
#include "program/moe.h"
#include "program/op_timer.h"
#include "program/products.h"
#include "program/program.h"
#include "program/read_ahead.h"
#include "program/schedule.h"
#include "program/slice_exchange.h"
#include "program/state_cache.h"
#include "program/state_division.h"
#include "program/thread_pool.h"
#include "program/weights.h"

namespace potluck {

class Executor {
 public:
  // Allocates everything that any step requires. The references must outlive it. Throws
  // OutOfMemoryError.
  Executor(const Program& program, const Kernels& kernels, const WeightStore& weights,
           int64_t num_blocks, int64_t num_states, int64_t max_step_tokens, int num_threads,
           Arithmetic arithmetic);

  static uint64_t cache_bytes(const Program& program, int64_t num_blocks, int64_t num_states);
  static uint64_t scratch_bytes(const Program& program, int64_t max_step_tokens, int num_threads,
                                Arithmetic arithmetic);

  // The register `hidden`, [tokens][hidden_size]: the input of `run` without an embedding, or its
  // output without a head.
  float* hidden() { return register_data(program_.hidden()); }

  // In every cache, in order.
  void copy_blocks(const std::vector<BlockCopy>& copies);

  // In order.
  void copy_states(const std::vector<StateCopy>& copies, ThreadPool::Session& session);
  StateCache& states() { return states_; }
  const StateCache& states() const { return states_; }

  // The contents of a block in all caches, concatenated.
  ExpertUse expert_use() const { return moe_->expert_use(); }

  uint64_t block_bytes() const;
  void read_block(int64_t block, uint8_t* out) const;
  void write_block(int64_t block, const uint8_t* data);

  // Runs all ops except the head. `exchange` is set if the program belongs to a member of a group;
  // its exceptions end the run.
  void run(const Batch& batch, Exchange* exchange, ThreadPool::Session& session);

  // The head's input [tokens][width] after `run`.
  const float* head_input() { return register_data(program_.head_input()); }

  // Logits [num_rows][vocab_size] of rows that `run` has computed; the head must have a weight. In
  // a group, the leader gets them; for rows of which only the `largest` logits are requested, only
  // these are valid, and the others are so low that they do not matter. Other members write their
  // part, [num_rows][rows of the head], unless the head is whole: then there is nothing to do for
  // them.
  void head(const WantedRow* rows, int64_t num_rows, const std::vector<bool>& largest,
            float* logits, Exchange* exchange, ThreadPool::Session& session);
  // Maximum number of rows per call of the head.
  static constexpr int64_t kMaxHeadRows = 32;

  OpTimer& timer() { return timer_; }

 private:
  struct Layout;
  // The inputs of kernels for rows in addition to float32.
  struct Forms {
    bool integers = false;
    bool bf16 = false;
  };

  // For the rows that are running: those of part of a batch, from its first on.
  float* register_data(int index) {
    return floats(register_offsets_[index]) + first_row_ * program_.width(index);
  }
  float* floats(uint64_t offset) { return reinterpret_cast<float*>(scratch_.data() + offset); }

  float* row(int index, int64_t token) {
    return register_data(index) + token * program_.width(index);
  }
  const float* vector(std::optional<int> weight) const {
    return weight ? weights_.vector(*weight) : nullptr;
  }

  // Rows that go through the phases together. While data of one part is being sent, another one is
  // computed: the results of a token are the same in any batch.
  struct Part {
    Part(const Batch& rows, int64_t first, SliceExchange messages)
        : batch(rows), first_row(first), slices(std::move(messages)) {}
    const Batch& batch;
    int64_t first_row;
    SliceExchange slices;
    std::optional<int64_t> exchange;  // whose rows are still to be copied
    // How the rows are divided, cached from one layer to the next.
    std::vector<std::pair<AttentionShape, AttentionDivision>> divisions;
    std::vector<std::pair<StateShape, StateDivision>> state_divisions;
  };
  // The first row of the second part; none if all rows are one part.
  std::optional<int64_t> second_part(const Batch& batch) const;
  SliceExchange messages_from(int64_t first_row);
  void run_phases(std::vector<Part>& parts, ThreadPool::Session& session);
  void run_phase(size_t index, Part& part, ThreadPool::Session& session);
  void take_gathered(Part& part, ThreadPool::Session& session);

  // Runs the row-wise ops of a phase, and prepares the input of its wide op.
  void run_rows(const Phase& phase, const Batch& batch, ThreadPool::Session& session);

  // Runs them for one token's row; the cost per row (see kMinChunkWork).
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

  // Prepares the inputs of a wide op for one token's row that are not in a register; the cost of
  // that; and the op itself, for all tokens.
  void make_input(std::monostate, const Batch&, int64_t) {}
  void make_input(const Linears& linears, const Batch& batch, int64_t t);
  void make_input(const op::Embed<int>&, const Batch&, int64_t) {}
  void make_input(const op::AllGather<int>& o, const Batch& batch, int64_t t);
  void make_input(const op::HeadLinear<int>&, const Batch&, int64_t) {}
  void make_input(const op::Attention<int>& o, const Batch& batch, int64_t t);
  void make_input(const op::CausalConv<int>&, const Batch&, int64_t) {}
  void make_input(const op::GatedDelta<int>& o, const Batch& batch, int64_t t);
  void make_input(const op::StateScan<int>& o, const Batch& batch, int64_t t);
  void make_input(const op::Moe<int>& o, const Batch& batch, int64_t t);
  void make_input(const op::Head<int>&, const Batch&, int64_t) {}
  int64_t input_work(std::monostate) const { return 0; }
  int64_t input_work(const Linears& linears) const;
  int64_t input_work(const op::Embed<int>&) const { return 0; }
  int64_t input_work(const op::AllGather<int>& o) const;
  int64_t input_work(const op::HeadLinear<int>&) const { return 0; }
  int64_t input_work(const op::Attention<int>& o) const;
  int64_t input_work(const op::CausalConv<int>&) const { return 0; }
  int64_t input_work(const op::GatedDelta<int>& o) const;
  int64_t input_work(const op::StateScan<int>& o) const;
  int64_t input_work(const op::Moe<int>& o) const;
  int64_t input_work(const op::Head<int>&) const { return 0; }
  void run_op(std::monostate, const Batch&, ThreadPool::Session&) {}
  void run_op(const Linears& linears, const Batch& batch, ThreadPool::Session& session);
  void run_op(const op::Embed<int>& o, const Batch& batch, ThreadPool::Session& session);
  void run_op(const op::AllGather<int>& o, const Batch& batch, ThreadPool::Session& session);
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

  // The form in which rows are gathered; if either prompts or decodes use Floats, both do.
  SliceForm slice_form(const Gather& gather, bool is_prefill) const;
  // The address of rows that were gathered in other forms, which is in their register.
  MutableActivations gathered(const Gather& gather, int64_t num_rows);
  // Whether the input of the running phase comes from an AllGather, in the required forms.
  bool has_gathered_input() const {
    return gather_ != nullptr && slice_form(*gather_, false) != SliceForm::Floats;
  }
  void begin_gather(Part& part);

  // Returns `x` as kernel input, with the results of `make_forms`, if any.
  Activations activations(const float* x);
  // The input of the running phase's products.
  Activations input_of(const op::Linear<int>& o, int64_t num_rows);
  // For rows that are either all decodes or all prompts.
  Product product(const Matrix& weight, const float* bias, const Activations& input,
                  int64_t num_tokens, float* out, bool is_prefill);
  // Adds to products_: one product, or one per range of rows if only prompts are fast.
  void add_products(const op::Linear<int>& o, const Batch& batch);
  void make_forms(Forms forms, const float* x, int64_t num_tokens, int64_t columns,
                  ThreadPool::Session& session);
  void make_form_rows(Forms forms, const float* x, int64_t columns, int64_t begin, int64_t end);

  void exchange_logits(const op::Head<int>& o, int64_t num_rows, const std::vector<bool>& largest,
                       float* logits, Exchange& exchange, ThreadPool::Session& session);
  // Scales and caps `count` logits, as specified by the head.
  void shape_logits(const op::Head<int>& o, float* logits, int64_t count,
                    ThreadPool::Session& session);

  // The results of make_input for recurrences, in the scratch memory.
  struct DeltaInputs;
  struct ScanInputs;
  DeltaInputs delta_inputs(const op::GatedDelta<int>& o, const Batch& batch);
  ScanInputs scan_inputs(const op::StateScan<int>& o, const Batch& batch);

  // Calls function(slice, state, first_unit, end_unit) for parts of all slices, on all threads.
  template <typename F>
  void run_states(const StateShape& shape, int64_t state_index, const Batch& batch,
                  ThreadPool::Session& session, const F& function);

  // How the running part is divided.
  const AttentionDivision& division_for(const AttentionShape& shape, const Batch& batch);
  const StateDivision& division_for(const StateShape& shape, const Batch& batch);

  const Program& program_;
  const Kernels& kernels_;
  const Arithmetic arithmetic_;
  const WeightStore& weights_;
  const std::vector<Phase> phases_;
  const Gathers gathers_;
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
  uint64_t messages_offset_;
  int64_t first_row_ = 0;           // of the running part
  Part* part_ = nullptr;            // the running part
  ExchangeQueue queue_;
  ExchangeQueue::Step* queued_ = nullptr;  // if there are several parts
  std::optional<HeadLinearRunner> head_linear_;
  std::optional<MoeRunner> moe_;
  std::vector<Product> products_;  // of the running op
  const Gather* gather_ = nullptr;  // of the running phase, if it uses gathered rows
  Exchange* exchange_ = nullptr;    // of the running step
  OpTimer timer_;
  // The rows of the first of a phase's two parts; the other part is the wide op. The head has its
  // own.
  std::vector<size_t> timed_phases_;
  size_t timed_head_ = 0;
  const AttentionLimits attention_limits_;
};

}  // namespace potluck
