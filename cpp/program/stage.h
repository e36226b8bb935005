// One stage: a program, its weights and its caches, computing one step per call.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "program/batch.h"
#include "program/executor.h"
#include "program/pooler.h"
#include "program/program.h"
#include "program/sampler.h"
#include "program/thread_pool.h"
#include "program/weights.h"

namespace potluck {

// A step as potluck.types.step has it.
struct Step {
  std::vector<Slice> slices;
  std::vector<Opening> opened;
  std::vector<int64_t> closed;
  std::vector<BlockCopy> copies;  // made in order, before anything is computed
  std::vector<StateCopy> state_copies;  // likewise
  std::vector<TokenMask> masks;  // of sequences that are sampled
};

// What the last stage gives.
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

// Calls come from one thread at a time: a call while another one runs throws Error. All throw Error
// for what makes no sense, and then have changed nothing.
class Stage {
 public:
  // Throws OutOfMemoryError.
  Stage(std::shared_ptr<const Program> program, const Kernels& kernels,
        std::shared_ptr<ThreadPool> pool, int64_t num_blocks, int64_t num_states,
        int64_t max_step_tokens, Arithmetic arithmetic);

  // What a stage allocates besides its weights.
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

  // Runs the program once. `hidden_in` [tokens][hidden_size] is given unless the stage has the
  // embedding, `hidden_out` likewise unless it has the head; with the head it returns one token per
  // row that is wanted, and the vectors of sequences whose pooling ends. When logits or vectors are
  // not finite it throws after the caches were written.
  StepOutput step(const Step& step, std::optional<MatrixView> hidden_in,
                  std::optional<MutableMatrixView> hidden_out);

  // The same on a stage with the head, but gives the logits [rows that are wanted][vocab_size].
  void logits(const Step& step, std::optional<MatrixView> hidden_in, MutableMatrixView out);

  // What the caches of the stage hold in `blocks`, block_bytes() of each; 0 without caches.
  uint64_t block_bytes() const { return executor_.block_bytes(); }
  void read_blocks(const std::vector<int64_t>& blocks, uint8_t* out, uint64_t num_bytes);
  void write_blocks(const std::vector<int64_t>& blocks, const uint8_t* data, uint64_t num_bytes);
  // Likewise what the slots `states` hold.
  uint64_t state_bytes() const { return executor_.states().slot_bytes(); }
  void read_states(const std::vector<int64_t>& states, uint8_t* out, uint64_t num_bytes);
  void write_states(const std::vector<int64_t>& states, const uint8_t* data, uint64_t num_bytes);

  // Seconds that steps took since `time_ops`: of ops of the program, and of sampling.
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
  void check_blocks(const std::vector<int64_t>& blocks, uint64_t num_bytes) const;
  Batch check(const Step& step, const std::optional<MatrixView>& hidden_in) const;
  void compute(const Step& step, const Batch& batch, const std::optional<MatrixView>& hidden_in,
               ThreadPool::Session& session);

  const std::shared_ptr<const Program> program_;
  const std::shared_ptr<ThreadPool> pool_;
  const BatchLimits limits_;
  WeightStore weights_;
  Executor executor_;
  OpTimer sampling_timer_;
  std::optional<Sampler> sampler_;  // with logits
  Buffer logits_;                   // likewise, Executor::kMaxHeadRows rows at most
  Pooler pooler_;
  std::atomic<bool> busy_{false};
};

}  // namespace potluck
