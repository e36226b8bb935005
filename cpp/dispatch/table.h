// The kernels that this build contains and this CPU can run.
#pragma once

#include "kernels/kernels.h"

namespace potluck {

// Instruction sets that the CPU and the operating system support, slowest first; scalar is always
// there.
int num_isas();
const Kernels* kernels_at(int index);

// Returns the kernels by name, or null if this build or this CPU does not have them.
const Kernels* kernels_for(const char* isa);

// Whether they use AMX tiles, which must be tested before use (isa_trial.h).
bool uses_tiles(const Kernels& kernels);

// The fastest supported one.
const Kernels* best_kernels();

}  // namespace potluck
