// Included by one file per instruction set. The accumulators go in and out of an empty assembly
// statement, so that no compiler can merge rounds or leave them out.
#pragma once

#include "measure/peak/loops.h"

// Defines a function of rounds. `type` is a vector, `class_` the constraint of its registers,
// `zero` a vector that any sum may start with; `step(a, x)` is the instruction, with x a vector of
// `zero`'s value that the compiler does not know.
#define POTLUCK_ROUNDS(name, type, class_, zero, step)               \
  void name(int64_t num_rounds) {                                    \
    type sums[kRoundRegisters];                                      \
    for (type& sum : sums) sum = zero;                               \
    type x = zero;                                                   \
    __asm__ volatile("" : "+" class_(x));                            \
    for (int64_t round = 0; round < num_rounds; ++round) {           \
      for (int i = 0; i < kRoundRegisters; ++i) {                    \
        sums[i] = step(sums[i], x);                                  \
        __asm__ volatile("" : "+" class_(sums[i]));                  \
      }                                                              \
    }                                                                \
  }
