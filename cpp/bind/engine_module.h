// The classes that compute steps.
#pragma once

#include <nanobind/nanobind.h>

namespace potluck {

// Adds the classes ThreadPool, Stage and Sampler, and their argument and result types, to `m`. Call
// bind_program first.
void bind_engine(nanobind::module_& m);

}  // namespace potluck
