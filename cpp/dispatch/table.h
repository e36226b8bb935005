// The kernels that this build has and this CPU can run.
#pragma once

#include "kernels/kernels.h"

namespace potluck {

// Variants that can run here, slowest first; the scalar one is always there.
int num_isas();
const Kernels* kernels_at(int index);

// By name, or null if this build or this CPU does not have it.
const Kernels* kernels_for(const char* isa);

// The fastest that can run here.
const Kernels* best_kernels();

}  // namespace potluck
