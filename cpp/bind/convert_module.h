// Converting rows of weights, and what f16 could hold of them.
#pragma once

#include <nanobind/nanobind.h>

namespace potluck {

// Adds convert_rows, f16_range and F16Range to `m`; after bind_engine, which has the thread pool.
void bind_convert(nanobind::module_& m);

}  // namespace potluck
