// Converting rows of weights, and what f16 could hold of them.
#pragma once

#include <nanobind/nanobind.h>

namespace potluck {

// Adds convert_rows and f16_range to `m`, which has the thread pool and F16Range already.
void bind_convert(nanobind::module_& m);

}  // namespace potluck
