// The arithmetic peak of a CPU: the rate of an instruction set's own multiply-add when its operands
// are in registers and nothing stalls.
#pragma once

#include <stdint.h>

#include "program/thread_pool.h"

namespace potluck {

// The operands of linear ops: 8-bit integers (quantized weights), bf16 or f32.
enum class Operands : uint8_t { Int8, Bf16, F32 };

struct PeakLoop {
  const char* isa;          // as in the dispatch table
  Operands operands;
  const char* instruction;  // the repeated instruction
  int64_t multiply_adds;    // per round
  void (*run)(int64_t num_rounds);
};

// Null if the instruction set has no multiply-add of its own, as `scalar` has none. It can be run
// wherever the kernels of `isa` can.
const PeakLoop* find_peak_loop(const char* isa, Operands operands);

// Multiply-adds per second of all threads of `pool` together, which run `num_chunks` times
// `num_rounds` rounds. Using more chunks than threads evens out unequal and disturbed cores.
double measure_peak(const PeakLoop& loop, int64_t num_chunks, int64_t num_rounds, ThreadPool& pool);

}  // namespace potluck
