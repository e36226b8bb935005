// Converting rows of weights.
#pragma once

#include <nanobind/nanobind.h>

namespace potluck {

// Adds convert_rows to `m`, which has the thread pool already.
void bind_convert(nanobind::module_& m);

}  // namespace potluck
