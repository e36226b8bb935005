// The individual kernels on NumPy arrays. Used by tests and benchmarks, but not by the engine.
#pragma once

#include <nanobind/nanobind.h>

#include "kernels/kernels.h"

namespace potluck {

// Returns the kernels of a named instruction set, or null if there are none.
using KernelLookup = const Kernels* (*)(const char* isa);

// Adds the class Kernels, and the functions kernels_for, available_isas, format_info, panel_bytes
// and pack_rows, to `m`.
void bind_kernels(nanobind::module_& m, KernelLookup lookup);

}  // namespace potluck
