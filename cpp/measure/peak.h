// The arithmetic peak of a CPU: how fast an instruction set's own multiply-add goes when its
// operands are in registers and nothing waits.
#pragma once

#include <stdint.h>

#include "program/thread_pool.h"

namespace potluck {

// What linear ops compute with: products of 8-bit integers (quantized weights), of bf16 or of f32.
enum class Operands : uint8_t { Int8, Bf16, F32 };

struct PeakLoop {
  const char* isa;          // as in the dispatch table
  Operands operands;
  const char* instruction;  // the one that is repeated
  int64_t multiply_adds;    // of one round
  void (*run)(int64_t num_rounds);
};

// Null where the instruction set has no such multiply-add of its own, as `scalar` has none. It may
// be run where the kernels of `isa` may.
const PeakLoop* find_peak_loop(const char* isa, Operands operands);

// Multiply-adds per second of all threads of `pool` together, which run `num_chunks` times
// `num_rounds` rounds. More chunks than threads even out unequal and disturbed cores.
double measure_peak(const PeakLoop& loop, int64_t num_chunks, int64_t num_rounds, ThreadPool& pool);

}  // namespace potluck
