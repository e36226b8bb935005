// Runs products of every head with a separate matrix (op::HeadLinear).
//
// Each thread processes some heads, and some panels of them, for some tokens: it copies the columns
// of a head to its own memory, in the form that the product reads, and multiplies. An output
// element depends neither on the other tokens nor on how the work is divided.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.h"
#include "program/batch.h"
#include "program/op.h"
#include "program/products.h"
#include "program/program.h"
#include "program/thread_pool.h"
#include "program/weights.h"

namespace potluck {

class HeadLinearRunner {
 public:
  // The scratch memory of `run` for any HeadLinear op of the program with up to `max_tokens`
  // tokens: a multiple of 64, or 0 without such an op.
  static uint64_t scratch_bytes(const Program& program, int64_t max_tokens, int num_threads);

  // The references and `scratch_bytes` bytes at `scratch`, aligned to 64, must outlive it.
  HeadLinearRunner(const Program& program, const Kernels& kernels, const WeightStore& weights,
                   Arithmetic arithmetic, int64_t max_tokens, uint8_t* scratch);

  // Rows of `x` and `out` are those of their registers. Rows of prompts may be multiplied
  // differently from those of decodes (uses_fast).
  void run(const op::HeadLinear<int>& o, const Batch& batch, const float* x, float* out,
           ThreadPool::Session& session);

 private:
  // Consecutive tokens that are multiplied in the same way.
  struct Tokens {
    int64_t begin;
    int64_t end;
    bool is_fast;
  };
  using LinearKernel = void (*)(const LinearArgs& args, int64_t first_panel, int64_t end_panel);

  void find_tokens(const Matrix& stack, const Batch& batch);
  Activations gather(const Matrix& stack, bool is_fast, const float* x, int64_t stride,
                     int64_t num_tokens, int worker) const;
  void multiply_across(const op::HeadLinear<int>& o, const Matrix& stack, int64_t head,
                       LinearKernel kernel, LinearArgs args, int worker) const;
  uint8_t* place_of(int worker) const {
    return scratch_ + thread_bytes_ * static_cast<uint64_t>(worker);
  }

  const Program& program_;
  const Kernels& kernels_;
  const WeightStore& weights_;
  const Arithmetic arithmetic_;
  uint8_t* const scratch_;
  uint64_t input_bytes_;  // per thread, including what follows
  uint64_t thread_bytes_;
  std::vector<Tokens> tokens_;  // of the running op
};

}  // namespace potluck
