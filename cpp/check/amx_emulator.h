// Intel AMX in software, for tests on machines without it: the machine code of the kernels runs as
// it is, and each AMX instruction, which such a CPU refuses with SIGILL, is decoded, carried out on
// tiles in memory and stepped over.
//
// Written from the Intel 64 and IA-32 Architectures Software Developer's Manual (SDM): volume 2,
// the pages of the instructions and section 2.8 (exception classes AMX-E1 to AMX-E6), volume 1,
// chapter 18 (tiles, palettes, configuration). It shares no code with the kernels. What the
// hardware would fault on ends the process by SIGABRT, with a line that says what it was.
//
// Not emulated: restarts within a tile (start_row is refused), and page faults in the middle of
// one, which a test does not meet.
#pragma once

#include <stdint.h>

namespace potluck {

// The general registers by their encoding (rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15).
using AmxRegisters = uint64_t[16];

// How products are spoilt: what a CPU does whose AMX is announced and does not work.
enum class AmxDefect { none, wrong_products };

// Catches SIGILL in all threads from now on. Each has tiles of its own.
void install_amx_emulator(AmxDefect defect);

// Carries out the instruction at `code` on this thread's tiles; its length, or 0 if it is none of
// AMX's.
int emulate_amx(const uint8_t* code, const AmxRegisters& registers);

// Whether this thread has a tile configuration: what a kernel must not leave behind.
bool amx_tiles_configured();

// Instructions that SIGILL handlers have carried out in this process.
uint64_t num_emulated_instructions();

}  // namespace potluck
