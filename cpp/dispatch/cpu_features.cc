// Bits: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2A, CPUID; volume 1,
// section 13.2 (XCR0). For aarch64: Linux, arch/arm64/include/uapi/asm/hwcap.h and
// Documentation/arch/arm64/elf_hwcaps.rst.
#include "dispatch/cpu_features.h"

#include "dispatch/amx_support.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <stdint.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace potluck {

#if defined(__x86_64__)
namespace {

bool has(uint32_t word, int bit) { return (word >> bit & 1) != 0; }

// Reads XCR0 with inline assembly: the intrinsic requires a compiler flag for the whole file.
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
  features.amx = features.avx512_bf16 && cpu_has_amx();
  return features;
}
#elif defined(__aarch64__)
CpuFeatures cpu_features() {
  // Not from the system's header, which may be too old to have these bits.
  constexpr unsigned long kAsimd = 1ul << 1, kAsimdDp = 1ul << 20;  // AT_HWCAP
  constexpr unsigned long kI8mm = 1ul << 13, kBf16 = 1ul << 14;     // AT_HWCAP2
  const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
  CpuFeatures features;
  features.neon = (first & kAsimd) != 0;
  features.dotprod = features.neon && (first & kAsimdDp) != 0;
  features.i8mm = features.dotprod && (second & kI8mm) != 0 && (second & kBf16) != 0;
  return features;
}
#else
CpuFeatures cpu_features() { return {}; }
#endif

}  // namespace potluck
