// Bits: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2A, CPUID; volume 1,
// section 13.2 (XCR0).
#include "dispatch/cpu_features.h"

#include "dispatch/amx_support.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <stdint.h>
#endif

namespace potluck {

#if defined(__x86_64__)
namespace {

bool has(uint32_t word, int bit) { return (word >> bit & 1) != 0; }

// XCR0, by its instruction: the intrinsic wants a compiler flag for the whole file.
uint64_t enabled_state() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

}  // namespace

CpuFeatures cpu_features() {
  CpuFeatures features;
  uint32_t eax, ebx, ecx, edx;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return features;
  const bool fma = has(ecx, 12), osxsave = has(ecx, 27), f16c = has(ecx, 29);
  if (!osxsave) return features;
  const uint64_t state = enabled_state();
  const bool saves_ymm = (state & 0x06) == 0x06;
  const bool saves_zmm = (state & 0xe6) == 0xe6;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return features;
  features.avx2 = saves_ymm && fma && f16c && has(ebx, 5);
  features.avx512 = features.avx2 && saves_zmm && has(ebx, 16) && has(ebx, 17) && has(ebx, 30) &&
                    has(ebx, 31) && has(ecx, 11);
  if (!features.avx512 || !__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) return features;
  features.avx512_bf16 = has(eax, 5);
  features.amx = features.avx512_bf16 && cpu_has_amx() && may_use_tiles();
  return features;
}
#else
CpuFeatures cpu_features() { return {}; }
#endif

}  // namespace potluck
