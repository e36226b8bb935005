// Bits: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2A, CPUID; volume 1,
// section 13.2 (XCR0). Permission: Linux, Documentation/arch/x86/xstate.rst. Without permission,
// the first use of a tile raises SIGILL. It is denied if a thread has an alternate signal stack too
// small for a frame with 8 KB of tiles; it is inherited by fork and lost by exec.
#include "dispatch/amx_support.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace potluck {

#if defined(__x86_64__)
namespace {

constexpr int kBF16 = 22, kTile = 24, kInt8 = 25;    // of CPUID leaf 7, EDX
constexpr uint32_t kTileState = 1u << 17 | 1u << 18;  // of XCR0: configuration and data
constexpr long kRequestPermission = 0x1023;           // ARCH_REQ_XCOMP_PERM
constexpr long kTileData = 18;                        // XFEATURE_XTILE_DATA

}  // namespace

bool cpu_has_amx() {
  uint32_t eax, ebx, ecx, edx;
  constexpr uint32_t kNeeded = 1u << kBF16 | 1u << kTile | 1u << kInt8;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx >> 27 & 1)) return false;  // OSXSAVE
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || (edx & kNeeded) != kNeeded) return false;
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & kTileState) == kTileState;
}

bool request_amx_permission() {
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}
#else
bool cpu_has_amx() { return false; }
bool request_amx_permission() { return false; }
#endif

}  // namespace potluck
