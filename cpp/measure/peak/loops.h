// The loops of every instruction set, in separate files compiled for them: rounds of one
// instruction on independent registers.
#pragma once

#include <stdint.h>

namespace potluck {

// Accumulators of a round. A multiply-add takes 4 to 5 cycles and two can start per cycle: ten keep
// every unit busy, and twelve with two operands fit into 16 registers.
constexpr int kRoundRegisters = 12;
// Tile registers that accumulate: two of the eight hold operands.
constexpr int kRoundTiles = 6;

namespace avx2 {
void int8_rounds(int64_t num_rounds);
void f32_rounds(int64_t num_rounds);
}  // namespace avx2
namespace avx512 {
void int8_rounds(int64_t num_rounds);
void f32_rounds(int64_t num_rounds);
}  // namespace avx512
namespace avx512_bf16 {
void bf16_rounds(int64_t num_rounds);
}
namespace amx {
void int8_rounds(int64_t num_rounds);
void bf16_rounds(int64_t num_rounds);
}  // namespace amx
namespace neon {
void int8_rounds(int64_t num_rounds);
void f32_rounds(int64_t num_rounds);
}  // namespace neon
namespace dotprod {
void int8_rounds(int64_t num_rounds);
}
namespace i8mm {
void int8_rounds(int64_t num_rounds);
void bf16_rounds(int64_t num_rounds);
}  // namespace i8mm

}  // namespace potluck
