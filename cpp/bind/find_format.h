// Storage formats by their names in Python.
#pragma once

#include <string>

#include "kernels/kernels.h"
#include "program/error.h"

namespace potluck {

// Throws Error if there is no such format.
inline Format find_format(const std::string& name) {
  for (int i = 0; i < kNumFormats; ++i) {
    const auto format = static_cast<Format>(i);
    if (name == format_info(format).name) return format;
  }
  throw Error("there is no format '" + name + "'");
}

}  // namespace potluck
