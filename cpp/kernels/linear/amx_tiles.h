// Intel AMX: tiles of up to 16 rows of 64 bytes, and products of two of them.
//
// Uses inline assembly, because tiles are numbered in the code and gcc 12's intrinsics declare no
// memory operands, so that a store may be moved past the load of a tile. Every statement here has
// memory among its clobbers; none touches a register that the compiler uses.
//
// Sources: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18, and
// volume 2 for each instruction.
#pragma once

#include <stdint.h>

namespace potluck {
namespace amx {
namespace {

constexpr int kTileRows = 16;
constexpr int kTileRowBytes = 64;

// A configuration in the form that LDTILECFG reads. Eight tiles, "colsb" bytes in each row.
struct alignas(64) TileConfig {
  uint8_t palette;
  uint8_t start_row;
  uint8_t reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64, "LDTILECFG reads 64 bytes");

// Every thread configures its own tiles. Without a configuration the kernel saves no tiles on a
// context switch, and the core can enter deeper idle states, so every thread that configures tiles
// also releases them.
inline void configure_tiles(const TileConfig& config) {
  __asm__ volatile("ldtilecfg %0" : : "m"(config) : "memory");
}
inline void release_tiles() { __asm__ volatile("tilerelease" : : : "memory"); }

// Loads rows from `rows` on, `stride` bytes apart.
template <int tile>
inline __attribute__((always_inline)) void load_tile(const void* rows, int64_t stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(rows), "r"(stride), "i"(tile)
                   : "memory");
}

template <int tile>
inline __attribute__((always_inline)) void store_tile(void* rows, int64_t stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(rows), "r"(stride), "i"(tile)
                   : "memory");
}

template <int tile>
inline __attribute__((always_inline)) void zero_tile() {
  __asm__ volatile("tilezero %%tmm%c0" : : "i"(tile) : "memory");
}

// out[m][n] += sum over k and i < 4 of a[m][4 k + i] * b[k][4 n + i], signed bytes, exactly.
template <int out, int a, int b>
inline __attribute__((always_inline)) void dot_i8() {
  __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(out), "i"(a), "i"(b)
                   : "memory");
}

// out[m][n] += the sum of a[m][2 k] * b[k][2 n] over all k, a chain of fma from 0, plus that of
// a[m][2 k + 1] * b[k][2 n + 1]. bf16 in, f32 out; subnormals are 0.
template <int out, int a, int b>
inline __attribute__((always_inline)) void dot_bf16() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(out), "i"(a), "i"(b)
                   : "memory");
}

}  // namespace
}  // namespace amx
}  // namespace potluck
