// Runs products of every head with a matrix of its own (op::HeadLinear).
//
// Each thread takes some heads, and some panels of them, for some tokens: it brings the columns of
// a head together in memory of its own, in the form that the product takes, and multiplies. What an
// element of the output is does not depend on the other tokens, nor on how the work is divided.
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
  // What `run` needs for any HeadLinear op of the program with up to `max_tokens` tokens: a multiple
  // of 64, 0 without such an op.
  static uint64_t scratch_bytes(const Program& program, int64_t max_tokens, int num_threads);

  // The references and `scratch_bytes` bytes at `scratch`, aligned to 64, must outlive it.
  HeadLinearRunner(const Program& program, const Kernels& kernels, const WeightStore& weights,
                   Arithmetic arithmetic, int64_t max_tokens, uint8_t* scratch);

  // Rows of `x` and `out` are those of their registers. Rows of prompts may be multiplied otherwise
  // than those of decodes (uses_fast).
  void run(const op::HeadLinear<int>& o, const Batch& batch, const float* x, float* out,
           ThreadPool::Session& session);

 private:
  // Neighbouring tokens that are multiplied alike.
  struct Tokens {
    int64_t begin;
    int64_t end;
    bool is_fast;
  };
  void find_tokens(const Matrix& stack, const Batch& batch);
  Activations gather(const Matrix& stack, bool is_fast, const float* x, int64_t stride,
                     int64_t num_tokens, int worker) const;

  const Program& program_;
  const Kernels& kernels_;
  const WeightStore& weights_;
  const Arithmetic arithmetic_;
  const uint64_t thread_bytes_;
  uint8_t* const scratch_;
  std::vector<Tokens> tokens_;  // of the op that runs
};

}  // namespace potluck
