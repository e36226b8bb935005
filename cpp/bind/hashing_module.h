// Hashes whose state can be saved, for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace potluck {

// Adds the class Sha256State to `m`.
void bind_hashing(nanobind::module_& m);

}  // namespace potluck
