// What computes steps.
#pragma once

#include <nanobind/nanobind.h>

namespace potluck {

// Adds the classes ThreadPool, Stage and Sampler, and the values that they take and give, to `m`.
// After bind_program.
void bind_engine(nanobind::module_& m);

}  // namespace potluck
