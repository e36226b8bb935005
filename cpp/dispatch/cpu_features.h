// What the CPU has and the operating system saves across context switches.
#pragma once

namespace potluck {

struct CpuFeatures {
  bool avx2 = false;    // with FMA and F16C
  bool avx512 = false;  // F, BW, DQ, VL and VNNI
  bool avx512_bf16 = false;
  bool amx = false;      // with avx512_bf16
  bool neon = false;     // Advanced SIMD
  bool dotprod = false;  // SDOT and UDOT
  bool i8mm = false;     // USDOT and the matrix products of bytes, with BF16
};

// Asks the CPU itself (x86-64: CPUID and XCR0) or the kernel (aarch64: the auxiliary vector, which
// has what all cores of a machine share): /proc/cpuinfo may show another machine's CPU.
CpuFeatures cpu_features();

}  // namespace potluck
