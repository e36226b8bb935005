// Divides products of matrices and activations among threads.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.h"
#include "program/thread_pool.h"

namespace potluck {

// Exact: every product has the bits of the scalar kernels. Fast: Kernels::linear_fast is used where
// there is one (uses_fast).
enum class Arithmetic : uint8_t { Exact, Fast };

// Whether rows are multiplied with weights of `format` by Kernels::linear_fast, and so are taken as
// Activations::bf16. BF16 weights are, in prompts and decodes alike; quantized ones in prompts only.
bool uses_fast(const Kernels& kernels, Arithmetic arithmetic, Format format, bool is_prefill);

// `kernel` computes panels of `args`.
struct Product {
  void (*kernel)(const LinearArgs& args, int64_t first_panel, int64_t end_panel);
  LinearArgs args;
  int64_t least_panels;  // of a call with many tokens (Kernels)
};

// Computes all of them, in one parallel loop, whose results are written to different places.
//
// Worker w of n has panels [num_panels * w / n, num_panels * (w + 1) / n) of every matrix, or as
// near as whole units come, in every step; what it does not get to in time others take from its
// end, piece by piece.
void multiply(const std::vector<Product>& products, ThreadPool::Session& session);

}  // namespace potluck
