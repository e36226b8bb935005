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

// Whether prompts are computed with the bits of decodes, or faster where there is a way.
enum class Prefill : uint8_t { Exact, Fast };

class Executor {
 public:
  // Allocates all that any step needs. The references must outlive it. With `prefill` Fast, rows of
  // prompts go through Kernels::linear_fast, of the formats that have it. Throws OutOfMemoryError.
  Executor(const Program& program, const Kernels& kernels, const WeightStore& weights,
           int64_t num_blocks, int64_t max_step_tokens, int num_threads, Prefill prefill);

  static uint64_t cache_bytes(const Program& program, int64_t num_blocks);
  static uint64_t scratch_bytes(const Program& program, int64_t max_step_tokens, int num_threads,
                                Prefill prefill);

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
  using LinearKernel = void (*)(const LinearArgs&, int64_t, int64_t);

  // The kernel for rows of prompts, or null where they are computed as all others.
  LinearKernel fast_kernel(const Matrix& weight) const;
  // What kernels take of `x` [tokens][columns]; filled in by `quantize` and the like.
  LinearArgs linear_args(const Matrix& weight, const float* bias, const float* x,
                         int64_t num_tokens, float* out);
  void linear(const Matrix& weight, const float* bias, const float* x, int64_t num_tokens,
              float* out, ThreadPool::Session& session);
  // `linear` whose rows of prompts are computed by `fast`.
  void linear_by_row(const Matrix& weight, const float* bias, const float* x, const Batch& batch,
                     float* out, LinearKernel fast, ThreadPool::Session& session);
  void quantize(const float* x, int64_t num_tokens, int64_t columns, ThreadPool::Session& session);
  void round_bf16(const float* x, int64_t num_tokens, int64_t columns,
                  ThreadPool::Session& session);
  // Rounds the rows of prompts and quantizes the others.
  void convert_by_row(const float* x, const Batch& batch, int64_t columns,
                      ThreadPool::Session& session);

  const Program& program_;
  const Kernels& kernels_;
  const Prefill prefill_;
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
  // What that form is: integers, bf16 for kernels that take it, or bf16 for prompts only.
  enum class Form : uint8_t { Integers, Bf16, ByRow };
  Form quantized_form_ = Form::Integers;
};

}  // namespace potluck
