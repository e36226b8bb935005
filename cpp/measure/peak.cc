#include "measure/peak.h"

#include <string.h>

#include <chrono>

#include "measure/peak/loops.h"

namespace potluck {
namespace {

// Multiply-adds per instruction, times the instructions of one round (peak/loops.h).
constexpr PeakLoop kLoops[] = {
#if defined(POTLUCK_HAS_AVX2)
    {"avx2", Operands::Int8, "vpmaddubsw ymm", 32 * kRoundRegisters, avx2::int8_rounds},
    {"avx2", Operands::F32, "vfmadd231ps ymm", 8 * kRoundRegisters, avx2::f32_rounds},
#endif
#if defined(POTLUCK_HAS_AVX512)
    {"avx512", Operands::Int8, "vpdpbusd zmm", 64 * kRoundRegisters, avx512::int8_rounds},
    {"avx512", Operands::F32, "vfmadd231ps zmm", 16 * kRoundRegisters, avx512::f32_rounds},
#endif
#if defined(POTLUCK_HAS_AVX512_BF16)
    {"avx512_bf16", Operands::Int8, "vpdpbusd zmm", 64 * kRoundRegisters, avx512::int8_rounds},
    {"avx512_bf16", Operands::Bf16, "vdpbf16ps zmm", 32 * kRoundRegisters,
     avx512_bf16::bf16_rounds},
    {"avx512_bf16", Operands::F32, "vfmadd231ps zmm", 16 * kRoundRegisters, avx512::f32_rounds},
#endif
#if defined(POTLUCK_HAS_AMX)
    {"amx", Operands::Int8, "tdpbssd", 16 * 16 * 64 * kRoundTiles, amx::int8_rounds},
    {"amx", Operands::Bf16, "tdpbf16ps", 16 * 16 * 32 * kRoundTiles, amx::bf16_rounds},
    {"amx", Operands::F32, "vfmadd231ps zmm", 16 * kRoundRegisters, avx512::f32_rounds},
#endif
#if defined(POTLUCK_HAS_NEON)
    {"neon", Operands::Int8, "smlal v.8h", 8 * kRoundRegisters, neon::int8_rounds},
    {"neon", Operands::F32, "fmla v.4s", 4 * kRoundRegisters, neon::f32_rounds},
#endif
#if defined(POTLUCK_HAS_DOTPROD)
    {"dotprod", Operands::Int8, "sdot v.4s", 16 * kRoundRegisters, dotprod::int8_rounds},
    {"dotprod", Operands::F32, "fmla v.4s", 4 * kRoundRegisters, neon::f32_rounds},
#endif
#if defined(POTLUCK_HAS_I8MM)
    {"i8mm", Operands::Int8, "smmla v.4s", 32 * kRoundRegisters, i8mm::int8_rounds},
    {"i8mm", Operands::Bf16, "bfdot v.4s", 8 * kRoundRegisters, i8mm::bf16_rounds},
    {"i8mm", Operands::F32, "fmla v.4s", 4 * kRoundRegisters, neon::f32_rounds},
#endif
    {"", Operands::F32, "", 0, nullptr},  // terminates the table, which may otherwise be empty
};

}  // namespace

const PeakLoop* find_peak_loop(const char* isa, Operands operands) {
  for (const PeakLoop* loop = kLoops; loop->run != nullptr; ++loop) {
    if (loop->operands == operands && strcmp(loop->isa, isa) == 0) return loop;
  }
  return nullptr;
}

double measure_peak(const PeakLoop& loop, int64_t num_chunks, int64_t num_rounds,
                    ThreadPool& pool) {
  ThreadPool::Session session(pool);
  const auto start = std::chrono::steady_clock::now();
  session.parallel_for(num_chunks, [&](int64_t, int) { loop.run(num_rounds); });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return static_cast<double>(num_chunks * num_rounds * loop.multiply_adds) / seconds.count();
}

}  // namespace potluck
