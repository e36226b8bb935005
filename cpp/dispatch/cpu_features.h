// What the CPU has and the operating system saves across context switches.
#pragma once

namespace potluck {

struct CpuFeatures {
  bool avx2 = false;    // with FMA and F16C
  bool avx512 = false;  // F, BW, DQ, VL and VNNI
  bool avx512_bf16 = false;
  bool amx = false;     // with avx512_bf16, and the kernel's leave to use tiles
};

// Asks the CPU itself (CPUID and XCR0): /proc/cpuinfo may show another machine's CPU.
CpuFeatures cpu_features();

}  // namespace potluck
