// Stands in for dispatch/amx_support.cc in what tests build: every CPU with AVX512_BF16 has AMX,
// its own or the emulator's. TEST_AMX_DEFECT plays machines on which something is wrong with it:
//
//   wrong    products are off by one unit
//   faults   tiles are announced, and their instructions are illegal
//   refused  the kernel does not let the process use tiles
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check/amx_emulator.h"
#include "dispatch/amx_support.h"

namespace potluck {
namespace {

bool plays(const char* defect) {
  const char* asked = getenv("TEST_AMX_DEFECT");
  return asked && strcmp(asked, defect) == 0;
}

bool make_tiles_work() {
  if (plays("refused")) return false;
  if (plays("faults")) return true;
  if (syscall(SYS_arch_prctl, 0x1023, 18) == 0) return true;  // like amx_support.cc: tiles exist
  install_amx_emulator(plays("wrong") ? AmxDefect::wrong_products : AmxDefect::none);
  return true;
}

}  // namespace

bool cpu_has_amx() { return true; }

bool request_amx_permission() {
  static const bool works = make_tiles_work();
  return works;
}

}  // namespace potluck
