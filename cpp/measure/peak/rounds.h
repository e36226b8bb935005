// Included by one file per instruction set. The accumulators pass through an empty assembly
// statement, so that no compiler can merge rounds or omit them. They are separate variables: gcc
// would keep an array on the stack, and that would be measured.
#pragma once

#include "measure/peak/loops.h"

static_assert(potluck::kRoundRegisters == 12, "as many as the loop has");

// Defines a function of rounds. `type` is a vector, `class_` the constraint of its registers,
// `zero` a vector with which any sum may start; `step(a, x)` is the instruction, where x is a
// vector with the value of `zero` that the compiler does not know.
#define POTLUCK_ROUNDS(name, type, class_, zero, step)                                       \
  void name(int64_t num_rounds) {                                                            \
    type x = zero;                                                                           \
    __asm__ volatile("" : "+" class_(x));                                                    \
    type s0 = x, s1 = x, s2 = x, s3 = x, s4 = x, s5 = x, s6 = x, s7 = x, s8 = x, s9 = x,     \
         s10 = x, s11 = x;                                                                   \
    for (int64_t round = 0; round < num_rounds; ++round) {                                   \
      s0 = step(s0, x), s1 = step(s1, x), s2 = step(s2, x), s3 = step(s3, x);                \
      s4 = step(s4, x), s5 = step(s5, x), s6 = step(s6, x), s7 = step(s7, x);                \
      s8 = step(s8, x), s9 = step(s9, x), s10 = step(s10, x), s11 = step(s11, x);            \
      __asm__ volatile(""                                                                    \
                       : "+" class_(s0), "+" class_(s1), "+" class_(s2), "+" class_(s3),     \
                         "+" class_(s4), "+" class_(s5), "+" class_(s6), "+" class_(s7),     \
                         "+" class_(s8), "+" class_(s9), "+" class_(s10), "+" class_(s11));  \
    }                                                                                        \
  }
