// The kernels on NumPy arrays, one by one. Tests and benchmarks use this; the engine does not.
#pragma once

#include <nanobind/nanobind.h>

#include "kernels/kernels.h"

namespace potluck {

// Finds kernels by the name of their instruction set; null where there are none.
using KernelLookup = const Kernels* (*)(const char* isa);

// Adds the class Kernels, and the functions kernels_for, available_isas, format_info, panel_bytes
// and pack_rows, to `m`.
void bind_kernels(nanobind::module_& m, KernelLookup lookup);

}  // namespace potluck
