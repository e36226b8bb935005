// One stage: a program, its weights and its caches; computes one step per call.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "program/batch.h"
#include "program/exchange.h"
#include "program/executor.h"
#include "program/greedy_rows.h"
#include "program/pooler.h"
#include "program/program.h"
#include "program/sampler.h"
#include "program/thread_pool.h"
#include "program/weights.h"

namespace potluck {

// A step, like potluck.types.step.
struct Step {
  std::vector<Slice> slices;
  std::vector<Opening> opened;
  std::vector<int64_t> closed;
  std::vector<BlockCopy> copies;  // performed in order, before anything is computed
  std::vector<StateCopy> state_copies;  // likewise
  std::vector<TokenMask> masks;  // of sequences that are sampled
  Exchange* exchange = nullptr;  // for a member of a group
};

// The results of the last stage.
struct StepOutput {
  std::vector<SampledToken> sampled;
  std::vector<PooledVector> vectors;
};

// A float32 matrix that the caller owns.
struct MatrixView {
  const float* data;
  int64_t rows;
  int64_t columns;
};
struct MutableMatrixView {
  float* data;
  int64_t rows;
  int64_t columns;
};

// Calls must come from one thread at a time: a call during another one throws Error. All throw
// Error for invalid arguments, and have then changed nothing.
class Stage {
 public:
  // Throws OutOfMemoryError.
  Stage(std::shared_ptr<const Program> program, const Kernels& kernels,
        std::shared_ptr<ThreadPool> pool, int64_t num_blocks, int64_t num_states,
        int64_t max_step_tokens, Arithmetic arithmetic);

  // The memory of a stage in addition to its weights.
  static uint64_t cache_bytes(const Program& program, int64_t num_blocks, int64_t num_states);
  static uint64_t scratch_bytes(const Program& program, int64_t max_step_tokens, int num_threads,
                                Arithmetic arithmetic);

  // See WeightStore.
  void begin_weight(const std::string& name, const std::vector<int64_t>& shape, Format format);
  void write_rows(const std::string& name, int64_t start_row, int64_t end_row,
                  const uint8_t* data, uint64_t num_bytes);
  void finish_weight(const std::string& name);
  void map_weight(const std::string& name, const std::vector<int64_t>& shape, Format format,
                  const uint8_t* data, uint64_t num_bytes, std::shared_ptr<const void> owner);

  // Runs the program once. `hidden_in` [tokens][hidden_size] is required unless the stage has the
  // embedding, and `hidden_out` unless it has the head; with the head it returns one token per
  // requested row that does not follow a wrong draft, and the vectors of sequences whose pooling is
  // complete. If logits or vectors are not finite, it throws after writing the caches, as it does
  // if the exchange throws. A stage that another member of its group leads returns nothing, and has
  // no `hidden_out`.
  StepOutput step(const Step& step, std::optional<MatrixView> hidden_in,
                  std::optional<MutableMatrixView> hidden_out);

  // The same on a stage with the head, but returns the logits [requested rows][vocab_size]; none on
  // a stage that is led.
  void logits(const Step& step, std::optional<MatrixView> hidden_in, MutableMatrixView out);

  // The contents of `blocks` in the caches of the stage, block_bytes() each; 0 without caches.
  uint64_t block_bytes() const { return executor_.block_bytes(); }
  void read_blocks(const std::vector<int64_t>& blocks, uint8_t* out, uint64_t num_bytes);
  void write_blocks(const std::vector<int64_t>& blocks, const uint8_t* data, uint64_t num_bytes);
  // The same for the contents of the slots `states`.
  uint64_t state_bytes() const { return executor_.states().slot_bytes(); }
  void read_states(const std::vector<int64_t>& states, uint8_t* out, uint64_t num_bytes);
  void write_states(const std::vector<int64_t>& states, const uint8_t* data, uint64_t num_bytes);

  // Seconds spent in steps since `time_ops`: in the ops of the program, and in sampling.
  struct Times {
    std::vector<TimedOps> ops;
    double sampling_seconds;
  };
  void time_ops();
  Times times();

  uint64_t weights_bytes() const { return weights_.num_bytes(); }
  uint64_t mapped_bytes() const { return weights_.num_mapped_bytes(); }
  ExpertUse expert_use() const { return executor_.expert_use(); }

 private:
  class Call;

  void check_states(const std::vector<int64_t>& states, uint64_t num_bytes) const;
  void check_masks_are_known(const Step& step) const;
  void check_blocks(const std::vector<int64_t>& blocks, uint64_t num_bytes) const;
  Batch check(const Step& step, const std::optional<MatrixView>& hidden_in) const;
  void open(const Step& step);
  void close(const Step& step);
  // Which slices consist of drafts, the first of which is known to be wrong.
  std::vector<bool> find_dead(const Step& step, const Batch& batch) const;
  // `batch` has the slices that are not dead.
  void compute(const Step& step, const Batch& batch, const std::optional<MatrixView>& hidden_in,
               const std::vector<bool>& is_dead, ThreadPool::Session& session);
  // The results for the requested rows of a computed batch, as far as drafts are right. Sets
  // `failure` to a NonFiniteError; the members of a group exchange the logits of all rows in any
  // case, because the others do not know of it.
  std::vector<SampledToken> sample(const Step& step, const Batch& batch,
                                   std::exception_ptr& failure, ThreadPool::Session& session);
  void add_logits(const Step& step, const Batch& batch, ThreadPool::Session& session);

  const std::shared_ptr<const Program> program_;
  const std::shared_ptr<ThreadPool> pool_;
  const BatchLimits limits_;
  WeightStore weights_;
  Executor executor_;
  OpTimer sampling_timer_;
  std::optional<Sampler> sampler_;  // if it has logits, unless another member leads
  Buffer logits_;                   // if it has logits, at most Executor::kMaxHeadRows rows
  GreedyRows greedy_rows_;          // if the head is divided
  Pooler pooler_;
  std::atomic<bool> busy_{false};
};

}  // namespace potluck
