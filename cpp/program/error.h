// The exceptions of the runner. The binding converts each to a Python exception.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace potluck {

// An invalid call, or an inconsistent program. Nothing has changed, unless the throwing function
// documents otherwise.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The operating system could not provide memory.
class OutOfMemoryError : public Error {
 public:
  OutOfMemoryError(uint64_t needed_bytes, const std::string& what_for)
      : Error("no memory for " + what_for + " (" + std::to_string(needed_bytes) + " bytes)") {}
};

// The model computed a value that is not finite.
class NonFiniteError : public Error {
 public:
  using Error::Error;
};

}  // namespace potluck
