// Programs as passed in from Python.
#pragma once

#include <nanobind/nanobind.h>

namespace potluck {

// Adds the classes Error, OutOfMemoryError and NonFiniteError, one class per op, Register,
// WeightSpec, CacheSpec and Program to `m`.
void bind_program(nanobind::module_& m);

}  // namespace potluck
