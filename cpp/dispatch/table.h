// The kernels that this build has and this CPU can run.
#pragma once

#include "kernels/kernels.h"

namespace potluck {

// Variants that CPU and operating system announce, slowest first; the scalar one is always there.
int num_isas();
const Kernels* kernels_at(int index);

// By name, or null if this build or this CPU does not have it.
const Kernels* kernels_for(const char* isa);

// Whether they need tiles of AMX, which are to be tried before they are trusted (isa_trial.h).
bool uses_tiles(const Kernels& kernels);

// The fastest that is announced here.
const Kernels* best_kernels();

}  // namespace potluck
