// Runs the ops of a program on a batch: owns the registers and the key-value caches, and divides
// every op among the threads. Each output element is computed whole by one thread, so the result
// does not depend on how many there are.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.h"
#include "program/batch.h"
#include "program/kv_cache.h"
#include "program/memory.h"
#include "program/op_timer.h"
#include "program/program.h"
#include "program/read_ahead.h"
#include "program/thread_pool.h"
#include "program/weights.h"

namespace potluck {

class Executor {
 public:
  // Allocates all that any step needs. The references must outlive it. Throws OutOfMemoryError.
  Executor(const Program& program, const Kernels& kernels, const WeightStore& weights,
           int64_t num_blocks, int64_t max_step_tokens, int num_threads);

  static uint64_t cache_bytes(const Program& program, int64_t num_blocks);
  static uint64_t scratch_bytes(const Program& program, int64_t max_step_tokens, int num_threads);

  // The register `hidden`, [tokens][hidden_size]: the input before `run` without an embedding, the
  // output after it without a head.
  float* hidden() { return register_data(program_.hidden()); }

  // All ops but the head.
  void run(const Batch& batch, ThreadPool::Session& session);

  // Logits [num_rows][vocab_size] of rows that `run` has computed.
  void head(const WantedRow* rows, int64_t num_rows, float* logits, ThreadPool::Session& session);
  // As many rows at a time as the head takes.
  static constexpr int64_t kMaxHeadRows = 32;

  // Of the program's ops, the head included.
  OpTimer& timer() { return timer_; }

 private:
  struct Layout;

  float* register_data(int index) { return floats(register_offsets_[index]); }
  float* floats(uint64_t offset) { return reinterpret_cast<float*>(scratch_.data() + offset); }

  void run_op(const op::Embed<int>& o, const Batch& batch, ThreadPool::Session& session);
  void run_op(const op::RmsNorm<int>& o, const Batch& batch, ThreadPool::Session& session);
  void run_op(const op::Linear<int>& o, const Batch& batch, ThreadPool::Session& session);
  void run_op(const op::Rope<int>& o, const Batch& batch, ThreadPool::Session& session);
  void run_op(const op::Attention<int>& o, const Batch& batch, ThreadPool::Session& session);
  void run_op(const op::GatedActivation<int>& o, const Batch& batch, ThreadPool::Session& session);
  void run_op(const op::Add<int>& o, const Batch& batch, ThreadPool::Session& session);
  void run_op(const op::Head<int>&, const Batch&, ThreadPool::Session&) {}

  void append_kv(const op::Attention<int>& o, const Batch& batch, ThreadPool::Session& session);
  void linear(const Matrix& weight, const float* bias, const float* x, int64_t num_tokens,
              float* out, ThreadPool::Session& session);
  void quantize(const float* x, int64_t num_tokens, int64_t columns, ThreadPool::Session& session);
  void round_bf16(const float* x, int64_t num_tokens, int64_t columns,
                  ThreadPool::Session& session);

  const Program& program_;
  const Kernels& kernels_;
  const WeightStore& weights_;
  ReadAhead read_ahead_;
  OpTimer timer_;
  std::vector<KvCache> caches_;
  Buffer scratch_;
  std::vector<uint64_t> register_offsets_;
  uint64_t q_offset_;
  uint64_t q_scales_offset_;
  uint64_t q_sums_offset_;
  uint64_t bf16_offset_;
  uint64_t attention_offset_;
  uint64_t attention_floats_;
  uint64_t head_input_offset_;
  // The matrix whose quantized form the scratch holds, or null: inputs that several ops share
  // (q, k and v; gate and up) are quantized once.
  const float* quantized_ = nullptr;
  // Whether that form is bf16, for kernels that take it, and not integers.
  bool quantized_to_bf16_ = false;
};

}  // namespace potluck
