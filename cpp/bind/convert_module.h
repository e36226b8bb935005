// Conversion of weight rows between formats.
#pragma once

#include <nanobind/nanobind.h>

namespace potluck {

// Adds convert_rows to `m`, which must already have the thread pool.
void bind_convert(nanobind::module_& m);

}  // namespace potluck
