// Divides products of matrices and activations among threads.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.h"
#include "program/thread_pool.h"

namespace potluck {

// Exact: every product is bit-identical to that of the scalar kernels. Fast: Kernels::linear_fast
// is used if available (uses_fast).
enum class Arithmetic : uint8_t { Exact, Fast };

// Whether rows are multiplied with weights of `format` by Kernels::linear_fast, and so are passed
// as Activations::bf16. This is the case for BF16 weights in prompts and decodes alike, and for
// quantized ones in prompts only.
bool uses_fast(const Kernels& kernels, Arithmetic arithmetic, Format format, bool is_prefill);

// `kernel` computes panels of `args`.
struct Product {
  void (*kernel)(const LinearArgs& args, int64_t first_panel, int64_t end_panel);
  LinearArgs args;
  int64_t least_panels;  // per call with many tokens (Kernels)
};

// Computes all of them in one parallel loop; their results must be written to different places.
//
// In every step, worker w of n has panels [num_panels * w / n, num_panels * (w + 1) / n) of every
// matrix, rounded to whole units; others take what it does not finish in time from the end of its
// range, piece by piece.
void multiply(const std::vector<Product>& products, ThreadPool::Session& session);

}  // namespace potluck
