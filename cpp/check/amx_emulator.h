// Intel AMX in software, for tests on machines without it: the kernels' machine code runs
// unchanged, and each AMX instruction, which such a CPU rejects with SIGILL, is decoded, executed
// on tiles in memory and skipped.
//
// Written from the Intel 64 and IA-32 Architectures Software Developer's Manual (SDM): volume 2,
// the pages of the instructions and section 2.8 (exception classes AMX-E1 to AMX-E6), volume 1,
// chapter 18 (tiles, palettes, configuration). It shares no code with the kernels. Anything that
// would fault in hardware terminates the process with SIGABRT, after a line that describes the
// fault.
//
// Not emulated: restarts within a tile (start_row is rejected), and page faults within one, which
// do not occur in tests.
#pragma once

#include <stdint.h>

namespace potluck {

// The general registers by their encoding (rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15).
using AmxRegisters = uint64_t[16];

// How to corrupt products, to simulate a CPU whose advertised AMX does not work.
enum class AmxDefect { none, wrong_products };

// Handles SIGILL in all threads from now on. Each thread has its own tiles.
void install_amx_emulator(AmxDefect defect);

// Executes the instruction at `code` on this thread's tiles; returns its length, or 0 if it is not
// an AMX instruction.
int emulate_amx(const uint8_t* code, const AmxRegisters& registers);

// Whether this thread has a tile configuration, which kernels must not leave behind.
bool amx_tiles_configured();

// Number of instructions that SIGILL handlers have executed in this process.
uint64_t num_emulated_instructions();

}  // namespace potluck
