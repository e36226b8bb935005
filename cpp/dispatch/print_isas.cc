// Prints the instruction sets that this machine can run, one per line; CMake runs it while it
// configures (POTLUCK_NATIVE).
#include <stdio.h>

#include "dispatch/amx_support.cc"
#include "dispatch/cpu_features.cc"

int main() {
  const potluck::CpuFeatures features = potluck::cpu_features();
  if (features.avx2) puts("avx2");
  if (features.avx512) puts("avx512");
  if (features.avx512_bf16) puts("avx512_bf16");
  if (features.amx) puts("amx");
  if (features.neon) puts("neon");
  if (features.dotprod) puts("dotprod");
  if (features.i8mm) puts("i8mm");
}
