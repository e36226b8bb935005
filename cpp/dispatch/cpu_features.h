// The features that the CPU has and the operating system preserves across context switches.
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

// Queries the CPU itself (x86-64: CPUID and XCR0) or the kernel (aarch64: the auxiliary vector,
// which has the features common to all cores): /proc/cpuinfo may describe another machine's CPU.
CpuFeatures cpu_features();

}  // namespace potluck
