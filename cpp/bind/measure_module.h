// The machine's peak rates, for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace potluck {

// Adds the class MemoryReader and the functions peak_instruction and measure_peak to `m`.
void bind_measure(nanobind::module_& m);

}  // namespace potluck
